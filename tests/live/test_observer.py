"""What is counted, and what is traced where somebody asked for it."""

import json
from typing import Any

from anabranch.core.ids import FrameHead, StreamPart, number_of, part_key, show
from anabranch.core.key_asking import NO_KEY
from anabranch.core.key_exchange import UNREADABLE
from anabranch.core.machine import (
    Copies,
    Deliver,
    Disconnect,
    Dropped,
    Effect,
    Forward,
    Notice,
    Outcome,
    Published,
    Received,
    Send,
)
from anabranch.core.messages import Contact, Instruction, Leave
from anabranch.live.observer import MAX_KINDS, MAX_TALLIED_CHAINS, MAX_UNCOUNTED, Observer
from anabranch.traces import schema
from anabranch.traces.recorder import Recorder
from machines import NODES, OTHER, PART, SIGNERS, START, Chain, data, head

ME, A, B = NODES[:3]
CHAIN = f"{show(NODES[5])}.0000000000000001"


class Watch:
    """An observer whose trace is a list."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.observer = Observer(ME, Recorder(self.records.append))
        self.observer.name_part(PART)

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if type(record) is kind]


def delivery(chain: Chain, *contents: bytes, at: float = START) -> Deliver:
    frame = chain.frame(*contents, at=at)
    return Deliver(PART, head(frame), frame, 3)


def test_a_delivery_is_counted_with_its_delay_and_traced() -> None:
    watch = Watch()
    deliver = delivery(Chain(SIGNERS[5]), b"one", b"two")
    watch.observer.delivered(START + 0.25, deliver)
    part = watch.observer.snapshot()["parts"][str(PART)]
    # Half a millisecond less: the publisher's timestamp was rounded down.
    assert (part["delivered"], part["delay"]["count"], part["delay"]["max_us"]) == (2, 2, 249_500)
    (record,) = watch.records
    assert record == schema.Delivered(
        START + 0.25,
        show(ME),
        str(PART),
        show(NODES[5]),
        "0000000000000001",
        deliver.head.last,
        2,
        3,
        249.5,
    )


def test_what_waits_to_be_added_up_is_bounded_and_in_every_account() -> None:
    observer, chain = Observer(ME), Chain(SIGNERS[5])
    observer.name_part(PART)
    for number in range(1, MAX_UNCOUNTED + 2):
        observer.delivered(START, delivery(chain, b"x"))
        assert len(observer._uncounted) == number % MAX_UNCOUNTED
    observer.copies(Copies(part_key(PART), A, [b"one"]))
    report = observer.report(PART, START)
    assert (report.delivered, report.duplicates) == (MAX_UNCOUNTED + 1, 1)
    observer.delivered(START, delivery(chain, b"x"))
    observer.forget_part(PART)
    assert observer.snapshot()["parts"] == {}  # nothing comes back of what was left


def test_equal_tallies_mean_the_same_messages() -> None:
    chain, other = Chain(SIGNERS[5]), Chain(SIGNERS[6])
    first, second, third = delivery(chain, b"x"), delivery(chain, b"y", b"z"), delivery(other)
    fourth = delivery(chain, b"x")
    seen = []
    for order in ([first, second, third], [third, second, first], [fourth, second, third]):
        observer = Observer(ME)
        for deliver in order:
            observer.delivered(START, deliver)
        seen.append(observer.snapshot()["chains"])
    assert seen[0] == seen[1]
    assert seen[0][CHAIN]["messages"] == seen[2][CHAIN]["messages"] == 3
    assert seen[0][CHAIN]["sum"] != seen[2][CHAIN]["sum"]


def test_chains_beyond_the_bound_are_counted_and_not_told_apart() -> None:
    observer = Observer(ME)
    for number in range(MAX_TALLIED_CHAINS + 5):
        chain = Chain(SIGNERS[5], number=number)
        of_frame = FrameHead(chain.part, chain.key, 0, number_of(1, 0), number_of(1, 0), 1)
        observer.delivered(START, Deliver(PART, of_frame, b"", 1))
    shown = observer.snapshot()
    assert len(shown["chains"]) == MAX_TALLIED_CHAINS
    assert shown["parts"][str(PART)]["delivered"] == MAX_TALLIED_CHAINS + 5


def test_it_tells_who_misses_what_cannot_be_opened() -> None:
    watch = Watch()
    of_frame, told = delivery(Chain(SIGNERS[5])).head, list[tuple[StreamPart, int, int]]()
    watch.observer.on_unreadable = lambda *missed: told.append(missed)
    for reason in (NO_KEY, UNREADABLE, "unpermitted"):
        watch.observer.dropped(START, Dropped(of_frame, reason, A))
        watch.observer.dropped(START, Dropped(of_frame, reason, A, to=9))
    assert told == [(PART, 1, 0), (PART, 1, 9)] * 2


def test_duplicates_are_counted_apart_from_other_drops() -> None:
    watch = Watch()
    of_frame = delivery(Chain(SIGNERS[5])).head
    elsewhere = delivery(Chain(SIGNERS[5], part=OTHER)).head
    watch.observer.copies(Copies(of_frame.part, A, [b"one", b"two"]))
    watch.observer.dropped(START, Dropped(of_frame, "future", A))
    watch.observer.dropped(START, Dropped(of_frame, "no-link"))
    watch.observer.dropped(START, Dropped(elsewhere, "not-member", B))
    shown = watch.observer.snapshot()
    part = shown["parts"][str(PART)]
    assert (part["duplicates"], part["dropped"]) == (2, {"future": 1, "no-link": 1})
    assert shown["elsewhere"]["dropped"] == {"not-member": 1}
    assert [(record.reason, record.peer) for record in watch.of(schema.Dropped)] == [
        ("future", show(A)),
        ("no-link", ""),
        ("not-member", show(B)),
    ]


def test_packets_are_counted_and_first_copies_traced() -> None:
    chain = Chain(SIGNERS[5])
    frame = chain.frame()
    event, of_frame = data(A, frame, route=b"\4"), head(frame)
    made: list[list[Effect]] = [
        [Deliver(PART, of_frame, frame, 4)],
        [Send(A, Leave(PART)), Forward(200, of_frame, [], frame)],
        [],  # kept until its permission is known
        [Copies(of_frame.part, A, [b"one"])],
        [Dropped(of_frame, "future", A)],
        [Notice(None, "fault"), Disconnect(A, "forged")],
    ]
    watch = Watch()
    for effects in made:
        watch.observer.came(START, event, effects)
    assert watch.observer.metrics.bytes_in == 6 * len(event.data)
    traced = watch.of(schema.Received)
    assert [(r.peer, r.hops, r.number) for r in traced] == [(show(A), 4, of_frame.last)] * 3
    copies = watch.of(schema.Duplicate)
    assert [(r.peer, r.number) for r in copies] == [(show(A), of_frame.last)]
    watch.observer.came(START, data(A, frame, route=b""), made[0])
    assert watch.records[-1].hops == 0


def test_what_is_no_frame_is_not_traced_and_stops_nobody() -> None:
    watch = Watch()
    for packet in (
        b"",
        b"\2",
        b"\2\0\0",
        b"\2\1",
        b"\2\1\0\0",
        b"\2\1\0\0short",
        b"\2\1\0\xff" * 99,
    ):
        watch.observer.came(START, Received(A, packet), [])
    assert watch.records == []


def test_without_a_recorder_the_same_is_counted() -> None:
    counted = []
    for recorder in (None, Recorder(lambda record: None)):
        observer = Observer(ME, recorder)
        observer.name_part(PART)
        deliver = delivery(Chain(SIGNERS[5]))
        frame = deliver.frame
        observer.came(START, data(A, frame), [deliver])
        observer.delivered(START, deliver)
        observer.copies(Copies(deliver.head.part, A, [b"one"]))
        observer.sent(START, A, deliver.head, 100)
        observer.said(START, Send(A, Leave(PART)), 10)
        observer.linked(START, A, True, "")
        observer.linked(START, A, False, "reset")
        observer.rtt(START, A, 0.1)
        observer.missed(PART, 4)
        observer.other(START, Published(deliver.head, frame))
        observer.other(START, Notice(PART, "alone"))
        observer.other(START, Outcome(1, "sent"))
        shown = observer.snapshot()
        del shown["cpu_ms"]
        counted.append(json.loads(json.dumps(shown)))
    assert counted[0] == counted[1]
    shown, part = counted[0], counted[0]["parts"][str(PART)]
    assert (shown["bytes_out"], shown["links_lost"], shown["notices"]) == (10, 1, {"alone": 1})
    assert (part["published"], part["missed"]) == (1, 4)


def test_links_round_trips_and_instructions_are_traced() -> None:
    watch = Watch()
    told = Instruction(PART, 5, (Contact(A, "ws://a"),), (B,))
    watch.observer.linked(START, A, True, "")
    watch.observer.linked(START, A, False, "reset")
    watch.observer.rtt(START, A, 0.0125)
    watch.observer.said(START, Send(B, told), 50)
    watch.observer.said(START, Send(B, Leave(PART)), 50)
    watch.observer.other(START, Notice(None, "fault", "forged"))
    me, a, b = show(ME), show(A), show(B)
    assert watch.records == [
        schema.Linked(START, me, a, True),
        schema.Linked(START, me, a, False, "reset"),
        schema.Rtt(START, me, a, 12.5),
        schema.Instruction(START, me, b, str(PART), 5, [a, b]),
        schema.Noted(START, me, "fault", "forged"),
    ]


def test_kinds_of_notices_are_bounded_and_none_is_lost() -> None:
    observer = Observer(ME)
    for number in range(MAX_KINDS + 5):
        observer.other(START, Notice(None, f"kind-{number}"))
    observer.other(START, Notice(None, "kind-0"))
    assert observer.notices["kind-0"] == 2
    assert observer.notices["other"] == 5
    assert len(observer.notices) == MAX_KINDS + 1


def test_a_part_that_was_left_is_forgotten() -> None:
    watch = Watch()
    observer, of_frame = watch.observer, delivery(Chain(SIGNERS[5])).head
    observer.other(START, Published(of_frame, b""))
    assert observer.report(PART, START).published == 1
    observer.forget_part(PART)
    observer.forget_part(PART)
    assert observer.snapshot()["parts"] == {}
    observer.dropped(START, Dropped(of_frame, "not-member", A))
    assert observer.snapshot()["elsewhere"]["dropped"] == {"not-member": 1}
    observer.name_part(PART)
    observer.dropped(START, Dropped(of_frame, "future", A))
    assert observer.report(PART, START).dropped == 1
