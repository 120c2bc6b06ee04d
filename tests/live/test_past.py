"""What users say of the past, as storage nodes are asked."""

from datetime import UTC, datetime, timedelta

import pytest

from anabranch.core.errors import LocalError
from anabranch.core.ids import chain_key, number_of, parse_node
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from anabranch.live.past import of_offsets, of_time

ANN = "0x" + "0a" * 20
NOW = 1_800_000_000.0


def test_everything_is_wanted_unless_something_is_said() -> None:
    assert of_time(NOW) == Selection(by_number=True)
    assert of_offsets() == Selection()


def test_both_ends_of_a_time_are_included() -> None:
    wanted = of_time(NOW, 1_000, 2_000)
    assert wanted.after == number_of(1_000, 0) - 1
    assert wanted.upto + 1 == number_of(2_001, 0)


def test_times_are_moments_or_so_long_ago_or_milliseconds() -> None:
    at = datetime.fromtimestamp(NOW - 60, UTC)
    assert of_time(NOW, at) == of_time(NOW, timedelta(minutes=1)) == of_time(NOW, (NOW - 60) * 1000)


def test_a_publisher_or_one_of_its_chains() -> None:
    assert of_time(NOW, publisher=ANN).whose == parse_node(ANN)
    assert of_offsets(publisher=ANN, chain="00" * 7 + "05").whose == chain_key(parse_node(ANN), 5)


def test_offsets_and_the_last_of_them() -> None:
    assert of_offsets(3, 9, last=2) == Selection(start=3, end=9, last=2)
    assert of_offsets(3, None).end == MAX_NUMBER


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: of_time(NOW, 2_000, 1_000), "earlier one first"),
        (lambda: of_time(NOW, -1), "outside of all times"),
        (lambda: of_time(NOW, "yesterday"), "is no time"),
        (lambda: of_time(NOW, True), "is no time"),
        (lambda: of_time(NOW, datetime(2026, 1, 1)), "time zone"),  # noqa: DTZ001
        (lambda: of_time(NOW, last=0), "from 1 to"),
        (lambda: of_time(NOW, last="5"), "from 1 to"),
        (lambda: of_time(NOW, chain="00" * 8), "name the publisher"),
        (lambda: of_time(NOW, publisher=ANN, chain="xyz"), "hexadecimal"),
        (lambda: of_time(NOW, publisher="ann"), "40 hexadecimal"),
        (lambda: of_offsets(5, 5), "lower one first"),
        (lambda: of_offsets(-1), "from 0 on"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(call: object, text: str) -> None:
    with pytest.raises(LocalError, match=text):
        call()  # type: ignore[operator]
