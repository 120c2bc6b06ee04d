"""The made-up fleet: as large as the real one, plausible, and the same for the same seed."""

import json
from collections import Counter
from itertools import islice, pairwise, takewhile

import pytest

from anabranch.core.errors import LocalError
from anabranch.live.mock.vehicles import (
    ACCELERATION_MS2,
    EARLY_S,
    KEY,
    LATEST_START_MS,
    MAX_RATE,
    MEAN_SIZE_BYTES,
    RATE,
    START_MS,
    Message,
    encode,
    vehicles,
)

FLEET = round(RATE)


def first_seconds(seconds: float, **options: float) -> list[tuple[float, Message]]:
    run = vehicles(**options)  # type: ignore[arg-type]
    return list(takewhile(lambda timed: timed[0] < seconds, run))


@pytest.mark.parametrize("seed", [1, 2, 77])
def test_the_fleet_is_as_busy_and_as_talkative_as_helsinki(seed: int) -> None:
    run = first_seconds(20, seed=seed)
    assert len(run) / 20 == pytest.approx(RATE, rel=0.01)
    sizes = [len(encode(message)) for _, message in run]
    assert sum(sizes) / len(sizes) == pytest.approx(MEAN_SIZE_BYTES, rel=0.01)
    assert len(set(sizes)) > 10
    modes = {message["mode"] for _, message in run}
    assert modes == {"bus", "tram", "metro", "train"}


def test_every_vehicle_reports_once_a_second_and_not_all_at_once() -> None:
    run = first_seconds(10)
    offsets = [offset for offset, _ in run]
    assert offsets == sorted(offsets)
    assert set(Counter(message[KEY] for _, message in run).values()) == {10}
    tenths = Counter(int(offset * 10) for offset in offsets)
    assert len(tenths) == 100
    assert max(tenths.values()) < 1.1 * RATE / 10


def test_the_same_seed_gives_the_same_bytes() -> None:
    first, again = (
        b"\n".join(encode(message) for _, message in islice(vehicles(3), 5_000)) for _ in range(2)
    )
    assert first == again
    other = b"\n".join(encode(message) for _, message in islice(vehicles(4), 5_000))
    assert other != first


def test_another_start_changes_times_and_nothing_else() -> None:
    one, two = (
        [message for _, message in islice(vehicles(start_ms=start_ms), 2_000)]
        for start_ms in (START_MS, START_MS + 86_400_000)
    )
    assert [message["at"][:10] for message in (one[0], two[0])] == ["2020-09-13", "2020-09-14"]
    for message in (*one, *two):
        del message["at"], message["journey"]
    assert one == two


def test_messages_say_when_they_were_made() -> None:
    (_, first), *_, (offset, last) = islice(vehicles(), 3 * FLEET)
    assert first["at"].startswith("2020-09-13T12:26:40.0")
    assert 2 < offset < 3
    assert last["at"].startswith("2020-09-13T12:26:42.9")


def tracks(seconds: float) -> dict[str, list[Message]]:
    found: dict[str, list[Message]] = {}
    for _, message in first_seconds(seconds, rate=60.0):
        found.setdefault(message[KEY], []).append(message)
    return found


def test_vehicles_are_in_helsinki_and_move_as_far_as_they_say() -> None:
    moved = 0
    for track in tracks(300).values():
        for before, after in pairwise(track):
            assert 60.14 < after["lat"] < 60.28
            assert 24.84 < after["lon"] < 25.16
            assert 0 <= after["heading"] < 360
            assert after["sequence"] == before["sequence"] + 1
            if after["direction"] != before["direction"]:
                assert after["odometer_m"] < before["odometer_m"]
                continue
            north_m = (after["lat"] - before["lat"]) * 111_320
            east_m = (after["lon"] - before["lon"]) * 55_400
            driven_m = after["odometer_m"] - before["odometer_m"]
            assert 0 <= driven_m <= 40
            # Both positions are some metres off, and so is a straight line at a corner.
            assert abs((north_m**2 + east_m**2) ** 0.5 - driven_m) < 20
            assert abs(after["accel_ms2"]) <= 3 * ACCELERATION_MS2
            moved += driven_m
    assert moved > 60 * 300 * 3


def test_vehicles_stop_with_open_doors_and_go_on() -> None:
    runs = tracks(300)
    visits = 0
    for track in runs.values():
        for before, after in pairwise(track):
            assert after["doors_open"] is (after["stop"] is not None)
            assert not (after["doors_open"] and after["speed_ms"])
            visits += after["doors_open"] and not before["doors_open"]
            assert after["delay_s"] >= -EARLY_S
            assert 0 <= after["occupancy"] <= 100
    assert visits > 2 * len(runs)
    assert any(track[0]["direction"] != track[-1]["direction"] for track in runs.values())


@pytest.mark.parametrize("rate", [0.2, 1.0, 1.4, 7.5])
def test_a_small_fleet_keeps_its_rate(rate: float) -> None:
    run = first_seconds(200, rate=rate)
    assert len(run) == pytest.approx(200 * rate, abs=1)
    assert len({message[KEY] for _, message in run}) == max(1, round(rate))


def test_a_message_is_plain_json() -> None:
    for _, message in islice(vehicles(), FLEET):
        assert json.loads(encode(message)) == message
        assert b"\n" not in encode(message)


@pytest.mark.parametrize("rate", [0.0, -1.0, MAX_RATE + 1, float("nan"), float("inf")])
def test_an_impossible_rate_is_refused_at_once(rate: float) -> None:
    with pytest.raises(LocalError, match="choose more than 0"):
        vehicles(rate=rate)


@pytest.mark.parametrize("start_ms", [-1, LATEST_START_MS + 1])
def test_an_impossible_start_is_refused_at_once(start_ms: int) -> None:
    with pytest.raises(LocalError, match="choose milliseconds"):
        vehicles(start_ms=start_ms)
    assert next(vehicles(rate=1.0, start_ms=LATEST_START_MS))
    assert next(vehicles(rate=1.0, start_ms=0))
