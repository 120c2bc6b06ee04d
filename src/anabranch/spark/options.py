"""What a reader of streams may ask for, in the words of Spark's Kafka source where it has them."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import MAX_PARTITIONS, MAX_TIMESTAMP_MS, show, stream_part
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.live.terms import full_name
from anabranch.spark.access import ACCESS_OPTIONS, Access, identity_of, parse_access

SOURCE_OPTIONS = (
    *("subscribe", "assign", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "maxOffsetsPerTrigger"),
    *("minPartitions", "failOnDataLoss", "verify", "valueSchema", "mode"),
    *ACCESS_OPTIONS,
)
EARLIEST, LATEST = -2, -1  # stand for offsets, as they do in Kafka
FAILFAST, PERMISSIVE, DROPMALFORMED = MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
MAX_TASKS = 100_000  # that can be asked for

T = TypeVar("T")


class Limit(msgspec.Struct, frozen=True):
    """Where reading begins or ends: at one place of every part, or at a place of each."""

    everywhere: int | None = None  # EARLIEST, LATEST, or a time
    each: dict[str, int] = {}  # by part, as `stream#partition`
    is_time: bool = False  # the numbers are milliseconds since 1970, and not offsets


class SourceOptions(msgspec.Struct, frozen=True):
    """What is read, from whom, and how."""

    access: Access
    streams: tuple[str, ...]
    assigned: dict[str, tuple[int, ...]] | None  # the partitions of each stream; None: all
    starting: Limit | None
    ending: Limit | None
    most_per_trigger: int | None
    least_partitions: int | None
    fail_on_data_loss: bool
    verify: bool
    value_schema: str | None
    mode: str


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Read the options of a source; whatever is wrong is said in one sentence."""
    given = {name.lower(): str(value) for name, value in options.items()}
    known = {name.lower(): name for name in SOURCE_OPTIONS}
    access = parse_access(given)
    for name in given:
        if name not in known:
            raise LocalError(
                f"there is no option {name!r}: the source has {', '.join(SOURCE_OPTIONS)}"
            )
    me = show(identity_of(access).node)
    streams, assigned = _streams(given, me)
    limits = _Limits(given, me)
    return SourceOptions(
        access=access,
        streams=streams,
        assigned=assigned,
        starting=limits.read("starting", (EARLIEST, LATEST)),
        ending=limits.read("ending", (LATEST,)),
        most_per_trigger=_number(given, "maxOffsetsPerTrigger", MAX_NUMBER),
        least_partitions=_number(given, "minPartitions", MAX_TASKS),
        fail_on_data_loss=_choice(given, "failOnDataLoss", _TRUTH, True),
        verify=_choice(given, "verify", _TRUTH, False),
        value_schema=given.get("valueschema"),
        mode=_choice(given, "mode", {mode.lower(): mode for mode in MODES}, FAILFAST),
    )


# --- Which streams ------------------------------------------------------------------------------


def _streams(
    given: Mapping[str, str], me: str
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]] | None]:
    if "subscribe" in given and "assign" in given:
        raise LocalError("give the option subscribe or the option assign, not both")
    if "subscribe" in given:
        names = [name.strip() for name in given["subscribe"].split(",")]
        if not all(names):
            raise LocalError("the option subscribe names no stream: write names, between commas")
        return tuple(dict.fromkeys(full_name(name, me) for name in names)), None
    if "assign" not in given:
        raise LocalError(
            "say what to read: subscribe = names of streams, or assign = their partitions as "
            'JSON, {"stream": [0, 1]}'
        )
    found = _decode(given, "assign", dict[str, tuple[int, ...]], '{"stream": [0, 1]}')
    if not found or not all(found.values()):
        raise LocalError('the option assign names no partition: write {"stream": [0, 1]}')
    assigned = {full_name(name, me): tuple(dict.fromkeys(found[name])) for name in found}
    for name, partitions in assigned.items():
        for partition in partitions:
            stream_part(name, partition)
    return tuple(assigned), assigned


# --- Where to begin and to end ------------------------------------------------------------------


class _Limits:
    """Reads where to begin or to end; of several options the later in this list counts."""

    def __init__(self, given: Mapping[str, str], me: str) -> None:
        self._given = given
        self._me = me

    def read(self, which: str, words: tuple[int, ...]) -> Limit | None:
        """Return what the options say; None if they say nothing."""
        time, times, offsets = (
            f"{which}{rest}" for rest in ("Timestamp", "OffsetsByTimestamp", "Offsets")
        )
        given = self._given
        if time.lower() in given:
            return Limit(_number(given, time, MAX_TIMESTAMP_MS, 0), is_time=True)
        if times.lower() in given:
            return Limit(each=self._each(times, 0, MAX_TIMESTAMP_MS), is_time=True)
        if offsets.lower() not in given:
            return None
        text = given[offsets.lower()].strip()
        if text.startswith("{"):
            return Limit(each=self._each(offsets, min(words), MAX_NUMBER))
        named = {_WORDS[word]: word for word in words}
        if text.lower() not in named:
            raise LocalError(
                f"the option {offsets} is {text[:60]!r}: write {' or '.join(named)}, or {_EXAMPLE}"
            )
        return Limit(named[text.lower()])

    def _each(self, name: str, least: int, most: int) -> dict[str, int]:
        found = _decode(self._given, name, dict[str, dict[str, int]], _EXAMPLE)
        each = {}
        for stream, numbers in found.items():
            for text, number in numbers.items():
                if not (text.isascii() and text.isdigit() and int(text) < MAX_PARTITIONS):
                    raise LocalError(f"the option {name} has the partition {text!r}: {_EXAMPLE}")
                if not least <= number <= most:
                    raise LocalError(
                        f"the option {name} has {number} for partition {text} of {stream}: write "
                        f"a number from {least} to {most}"
                    )
                each[f"{full_name(stream, self._me)}#{int(text)}"] = number
        return each


_EXAMPLE = '{"stream": {"0": 12, "1": 30}}'
_WORDS = {EARLIEST: "earliest", LATEST: "latest"}
_TRUTH = {"true": True, "false": False}


# --- Values -------------------------------------------------------------------------------------


def _decode(given: Mapping[str, str], name: str, kind: type[T], example: str) -> T:
    try:
        return msgspec.convert(json.loads(given[name.lower()]), kind)
    except (ValueError, RecursionError) as error:
        raise LocalError(f"the option {name} is not right ({error}): write {example}") from error


def _number(given: Mapping[str, str], name: str, most: int, least: int = 1) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise LocalError(
            f"the option {name} is {text[:60]!r}: write a number from {least} to {most}"
        )
    return int(text)


def _choice(given: Mapping[str, str], name: str, choices: Mapping[str, Any], default: T) -> T:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in choices:
        raise LocalError(
            f"the option {name} is {text[:60]!r}: write {' or '.join(map(str, choices))}"
        )
    found: T = choices[text.strip().lower()]
    return found
