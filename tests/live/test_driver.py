"""One event at a time, one timer, and what becomes of a machine that fails."""

import asyncio
import sys
from collections.abc import Callable

import pytest

from anabranch.core.ids import NodeId, show
from anabranch.core.machine import (
    Congested,
    Copies,
    Deliver,
    Dropped,
    Effect,
    Event,
    LinkDown,
    LinkUp,
    Notice,
    Outcome,
    Received,
    ReceivedBatch,
    Rtt,
    Send,
    Subscribe,
    Unsubscribe,
    Wakeup,
    Writable,
)
from anabranch.core.messages import Leave
from anabranch.core.packets import Packets
from anabranch.live.driver import MAX_EARLY_BYTES, ROUNDING_S
from anabranch.traces import schema
from live.scripted import ME, START, A, B, Bench, C, Wire, run
from machines import PART, SIGNERS, Chain, head


def batch(sender: NodeId, *packets: bytes) -> ReceivedBatch:
    """Let packets come together."""
    return ReceivedBatch(sender, Packets.of(packets))


# --- One event at a time --------------------------------------------------------------------


def test_what_the_transport_says_becomes_events() -> None:
    async def main(bench: Bench) -> None:
        driver = bench.driver
        driver.link_up(Wire(A, bench.log))
        driver.received(A, Packets.of([b"one"]))
        driver.received(A, Packets.of([b"two", b"three"]))
        driver.rtt(A, 0.25)
        driver.congested(A)
        driver.writable(A)
        driver.link_down(A, "reset")
        assert bench.log == [
            LinkUp(A, 0.5),
            batch(A, b"one"),
            batch(A, b"two", b"three"),
            Rtt(A, 0.25),
            Congested(A),
            Writable(A),
            LinkDown(A, "reset"),
        ]
        assert driver.links == {}
        assert bench.observer.metrics.bytes_in == 11
        assert set(bench.machine.times) == {START}
        assert driver.now() == START

    run(main)


def test_what_the_application_wants_and_the_end_are_recorded() -> None:
    async def main(bench: Bench) -> None:
        records: list[schema.Record] = []
        bench.observer.record(START, records.append)
        bench.driver.feed(Subscribe(PART))
        bench.driver.feed(Subscribe(PART, reads=False))  # it only carries them
        bench.driver.feed(Subscribe(PART))
        bench.driver.feed(Unsubscribe(PART))
        bench.driver.detach()
        bench.driver.detach()
        kinds = [type(record).__name__ for record in records]
        assert kinds == ["Subscribed", "Unsubscribed", "Subscribed", "Unsubscribed", "Stopped"]
        assert {record.node for record in records} == {show(ME)}

    run(main)


def test_an_event_that_an_effect_causes_waits_for_its_turn() -> None:
    async def main(bench: Bench) -> None:
        wire_a, wire_b = bench.link(A, B)
        farewell = Leave(PART)
        wire_a.on_send = lambda: bench.driver.link_down(A, "broken")
        wire_b.on_send = lambda: bench.driver.received(B, Packets.of([b"answer"]))
        both: list[Effect] = [Send(A, farewell), Send(B, farewell), Send(A, farewell)]
        bench.machine.on(Congested, lambda _: both)
        bench.machine.on(LinkDown, lambda _: [Outcome(1, "lost")])
        bench.driver.congested(C)
        assert bench.log == [
            Congested(C),
            ("sent", A),
            ("sent", B),
            LinkDown(A, "broken"),
            Outcome(1, "lost"),
            batch(B, b"answer"),
        ]

    run(main)


def test_what_happens_before_there_is_a_machine_happens_to_it_then() -> None:
    async def main(bench: Bench) -> None:
        bench.machine.wakeup_at = START + 1
        bench.driver.link_up(Wire(A, bench.log))
        bench.driver.received(A, Packets.of([b"early"]))
        bench.driver.link_down(B, "refused")
        assert bench.log == []
        bench.driver.attach(bench.machine)
        assert bench.log == [LinkUp(A, 0.5), batch(A, b"early"), LinkDown(B, "refused")]
        assert bench.loop.armed() == [START + 1]

    run(main, attach=False)


