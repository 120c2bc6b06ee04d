"""A chain of changes: what may be added to it, in what order it lies, and its head."""

from itertools import permutations
from typing import Any

import msgspec
import pytest

from anabranch.core import history as histories
from anabranch.core.changes import (
    Change,
    CreateStream,
    DeleteStream,
    EditStream,
    SetPermission,
    SetTrackers,
    decode_change,
    encode_change,
    hash_change,
)
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.history import History, make_change, roll
from anabranch.core.messages.registry import NETWORK
from chains import ENTRIES, GENESIS, NET, OWNER, STREAM, Writer
from machines import KEYS, NODES, SIGNERS, START

ANN = SIGNERS[1]
NOW_MS = int(START * 1000)


def created() -> Writer:
    return Writer().add(CreateStream(2))


def refuse(writer: Writer, reason: str, **fields: Any) -> None:
    """Let a change that is right but for these fields be refused, and change nothing."""
    history = writer.history
    signer = fields.pop("signer", OWNER)
    change = Change(
        history.chain,
        history.next_parents(),
        history.next_depth(),
        OWNER.node,
        NOW_MS,
        (SetPermission(NODES[9], 1),),
    )
    encoded = encode_change(msgspec.structs.replace(change, **fields), NET, signer.sign)
    before = (history.height, history.head, history.tips, history.state)
    for attempt in (history.examine, history.add):
        with pytest.raises(RemoteError) as caught:
            attempt(encoded, KEYS.verify)
        assert caught.value.reason == reason
    assert (history.height, history.head, history.tips, history.state) == before


def test_a_change_stands_where_it_says() -> None:
    writer = created()
    refuse(writer, "wrong-chain", chain=STREAM + "2")
    refuse(writer, "depth", depth=1)
    refuse(writer, "depth", depth=3)
    refuse(writer, "orphan", parents=(bytes(32),))
    refuse(writer, "orphan", parents=(*writer.history.tips, bytes(32)))
    refuse(writer, "twice", parents=writer.history.tips * 2)
    refuse(writer, "clock", at_ms=NOW_MS - 1)
    refuse(writer, "change-forged", signer=ANN)
    refuse(writer, "forbidden", author=ANN.node, signer=ANN)


def test_a_signature_is_asked_for_before_anything_is_worked_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = created()
    old = writer.history.tips
    writer.add(SetPermission(ANN.node, 1))
    monkeypatch.setattr(histories, "resolve", pytest.fail)
    refuse(writer, "change-forged", parents=old, depth=2, signer=ANN)


def test_a_change_is_added_once() -> None:
    writer = created()
    encoded = writer.next(SetPermission(ANN.node, 1))
    assert not writer.history.has(encoded)
    assert writer.history.add(encoded, KEYS.verify)
    assert writer.history.has(encoded)
    head = writer.history.head
    assert not writer.history.add(encoded, KEYS.verify)
    assert (writer.history.head, writer.history.height) == (head, 2)


def test_the_head_rolls_along_the_changes() -> None:
    writer = created().add(SetPermission(ANN.node, 1))
    history, head = writer.history, NET
    assert history.head_at(0) == NET
    for at, encoded in enumerate(writer.changes, 1):
        head = roll(head, encoded)
        assert history.head_at(at) == head
    assert history.head == head
    assert history.head_at(3) is None
    assert history.head_at(-1) is None


def test_a_batch_holds_as_a_whole_or_not_at_all() -> None:
    writer = created()
    batch = [SetPermission(ANN.node, 3), EditStream(partitions=4), SetPermission(NODES[9], 1)]
    writer.take(make_change(OWNER, writer.history, batch, START))
    assert writer.state.created.partitions == 4
    assert set(writer.state.permissions) == {ANN.node, NODES[9]}
    with pytest.raises(LocalError, match="partitions"):
        make_change(OWNER, writer.history, [SetPermission(ANN.node, 0), EditStream(1)], START)
    assert ANN.node in writer.state.permissions
    again = [DeleteStream(), CreateStream(1)]  # in the order in which they stand
    writer.take(make_change(OWNER, writer.history, again, START))
    assert (writer.state.created, writer.state.permissions) == (CreateStream(1), {})


def test_the_networks_chain_begins_with_its_genesis() -> None:
    history = History(NETWORK, NET)
    with pytest.raises(RemoteError, match="wrong-genesis"):
        history.add(GENESIS + b"\0", KEYS.verify)
    assert history.extends(GENESIS)
    assert history.add(GENESIS, KEYS.verify)
    assert (history.height, history.tips, history.head) == (1, (NET,), roll(NET, GENESIS))
    assert history.has(GENESIS)
    assert not history.add(GENESIS, KEYS.verify)
    change = make_change(OWNER, history, SetTrackers(ENTRIES), START)
    assert decode_change(change).parents == (NET,)
    assert history.add(change, KEYS.verify)
    assert history.state.trackers == ENTRIES  # type: ignore[attr-defined]


def test_two_branches_lie_in_one_order_whichever_came_first() -> None:
    ours = created()
    theirs = ours.fork()
    ours.add(SetPermission(ANN.node, 1), SetPermission(ANN.node, 3))
    theirs.add(EditStream(metadata="theirs"))
    changes = [*ours.changes[1:], *theirs.changes[1:]]
    heads, states = set(), []
    for order in permutations(changes):
        merged = created().history
        waiting = list(order)
        while waiting:  # a child whose parent has not come is asked for again
            encoded = waiting.pop(0)
            if set(decode_change(encoded).parents) <= set(map(hash_change, merged.changes)):
                merged.add(encoded, KEYS.verify)
                continue
            with pytest.raises(RemoteError, match="orphan"):
                merged.add(encoded, KEYS.verify)
            waiting.append(encoded)
        heads.add(merged.head)
        states.append(vars(merged.state))
        assert merged.tips == tuple(sorted(map(hash_change, (changes[1], changes[2]))))
    assert len(heads) == 1
    assert all(state == states[0] for state in states)
    assert states[0]["created"].metadata == "theirs"


