"""What a reader is told of messages that did not come, and that there are too many readers."""

import msgspec
import pytest

from anabranch.core import frames
from anabranch.core.machine import HistoryEnded, Missed
from anabranch.core.reader import TOO_MANY
from anabranch.live.errors import AnabranchError
from anabranch.live.message import gap_of
from anabranch.live.subscription import MAX_WAITING_GAPS, Plan
from live.test_subscription import CHAIN, NOW, run, started
from live.test_subscription_history import PAST, Past
from machines import PART

OTHER_CHAIN = bytes(len(CHAIN))


def missed(after: int, before: int, chain: bytes = CHAIN, reason: str = "not-found") -> Missed:
    return Missed(1, PART, type(CHAIN)(chain), after << 20, before << 20, reason)


def test_all_gaps_before_a_message_are_told_with_it() -> None:
    async def main() -> None:
        reader = Past(Plan(True))
        gaps = [missed(1, 5), missed(2, 3, OTHER_CHAIN), missed(7, 9), missed(9, 11, reason="full")]
        told = tuple(map(gap_of, gaps))
        async with reader.subscription as messages:
            for gap in gaps:
                messages.put_gap(gap)
            reader.give(b"a", b"b")
            first, second = await reader.read(2)
            assert (first.gaps, first.gap) == (told, told[0])
            assert (second.gaps, second.gap) == ((), None)

    run(main)


def test_what_is_to_be_told_waits_for_a_message_that_can_be_read() -> None:
    async def main() -> None:
        reader = Past(Plan(True), buffer=2)
        async with reader.subscription as messages:
            reader.give(b"dropped")
            messages.put_gap(missed(1, 5))
            reader.give(b"trimmed", skip=1)
            spoiled = msgspec.structs.replace(reader.deliver(b"spoiled"), to=1)
            spoiled.frame = spoiled.frame[: frames.HEAD.size] + b"\xc1"
            messages.put(spoiled, NOW)
            messages.wake()
            reading = await started(reader.read(1))  # which goes through all of that
            reader.give(b"a")
            (message,) = await reading
            assert (message.content, message.missed) == (b"a", 1)
            assert message.gaps == (gap_of(missed(1, 5)),)

    run(main)


def test_gaps_of_a_chain_with_nothing_between_them_are_one() -> None:
    async def main() -> None:
        reader = Past(Plan(True))
        async with reader.subscription as messages:
            for number in range(2 * MAX_WAITING_GAPS):
                messages.put_gap(missed(number, number + 1))
            reader.give(b"trimmed", skip=1)
            messages.put_gap(missed(2 * MAX_WAITING_GAPS, 2 * MAX_WAITING_GAPS + 1))
            reader.give(b"a")
            (message,) = await reader.read(1)
            assert message.gaps == (gap_of(missed(0, 2 * MAX_WAITING_GAPS + 1)),)
            assert messages.gaps == 2 * MAX_WAITING_GAPS + 1

    run(main)


def test_gaps_that_wait_are_bounded_and_counted_all() -> None:
    async def main() -> None:
        reader = Past(Plan(True), buffer=1)
        async with reader.subscription as messages:
            for number in range(MAX_WAITING_GAPS + 100):
                messages.put_gap(missed(number, number, bytes([number % 2]) * len(CHAIN)))
                reader.give(b"%d" % number)
            assert messages.gaps == MAX_WAITING_GAPS + 100
            (message,) = await reader.read(1)
            assert len(message.gaps) == MAX_WAITING_GAPS
            messages.put_gap(missed(1, 2))  # now there is room again
            reader.give(b"a")
            (message,) = await reader.read(1)
            assert len(message.gaps) == 1

    run(main)


@pytest.mark.parametrize("plan", [Plan(True), Plan(True, PAST), Plan(True, PAST, live=False)])
def test_one_reader_too_many_is_told_so(plan: Plan) -> None:
    async def main() -> None:
        reader = Past(plan)
        async with reader.subscription as messages:
            messages.put_end(HistoryEnded(1, TOO_MANY))
            assert reader.left == [messages]
            with pytest.raises(AnabranchError, match=r"at most 1000 readers.*close some"):
                await reader.rest()

    run(main)