def test_who_brings_too_much_before_there_is_a_machine_loses_its_link() -> None:
    async def main(bench: Bench) -> None:
        flood, quiet = Wire(A, bench.log), Wire(B, bench.log)
        for wire in (flood, quiet):
            bench.driver.link_up(wire)
        bench.driver.received(B, Packets.of([b"before"]))
        packet = bytes(1 << 20)
        brought = 0
        while not flood.closed:
            bench.driver.received(A, Packets.of([packet]))
            brought += 1
        assert brought <= MAX_EARLY_BYTES >> 20
        bench.driver.received(B, Packets.of([b"after"]))
        assert (flood.closed, quiet.closed) == (["too-early"], [])
        bench.log.clear()
        bench.driver.attach(bench.machine)
        assert bench.log == [LinkUp(B, 0.5), batch(B, b"before"), batch(B, b"after")]

    run(main, attach=False)


# --- The timer ------------------------------------------------------------------------------


def wake_at(bench: Bench, *, event: Event, at: float | None) -> None:
    """Let an event make the machine ask for another time."""

    def answer(_: Event) -> list[Effect]:
        bench.machine.wakeup_at = at
        return []

    bench.machine.on(type(event), answer)
    bench.driver.feed(event)


def test_the_machine_is_woken_when_it_asked_for_it_and_not_again() -> None:
    async def main(bench: Bench) -> None:
        wake_at(bench, event=Congested(A), at=START + 3)
        bench.machine.wake_once()
        await asyncio.sleep(50)
        assert bench.log == [Congested(A), Wakeup()]
        assert bench.machine.times == [START, START + 3]

    run(main)


def test_the_timer_is_moved_to_an_earlier_time_and_stays_one() -> None:
    async def main(bench: Bench) -> None:
        wake_at(bench, event=Congested(A), at=START + 30)
        wake_at(bench, event=Writable(A), at=START + 2)
        assert bench.loop.armed() == [START + 2]
        bench.machine.wake_once()
        await asyncio.sleep(50)
        assert bench.machine.times == [START, START, START + 2]

    run(main)


def test_the_timer_is_moved_to_a_later_time() -> None:
    async def main(bench: Bench) -> None:
        wake_at(bench, event=Congested(A), at=START + 2)
        wake_at(bench, event=Writable(A), at=START + 30)
        assert len(bench.loop.armed()) == 1
        bench.machine.wake_once()
        await asyncio.sleep(50)
        assert bench.machine.times == [START, START, START + 30]

    run(main)


def test_a_machine_that_wants_no_wakeup_any_more_gets_none() -> None:
    async def main(bench: Bench) -> None:
        wake_at(bench, event=Congested(A), at=START + 2)
        wake_at(bench, event=Writable(A), at=None)
        await asyncio.sleep(50)
        assert bench.log == [Congested(A), Writable(A)]

    run(main)


def test_a_time_that_has_passed_comes_at_once_and_again_and_again() -> None:
    async def main(bench: Bench) -> None:
        def wake(_: Event) -> list[Effect]:
            count = bench.log.count(Wakeup())
            bench.machine.wakeup_at = None if count == 3 else bench.loop.now + 5
            return []

        bench.machine.on(Wakeup, wake)
        wake_at(bench, event=Congested(A), at=START - 100)
        await asyncio.sleep(50)
        assert bench.machine.times == [START, START, START + 5, START + 10]

    run(main)


def test_while_somebody_traces_every_packet_is_an_event_of_its_own() -> None:
    async def main(bench: Bench) -> None:
        bench.driver.received(A, Packets.of([b"one", b"two"]))
        bench.observer.record(START, lambda record: None)
        bench.driver.received(A, Packets.of([b"three", b"four"]))
        assert bench.log == [
            batch(A, b"one", b"two"),
            Received(A, b"three"),
            Received(A, b"four"),
        ]
        assert bench.observer.metrics.bytes_in == 15

    run(main)


def test_a_loop_that_rounds_to_milliseconds_does_not_ring_too_early() -> None:
    async def main(bench: Bench) -> None:
        bench.driver.rounding_s = ROUNDING_S
        wake_at(bench, event=Congested(A), at=START + 0.0104)
        (armed_at,) = bench.loop.armed()
        assert START + round((armed_at - START) * 1000) / 1000 >= START + 0.0104

    run(main)


# --- The process ----------------------------------------------------------------------------