def test_the_next_change_joins_the_branches() -> None:
    ours = created()
    theirs = ours.fork()
    ours.add(SetPermission(ANN.node, 1))
    theirs.add(SetPermission(NODES[9], 1))
    late = ours.next(EditStream(metadata="late"))
    assert ours.history.extends(late)
    ours.take(*theirs.changes)
    assert len(ours.history.tips) == 2
    assert not ours.history.extends(late)
    join = ours.next(SetPermission(ANN.node, 0))
    assert decode_change(join).parents == ours.history.tips
    assert ours.history.extends(join)
    assert ours.take(join).history.tips == (hash_change(join),)
    assert set(ours.state.permissions) == {NODES[9]}
    theirs.take(*ours.changes)
    assert theirs.history.head == ours.history.head


def test_more_branches_than_a_change_can_name_are_joined_one_after_the_other() -> None:
    writer = created()
    branches = [writer.fork().add(SetPermission(NODES[at], 1)) for at in range(1, 12)]
    for branch in branches:
        writer.take(*branch.changes)
    assert len(writer.history.tips) == 11
    assert len(writer.state.permissions) == 11
    writer.add(EditStream(metadata="a"), EditStream(metadata="b"), EditStream(metadata="c"))
    assert len(writer.history.tips) == 1
    assert writer.state.created.metadata == "c"


def test_a_change_is_judged_by_what_its_author_knew() -> None:
    ours = created().add(SetPermission(ANN.node, 4))
    theirs = ours.fork()
    ours.add(DeleteStream())
    late = theirs.next(SetPermission(NODES[9], 1), signer=ANN)
    ours.take(late)  # it was right when it was made,
    assert ours.state.created is None  # and comes to nothing
    assert ours.history.height == 4


def test_what_would_be_refused_is_not_signed() -> None:
    writer = created()
    for action, signer, text in (
        (DeleteStream(), ANN, "forbidden"),
        (CreateStream(), OWNER, "exists"),
        (SetPermission(ANN.node, 32), OWNER, "change-malformed"),
        (SetPermission(b"short", 1), OWNER, "change-malformed"),
    ):
        with pytest.raises(LocalError, match=text):
            make_change(signer, writer.history, action, START)
    with pytest.raises(LocalError, match="change-malformed"):
        make_change(OWNER, Writer().history, CreateStream(partitions=101), START)
    with pytest.raises(LocalError, match="change-malformed"):
        make_change(OWNER, writer.history, [], START)


def test_a_clock_that_is_behind_does_not_stop_its_user() -> None:
    writer = created()
    early = make_change(OWNER, writer.history, SetPermission(ANN.node, 1), START - 100)
    assert decode_change(early).at_ms == NOW_MS


def test_a_chain_has_an_end_and_the_owner_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = created().add(SetPermission(ANN.node, 4))
    monkeypatch.setattr(histories, "OTHERS_DEPTH", 3)
    monkeypatch.setattr(histories, "MAX_DEPTH", 4)
    writer.add(SetPermission(NODES[9], 1), signer=ANN)
    refuse(writer, "full", author=ANN.node, signer=ANN)
    writer.add(SetPermission(ANN.node, 0))  # who fills a chain cannot keep his rights so
    refuse(writer, "full")
    assert set(writer.state.permissions) == {NODES[9]}
    monkeypatch.undo()
    monkeypatch.setattr(histories, "MAX_CHANGES", 4)
    writer.add(SetPermission(ANN.node, 4))  # the owner is not kept out by what others wrote
    refuse(writer, "full", author=ANN.node, signer=ANN)


def test_whether_there_is_room_does_not_depend_on_what_came_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(histories, "MAX_DEPTH", 2)
    ours, theirs = created(), created()
    ours.add(SetPermission(ANN.node, 1))
    theirs.add(SetPermission(NODES[9], 0))
    mine = list(ours.changes)
    ours.take(*theirs.changes)
    theirs.take(*mine)
    assert ours.history.head == theirs.history.head


def test_who_knows_less_than_we_do_is_judged_without_working_it_all_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = created()
    ours, theirs = root.fork().add(SetPermission(ANN.node, 4)), root.fork()
    theirs.add(*(SetPermission(NODES[at], 1) for at in range(5, 9)))
    root.take(*ours.changes, *theirs.changes)
    both = [root.next(SetPermission(NODES[at], 1)) for at in range(10, 13)]
    stray = created().add(EditStream(metadata="stray"))
    root.take(*stray.changes)
    root.take(both[0])
    monkeypatch.setattr(histories, "resolve", pytest.fail)
    root.take(*both[1:])
    monkeypatch.undo()
    assert len(root.state.permissions) == 8
    assert len(root.history._states) <= histories.MAX_STATES


def test_a_copy_goes_its_own_way() -> None:
    writer = created()
    twin = writer.history.copy()
    writer.add(SetPermission(ANN.node, 1))
    assert (twin.height, len(twin.changes), twin.tips) == (1, 1, (hash_change(writer.changes[0]),))
    twin.add(writer.changes[-1], KEYS.verify)
    assert twin.head == writer.history.head
    assert vars(twin.state) == vars(writer.state)
