"""Changes of streams that neighbours show: revocations count, whatever trackers can be reached."""

from typing import Any

import pytest

from anabranch.core.changes import EditStream, SetPermission
from anabranch.core.errors import RemoteError
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Effect, Learned, Notice, Send
from anabranch.core.messages import ChainChanged, ChainPage, ReadChain
from anabranch.core.neighbour_ledgers import MAX_PAGES, MAX_READS
from anabranch.core.registry_reader import ALONE_S, ANNOUNCE_EVERY_S
from chains import COPIER, ENTRIES, OWNER, STREAM, WRITER, Writer, created, page_of
from machines import NODES, SIGNERS, of, sent
from reading import Reading

ANN, BOB = SIGNERS[1:3]
PART = StreamPart(STREAM, 0)
NEAR, FAR = NODES[20:22]


def alone(*actions: Any) -> tuple[Reading, Writer]:
    """Let a node know that Ann may publish, and then reach no tracker; NEAR is its neighbour."""
    reading = Reading()
    reading.reader.by_neighbours.neighbours = lambda stream: (NEAR,) if stream == STREAM else ()
    reading.start(*ENTRIES[:2])
    writer = created(SetPermission(ANN.node, 3), *actions)
    reading.follow(writer)
    for tracker in (WRITER, COPIER):
        reading.down(tracker)
    return reading, writer.fork()


def announced(writer: Writer) -> ChainChanged:
    history = writer.history
    return ChainChanged(writer.chain, history.height, history.head)


def hear(reading: Reading, writer: Writer, sender: bytes = NEAR) -> list[Effect]:
    """Let a neighbour announce what it has, and answer what it is asked."""
    done: list[Effect] = []
    waiting = reading.hear(sender, announced(writer))
    while waiting:
        effect = waiting.pop(0)
        done.append(effect)
        if type(effect) is Send and type(effect.message) is ReadChain and effect.to == sender:
            waiting += reading.hear(sender, page_of(effect.message, writer))
    return done


def test_revocation_shown_by_a_neighbour_counts_at_once() -> None:
    reading, near = alone()
    near.add(SetPermission(ANN.node, 0))
    assert reading.reader.permits(PART, ANN.node, reading.now)
    effects = hear(reading, near)
    assert Learned(STREAM, 3) in effects
    assert not reading.reader.permits(PART, ANN.node, reading.now)
    assert reading.reader.permits(PART, OWNER.node, reading.now)
    assert reading.reader.version(STREAM) == 3


def test_revocation_shown_by_a_neighbour_is_told_to_the_others() -> None:
    reading, near = alone()
    reading.reader.by_neighbours.neighbours = lambda stream: (NEAR, FAR)
    near.add(SetPermission(ANN.node, 0))
    words = sent(ChainChanged, hear(reading, near))
    assert words[-1] == (FAR, announced(near))
    [(to, page)] = sent(ChainPage, reading.hear(FAR, ReadChain(7, STREAM, 0, b"h" * 32)))
    assert (to, page.height, page.head) == (FAR, 3, near.history.head)


def test_demand_of_confirmation_shown_by_a_neighbour_counts() -> None:
    reading, near = alone()
    near.add(EditStream(confirm_within_s=3_600))
    hear(reading, near)
    assert reading.reader.permits(PART, ANN.node, reading.now)
    effects = reading.wait(3_601)
    assert not reading.reader.permits(PART, ANN.node, reading.now)
    assert [notice.kind for notice in of(Notice, effects)].count("registry-too-old") == 1
    assert Learned(STREAM, 2) in effects  # every decision is made anew


def test_many_revocations_in_a_row_all_count() -> None:
    reading, near = alone(*(SetPermission(signer.node, 1) for signer in SIGNERS[3:8]))
    for signer in SIGNERS[3:8]:
        near.add(SetPermission(signer.node, 0))
        hear(reading, near)
        assert not reading.reader.permits(PART, signer.node, reading.now)


def test_change_learned_from_a_tracker_is_announced_to_neighbours() -> None:
    reading, _ = alone()
    reading.writers[STREAM].add(SetPermission(ANN.node, 0))
    effects = reading.up(COPIER) + reading.wait(100)
    assert (NEAR, announced(reading.writers[STREAM])) in sent(ChainChanged, effects)


def test_node_without_trackers_compares_with_its_neighbours() -> None:
    reading, near = alone()
    words = sent(ChainChanged, reading.wait(ALONE_S + 2 * ANNOUNCE_EVERY_S))
    assert words[0] == (NEAR, announced(near))
    near.add(SetPermission(ANN.node, 0))
    # The neighbour, which has other changes, announces its own in return.
    hear(reading, near)
    assert not reading.reader.permits(PART, ANN.node, reading.now)


def test_node_that_has_other_changes_announces_them_in_return_once() -> None:
    reading, near = alone()
    behind = Writer().add(*[])  # it knows nothing of the stream
    first = sent(ChainChanged, reading.hear(NEAR, announced(behind)))
    assert first == [(NEAR, announced(near))]
    assert sent(ChainChanged, reading.hear(NEAR, announced(behind))) == []


def test_changes_of_neighbours_do_not_accuse_a_tracker_that_lacks_them() -> None:
    reading, near = alone()
    near.add(SetPermission(ANN.node, 0))
    hear(reading, near)
    for tracker in (WRITER, COPIER):
        reading.up(tracker)
    effects = reading.wait(600)
    assert [notice.kind for notice in of(Notice, effects)] == []
    assert not reading.reader.permits(PART, ANN.node, reading.now)
    reading.writers[STREAM] = near  # now the trackers have it as well
    reading.wait(600)
    assert reading.reader.sizes()["chains that neighbours showed"][0] == 0
    assert not reading.reader.permits(PART, ANN.node, reading.now)


def test_announcement_from_a_node_that_is_no_neighbour_is_ignored() -> None:
    reading, near = alone()
    near.add(SetPermission(ANN.node, 0))
    assert hear(reading, near, FAR) == []
    assert reading.hear(FAR, ReadChain(7, STREAM, 0, b"h" * 32)) == []
    assert reading.reader.permits(PART, ANN.node, reading.now)


def test_forged_change_of_a_neighbour_costs_its_link() -> None:
    reading, near = alone()
    near.add(SetPermission(ANN.node, 0))
    [(_, question)] = sent(ReadChain, reading.hear(NEAR, announced(near)))
    page = page_of(question, near)
    forged = ChainPage(
        page.ticket, page.chain, page.after, page.height, page.head, page.changes[:-1] + b"x"
    )
    with pytest.raises(RemoteError, match="change-forged"):
        reading.hear(NEAR, forged)
    assert reading.reader.permits(PART, ANN.node, reading.now)


def test_page_that_was_not_asked_for_is_ignored() -> None:
    reading, near = alone()
    near.add(SetPermission(ANN.node, 0))
    assert reading.hear(NEAR, page_of(ReadChain(1, STREAM, 0, b"h" * 32), near)) == []
    assert reading.reader.permits(PART, ANN.node, reading.now)


def test_reads_and_pages_of_one_neighbour_are_bounded() -> None:
    reading, near = alone()
    reads = 0
    for _ in range(3 * MAX_READS):
        near.add(SetPermission(BOB.node, 1))
        reads += len(sent(ReadChain, reading.hear(NEAR, announced(near))))
    assert reads == MAX_READS
    question = ReadChain(7, STREAM, 0, b"h" * 32)
    pages = [sent(ChainPage, reading.hear(NEAR, question)) for _ in range(2 * MAX_PAGES)]
    assert sum(map(len, pages)) == MAX_PAGES
