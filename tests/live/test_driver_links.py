"""What a machine sends, and whose links it ends."""

from anabranch.core import codec
from anabranch.core.ids import part_key
from anabranch.core.machine import (
    Congested,
    Connect,
    Copies,
    Disconnect,
    Forward,
    LinkDown,
    Outcome,
    Received,
    Rtt,
    Send,
    Writable,
)
from anabranch.core.messages import Leave, Report
from anabranch.core.packets import Packets
from live.scripted import START, A, B, Bench, C, Wire, run
from machines import NODES, PART, SIGNERS, Chain, head


def test_after_a_disconnect_nothing_of_that_peer_is_heard() -> None:
    async def main(bench: Bench) -> None:
        wire_a, wire_b = bench.link(A, B)
        bench.observer.record(START, lambda record: None)  # so that packets are events
        bench.machine.on(
            Received,
            lambda event: [Disconnect(A, "flood")] if event.data == b"bad" else [],
        )
        wire_b.on_send = lambda: bench.driver.received(A, Packets.of([b"bad", b"late"]))
        bench.machine.on(Congested, lambda _: [Send(B, Leave(PART)), Send(B, Leave(PART))])
        bench.driver.congested(B)
        bench.driver.received(B, Packets.of([b"well"]))
        assert bench.log == [
            Congested(B),
            ("sent", B),
            ("sent", B),
            Received(A, b"bad"),
            ("closed", A),
            Received(B, b"well"),
        ]
        assert wire_a.closed == ["flood"]
        assert list(bench.driver.links) == [B]
        assert bench.observer.links_lost == 1

    run(main)


def test_a_disconnect_ends_a_newer_link_that_the_machine_has_not_heard_of() -> None:
    async def main(bench: Bench) -> None:
        _, wire_b = bench.link(A, B)
        newer = Wire(A, bench.log)

        def replace() -> None:
            bench.driver.link_down(A, "replaced")
            bench.driver.link_up(newer)
            bench.driver.rtt(A, 0.1)
            bench.driver.rtt(B, 0.2)

        wire_b.on_send = replace
        bench.machine.on(Congested, lambda _: [Send(B, Leave(PART)), Disconnect(A, "unheld")])
        bench.driver.congested(B)
        assert newer.closed == ["unheld"]
        assert bench.log == [Congested(B), ("sent", B), ("closed", A), Rtt(B, 0.2)]
        assert list(bench.driver.links) == [B]

    run(main)


def test_a_disconnect_from_nobody_is_no_mistake() -> None:
    async def main(bench: Bench) -> None:
        bench.machine.on(Congested, lambda _: [Disconnect(A, "unheld")])
        bench.driver.congested(B)
        assert bench.observer.links_lost == 0
        assert bench.driver.failure is None

    run(main)


def test_connect_dials() -> None:
    async def main(bench: Bench) -> None:
        bench.machine.on(Congested, lambda _: [Connect(A, "ws://a")])
        bench.driver.congested(B)
        assert bench.transport.dialled == [(A, "ws://a")]

    run(main)


def test_a_control_message_is_sent_if_there_is_a_link() -> None:
    async def main(bench: Bench) -> None:
        (wire,) = bench.link(A)
        farewell, report = Leave(PART), Report(PART, delivered=7)
        bench.machine.on(Congested, lambda _: [Send(A, farewell), Send(B, farewell)])
        bench.driver.congested(B)
        assert bench.driver.say(A, report)
        assert not bench.driver.say(B, report)
        assert [codec.decode(packet) for packet in wire.sent] == [farewell, report]
        assert bench.observer.metrics.bytes_out == sum(map(len, wire.sent))

    run(main)