def test_what_is_for_the_process_reaches_it_and_is_counted() -> None:
    async def main(bench: Bench) -> None:
        frame = Chain(SIGNERS[5]).frame(b"one", b"two")
        of_frame = head(frame)
        deliver = Deliver(PART, of_frame, frame, 3)
        effects: list[Effect] = [
            deliver,
            Copies(of_frame.part, A, [b"one", b"two", b"three"]),
            Dropped(of_frame, "future", A),
            Notice(PART, "alone"),
            Outcome(4, "sent"),
        ]
        bench.machine.on(Congested, lambda _: effects)
        bench.driver.congested(A)
        assert bench.log == [Congested(A), deliver, Outcome(4, "sent")]
        counted = bench.counted()
        assert (counted["delivered"], counted["duplicates"]) == (2, 3)
        assert counted["dropped"] == {"future": 1}
        assert bench.observer.notices == {"alone": 1}

    run(main)


def fail_in_machine(bench: Bench, error: Exception) -> None:
    def answer(_: Event) -> list[Effect]:
        raise error

    bench.machine.on(Congested, answer)


def fail_in_handler(bench: Bench, error: Exception) -> None:
    (wire,) = bench.link(A)

    def broken() -> None:
        raise error

    wire.on_send = broken
    bench.machine.on(Congested, lambda _: [Send(A, Leave(PART))])


@pytest.mark.parametrize("fail", [fail_in_machine, fail_in_handler])
def test_a_mistake_of_ours_ends_the_machine_and_is_told(
    fail: Callable[[Bench, Exception], None],
) -> None:
    async def main(bench: Bench) -> None:
        error = AssertionError("a mistake")
        told: list[BaseException] = []

        def hear(failure: BaseException) -> None:
            told.append(failure)
            bench.driver.feed(Writable(A))  # whoever is told may have more to say

        fail(bench, error)
        bench.driver.on_failure(hear)
        bench.driver.on_failure(told.append)
        bench.machine.wakeup_at = START + 1
        bench.driver.writable(A)
        bench.log.clear()
        with pytest.raises(AssertionError, match="a mistake"):
            bench.driver.congested(A)
        handled = list(bench.log)
        assert bench.driver.failure is error
        assert told == [error, error]
        assert bench.loop.armed() == []
        bench.driver.received(A, Packets.of([b"more"]))
        bench.driver.link_down(A, "reset")
        bench.driver.feed(Writable(B))
        await asyncio.sleep(50)
        assert bench.log == handled

    run(main)


def test_what_was_waiting_when_the_machine_failed_is_not_handled() -> None:
    async def main(bench: Bench) -> None:
        def answer(event: Received) -> list[Effect]:
            raise AssertionError(event.data)

        bench.machine.on(Received, answer)
        bench.observer.record(START, lambda record: None)  # so that they are two events
        with pytest.raises(AssertionError, match="one"):
            bench.driver.received(A, Packets.of([b"one", b"two"]))
        bench.driver.writable(A)
        assert bench.log == [Received(A, b"one")]

    run(main)


def test_a_machine_that_is_let_go_hears_nothing_more() -> None:
    async def main(bench: Bench) -> None:
        bench.machine.wakeup_at = START + 1
        bench.driver.writable(A)
        bench.driver.detach()
        more = bytes(1_000)
        owners = sys.getrefcount(more)
        bench.driver.received(A, Packets.of([more]))
        bench.driver.feed(Received(A, more))
        assert sys.getrefcount(more) == owners, "it is kept, and nobody will ever look at it"
        assert bench.loop.armed() == []
        await asyncio.sleep(50)
        assert bench.log == [Writable(A)]
        assert bench.driver.failure is None

    run(main)


def test_a_machine_that_is_let_go_by_its_own_effect_hears_nothing_more() -> None:
    async def main(bench: Bench) -> None:
        (wire,) = bench.link(A)
        wire.on_send = bench.driver.detach
        bench.machine.on(Received, lambda _: [Send(A, Leave(PART))])
        bench.machine.wakeup_at = START + 1
        bench.observer.record(START, lambda record: None)  # so that they are two events
        bench.driver.received(A, Packets.of([b"one", b"two"]))
        assert bench.log == [Received(A, b"one"), ("sent", A)]
        assert bench.loop.armed() == []

    run(main)
