"""The options of the source: what they mean, and what is said when they mean nothing."""

from pathlib import Path

import pytest

from anabranch.core.errors import LocalError
from anabranch.core.ids import show
from anabranch.live.keys import load_key, new_key, save_key
from anabranch.spark.options import (
    EARLIEST,
    LATEST,
    SOURCE_OPTIONS,
    Limit,
    SourceOptions,
    parse_options,
)

ADDRESS = "anabranch://" + "ab" * 32 + "@127.0.0.1:7700"
OTHER = "0x" + "cd" * 20


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    save_key(tmp_path / "me.key", new_key()[1])
    return tmp_path / "me.key"


def parse(key_file: Path, **options: str) -> SourceOptions:
    return parse_options({"network": ADDRESS, "keyFile": str(key_file), **options})


def test_what_is_not_said_has_a_default(key_file: Path) -> None:
    found = parse(key_file, subscribe="cars")
    assert found.assigned is None
    assert found.starting is None
    assert found.ending is None
    assert found.most_per_trigger is None
    assert found.least_partitions is None
    assert found.value_schema is None
    assert (found.fail_on_data_loss, found.verify, found.mode) == (True, False, "FAILFAST")


def test_a_path_alone_is_ones_own_stream(key_file: Path) -> None:
    me = show(load_key(key_file).node)
    found = parse(key_file, subscribe=f"cars, {OTHER}/trams ,cars")
    assert found.streams == (f"{me}/cars", f"{OTHER}/trams")


def test_names_of_options_are_not_case_sensitive(key_file: Path) -> None:
    found = parse(key_file, SUBSCRIBE="cars", failondataloss="False", Mode="permissive")
    assert (found.fail_on_data_loss, found.mode) == (False, "PERMISSIVE")


def test_partitions_can_be_assigned(key_file: Path) -> None:
    found = parse(key_file, assign=f'{{"{OTHER}/trams": [1, 0, 1]}}')
    assert found.assigned == {f"{OTHER}/trams": (1, 0)}
    assert found.streams == (f"{OTHER}/trams",)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"startingOffsets": "earliest"}, Limit(EARLIEST)),
        ({"startingOffsets": " Latest"}, Limit(LATEST)),
        ({"startingOffsets": f'{{"{OTHER}/a": {{"0": 12, "1": -2}}}}'}, {0: 12, 1: -2}),
        ({"startingTimestamp": "1700000000000"}, Limit(1_700_000_000_000, is_time=True)),
        (
            {"startingOffsetsByTimestamp": f'{{"{OTHER}/a": {{"0": 5}}}}'},
            Limit(each={f"{OTHER}/a#0": 5}, is_time=True),
        ),
        (  # as in Kafka's, one time for all counts before all others
            {"startingOffsets": "latest", "startingTimestamp": "3"},
            Limit(3, is_time=True),
        ),
    ],
)
def test_where_to_begin(
    key_file: Path, options: dict[str, str], limit: Limit | dict[int, int]
) -> None:
    if isinstance(limit, dict):
        limit = Limit(each={f"{OTHER}/a#{part}": offset for part, offset in limit.items()})
    assert parse(key_file, subscribe=f"{OTHER}/a", **options).starting == limit


def test_where_to_end(key_file: Path) -> None:
    assert parse(key_file, subscribe="a", endingOffsets="latest").ending == Limit(LATEST)
    found = parse(key_file, subscribe="a", endingTimestamp="9").ending
    assert found == Limit(9, is_time=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "say what to read: subscribe"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "subscribe or the option assign, not both"),
        ({"subscribe": "a,,b"}, "names no stream"),
        ({"subscribe": "a b"}, "is not a stream"),
        ({"assign": "[]"}, "the option assign is not right"),
        ({"assign": "{"}, "the option assign is not right"),
        ({"assign": '{"a": []}'}, "names no partition"),
        ({"assign": '{"a": [100]}'}, "partition 100 does not exist"),
        ({"subscribe": "a", "startingOffset": "latest"}, "no option 'startingoffset'"),
        ({"subscribe": "a", "startingOffsets": "first"}, "write earliest or latest"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "write latest, or"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "a number from -2"),
        ({"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}, "a number from -1"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"x": 1}}'}, "has the partition 'x'"),
        ({"subscribe": "a", "startingOffsets": '{"a": 1}'}, "startingOffsets is not right"),
        ({"subscribe": "a", "startingTimestamp": "soon"}, "startingTimestamp is 'soon'"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "a number from 1"),
        ({"subscribe": "a", "minPartitions": "-1"}, "a number from 1"),
        ({"subscribe": "a", "verify": "yes"}, "verify is 'yes': write true or false"),
        ({"subscribe": "a", "mode": "LAX"}, "mode is 'LAX': write failfast or"),
        ({"subscribe": "a", "key": "ab" * 32}, "a key does not belong into an option"),
    ],
)
def test_what_is_wrong_is_said(key_file: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(LocalError) as caught:
        parse(key_file, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_is_answered_with_the_known_ones(key_file: Path) -> None:
    with pytest.raises(LocalError) as caught:
        parse(key_file, subscribe="a", topic="b")
    assert all(name in str(caught.value) for name in SOURCE_OPTIONS)