def test_a_frame_is_packed_once_for_each_route() -> None:
    async def main(bench: Bench) -> None:
        wires = bench.link(A, B, C)
        frame = Chain(SIGNERS[5]).frame(b"hello")
        of_frame = head(frame)
        near, far = b"\1", b"\2"
        branches = [(A, near), (B, near), (NODES[9], far), (C, far)]
        bench.machine.on(Congested, lambda _: [Forward(200, of_frame, branches, frame)])
        bench.driver.congested(A)
        first, second, third = (wire.sent[0] for wire in wires)
        assert first is second
        assert first == codec.carry_head(200, near) + frame
        assert third == codec.carry_head(200, far) + frame
        assert [len(wire.sent) for wire in wires] == [1, 1, 1]
        assert bench.counted()["dropped"] == {"no-link": 1}
        assert bench.observer.metrics.bytes_out == 3 * len(first)

    run(main)


def test_what_is_fed_at_once_leaves_at_once_and_nothing_after_it() -> None:
    async def main(bench: Bench) -> None:
        _, wire = bench.link(A, B)
        frame = Chain(SIGNERS[5]).frame(b"hello")
        sent = [Forward(1, head(frame), [(B, b"\2")], frame), Outcome(1, "sent")]
        bench.machine.on(Congested, lambda _: sent)
        bench.driver.feed_at_once(Congested(A))
        in_order = [Congested(A), ("sent", B), "hastened", Outcome(1, "sent")]
        assert bench.log == in_order
        bench.driver.feed(Congested(A))
        assert bench.log[4:] == [each for each in in_order if each != "hastened"]
        bench.log.clear()
        bench.machine.on(Writable, lambda _: sent[1:])
        wire.on_send = lambda: bench.driver.feed_at_once(Writable(A))  # while another is handled
        bench.driver.feed(Congested(A))
        assert bench.log == [*in_order, Writable(A), Outcome(1, "sent")]
        wire.on_send = None
        bench.log.clear()
        bench.driver.feed(Congested(A))
        assert "hastened" not in bench.log

    run(main)


def test_what_is_first_hand_leaves_at_once_and_before_what_is_said_after_it() -> None:
    async def main(bench: Bench) -> None:
        bench.link(A, B)
        frame = Chain(SIGNERS[5]).frame(b"hello")
        branches, word = [(B, b"\2")], Send(A, Leave(PART))
        first_hand = Forward(1, head(frame), branches, frame, True)
        by_others = Forward(1, head(frame), branches, frame)
        bench.machine.on(Congested, lambda _: [first_hand, word])
        bench.machine.on(Writable, lambda _: [by_others, word])
        bench.driver.congested(A)
        assert bench.log[-4:] == [Congested(A), ("sent", B), "hastened", ("sent", A)]
        bench.driver.writable(A)
        assert bench.log[-3:] == [Writable(A), ("sent", B), ("sent", A)]

    run(main)


def test_a_link_that_ends_while_it_is_written_to_does_not_stop_the_others() -> None:
    async def main(bench: Bench) -> None:
        wire_a, wire_b = bench.link(A, B)
        wire_a.on_send = lambda: bench.driver.link_down(B, "broken")
        frame = Chain(SIGNERS[5]).frame(b"hello")
        of_frame = head(frame)
        branches = [(A, b"\1"), (B, b"\1")]
        bench.machine.on(Congested, lambda _: [Forward(200, of_frame, branches, frame)])
        bench.driver.congested(A)
        assert (len(wire_a.sent), len(wire_b.sent)) == (1, 0)
        assert bench.counted()["dropped"] == {"no-link": 1}
        assert bench.log[-1] == LinkDown(B, "broken")

    run(main)


def test_what_a_neighbour_has_sent_is_taken_back_unless_somebody_traces() -> None:
    async def main(bench: Bench) -> None:
        wire_a, wire_b = bench.link(A, B)
        bench.machine.on(Congested, lambda _: [Copies(part_key(PART), A, [b"one", b"two"])])
        bench.driver.congested(C)
        assert (wire_a.withdrawn, wire_b.withdrawn) == ([b"one", b"two"], [])
        assert bench.counted()["duplicates"] == 2
        bench.observer.record(START, lambda record: None)
        bench.driver.congested(C)
        assert wire_a.withdrawn == [b"one", b"two"]
        assert bench.counted()["duplicates"] == 4

    run(main)
