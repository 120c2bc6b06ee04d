"""A city's buses, trams, trains and metros, each of which says once a second where it is.

The size of the real thing: the vehicle positions of the Helsinki region, observed over 24 hours,
were 653 messages a second of 308 bytes on average (paper 000, section III). The vehicles here run
on made-up lines between real places, stop where they should and arrive late.

The messages are a function of seed, rate and start time, byte for byte; nothing reads a clock.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import MAX_TIMESTAMP_MS

RATE = 653.0  # messages a second, and so many vehicles
MEAN_SIZE_BYTES = 308  # of an encoded message
MAX_RATE = 100_000.0
START_MS = 1_600_000_000_000  # a Sunday in September 2020
LATEST_START_MS = MAX_TIMESTAMP_MS // 2  # leaves a century for the run
KEY = "vehicle"  # the field to choose a message's partition by

Message = dict[str, Any]

PLACES = {
    "Arabia": (60.2060, 24.9790),
    "Haaga": (60.2180, 24.8950),
    "Hakaniemi": (60.1790, 24.9500),
    "Herttoniemi": (60.1950, 25.0310),
    "Itäkeskus": (60.2100, 25.0780),
    "Kamppi": (60.1690, 24.9310),
    "Kannelmäki": (60.2395, 24.8800),
    "Kontula": (60.2360, 25.0830),
    "Lauttasaari": (60.1590, 24.8750),
    "Malmi": (60.2510, 25.0110),
    "Meilahti": (60.1890, 24.9050),
    "Munkkiniemi": (60.1980, 24.8760),
    "Oulunkylä": (60.2290, 24.9670),
    "Pasila": (60.1985, 24.9335),
    "Pitäjänmäki": (60.2230, 24.8590),
    "Rautatientori": (60.1710, 24.9440),
    "Ruoholahti": (60.1635, 24.9140),
    "Tapanila": (60.2640, 25.0290),
    "Töölö": (60.1800, 24.9250),
    "Viikki": (60.2250, 25.0200),
    "Vuosaari": (60.2075, 25.1440),
}
METRES_PER_LAT = 111_320.0
METRES_PER_LON = 55_400.0  # at 60.2 degrees north
PER_LINE = 8  # vehicles
STOPS_APART = 1_000_000  # between the numbers of a line's stops in its two directions
SWAY_M = 60.0  # streets are not straight
GPS_ERROR_M = 2.0
ACCELERATION_MS2 = 1.0
STEP_S = 1.0  # the longest step in which a vehicle is moved
NEAR_M = 2.0  # to a stop: it stands there
EARLY_S = 30.0  # how early a vehicle may leave a stop


class Kind(msgspec.Struct, frozen=True):
    """A way of travelling."""

    mode: str
    lines: int  # of every sixteen
    cruise_ms: float
    between_stops_m: float
    dwell_s: float


KINDS = (
    Kind("bus", 11, 11.0, 420.0, 14.0),
    Kind("tram", 3, 9.0, 380.0, 18.0),
    Kind("metro", 1, 19.0, 1500.0, 25.0),
    Kind("train", 1, 24.0, 2200.0, 35.0),
)
MIX = [kind for kind in KINDS for _ in range(kind.lines)]


class Way:
    """The way in one direction: how far along each stop lies, and which way it goes from there."""

    def __init__(self, points: list[tuple[float, float]]) -> None:
        self.points = points
        self.at_m = [0.0]
        self.headings: list[int] = []
        for (lat, lon), (to_lat, to_lon) in pairwise(points):
            north_m = (to_lat - lat) * METRES_PER_LAT
            east_m = (to_lon - lon) * METRES_PER_LON
            self.at_m.append(self.at_m[-1] + math.hypot(north_m, east_m))
            self.headings.append(round(math.degrees(math.atan2(east_m, north_m))) % 360)

    def place(self, along_m: float) -> tuple[float, float, int]:
        """Return latitude, longitude and heading so many metres along."""
        leg = min(bisect_right(self.at_m, along_m), len(self.headings)) - 1
        share = (along_m - self.at_m[leg]) / (self.at_m[leg + 1] - self.at_m[leg])
        (lat, lon), (to_lat, to_lon) = self.points[leg], self.points[leg + 1]
        return lat + (to_lat - lat) * share, lon + (to_lon - lon) * share, self.headings[leg]


class Line:
    """One line: its way through the city, with a stop at every corner."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.kind = MIX[number % len(MIX)]
        self.number = number
        self.operator = rng.randrange(1, 99)
        self.ends = rng.sample(sorted(PLACES), 2)
        via = rng.choice([place for place in sorted(PLACES) if place not in self.ends])
        corners = [PLACES[self.ends[0]], PLACES[via], PLACES[self.ends[1]]]
        points = [corners[0]]
        for (lat, lon), (to_lat, to_lon) in pairwise(corners):
            metres = math.hypot((to_lat - lat) * METRES_PER_LAT, (to_lon - lon) * METRES_PER_LON)
            legs = max(1, round(metres / self.kind.between_stops_m))
            for leg in range(1, legs + 1):
                sway_m = rng.gauss(0, SWAY_M) if leg < legs else 0.0
                points.append(
                    (
                        lat + (to_lat - lat) * leg / legs + sway_m / METRES_PER_LAT,
                        lon + (to_lon - lon) * leg / legs + sway_m / METRES_PER_LON,
                    )
                )
        self.ways = {1: Way(points), 2: Way(points[::-1])}
        self.stops_from = {1: rng.randrange(1_000_000, 5_000_000)}
        self.stops_from[2] = self.stops_from[1] + STOPS_APART


class Vehicle:
    """One vehicle, to and fro on its line."""

    def __init__(self, number: int, line: Line, rng: random.Random, start_s: float) -> None:
        self.name = f"{line.operator:02}/{number:05}"
        self.line = line
        self.speed_ms = self.accel_ms2 = 0.0
        self.late_s = max(-EARLY_S, rng.gauss(60, 90))
        self.passengers = rng.randrange(0, 80)
        self.reports = rng.randrange(1000, 5000)  # it has been out for a while
        self.now_s = start_s
        self._depart(rng.choice((1, 2)), rng)
        self.next = rng.randrange(1, len(self.way.at_m))
        self.along_m = rng.uniform(self.way.at_m[self.next - 1], self.way.at_m[self.next])
        self.started_s -= self.along_m / line.kind.cruise_ms * 2
        self.dwell_s = 0.0

    @property
    def way(self) -> Way:
        """The way it goes now."""
        return self.line.ways[self.direction]

    def advance(self, seconds: float, rng: random.Random) -> None:
        """Let time pass: drive, brake, stand at a stop, turn back at the end."""
        before_ms, left_s = self.speed_ms, seconds
        while left_s > 0:
            step_s = min(left_s, STEP_S)
            left_s -= step_s
            self.now_s += step_s
            self.leg_s += step_s
            if self.dwell_s > 0:
                self.dwell_s -= step_s
                if self.dwell_s <= 0:
                    self._leave_stop(rng)
            else:
                self._drive(step_s, rng)
        self.accel_ms2 = (self.speed_ms - before_ms) / seconds

    def _drive(self, step_s: float, rng: random.Random) -> None:
        left_m = self.way.at_m[self.next] - self.along_m
        change_ms = ACCELERATION_MS2 * step_s
        # From this speed it can still stop in time when this step is over.
        stopping_ms = math.sqrt(change_ms**2 + 2 * ACCELERATION_MS2 * left_m) - change_ms
        wanted_ms = min(self.cruise_ms, stopping_ms)
        self.speed_ms += max(-change_ms, min(change_ms, wanted_ms - self.speed_ms))
        self.along_m += self.speed_ms * step_s
        if self.along_m < self.way.at_m[self.next] - NEAR_M:
            return
        self.along_m, self.speed_ms = self.way.at_m[self.next], 0.0
        kind = self.line.kind
        self.passengers = max(0, min(100, self.passengers + rng.randrange(-9, 10)))
        self.dwell_s = kind.dwell_s * rng.uniform(0.5, 1.7)
        leg_m = self.along_m - self.way.at_m[self.next - 1]
        planned_s = leg_m / kind.cruise_ms + kind.cruise_ms / ACCELERATION_MS2 + kind.dwell_s
        self.late_s += self.leg_s + self.dwell_s - planned_s
        if self.late_s < -EARLY_S:  # it waits for its time
            self.dwell_s -= self.late_s + EARLY_S
            self.late_s = -EARLY_S

    def _leave_stop(self, rng: random.Random) -> None:
        self.leg_s = self.dwell_s = 0.0
        # Who is late drives faster, within reason, and so the delays of a line stay bounded.
        haste = 1.0 + max(-0.1, min(0.3, self.late_s / 600))
        self.cruise_ms = self.line.kind.cruise_ms * haste * rng.uniform(0.85, 1.1)
        self.next += 1
        if self.next == len(self.way.at_m):
            self._depart(3 - self.direction, rng)

    def _depart(self, direction: int, rng: random.Random) -> None:
        """Begin a journey."""
        self.direction = direction
        self.started_s = self.now_s
        self.along_m = self.leg_s = 0.0
        self.next = 1
        self.cruise_ms = self.line.kind.cruise_ms * rng.uniform(0.85, 1.1)

    def report(self, at_ms: int, rng: random.Random) -> Message:
        """Say where it is."""
        lat, lon, heading = self.way.place(self.along_m)
        standing = self.dwell_s > 0
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        started = datetime.fromtimestamp(self.started_s, UTC)
        self.reports += 1
        return {
            KEY: self.name,
            "mode": self.line.kind.mode,
            "line": self.line.number,
            "direction": self.direction,
            "to": self.line.ends[2 - self.direction],
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "lat": round(lat + rng.gauss(0, GPS_ERROR_M) / METRES_PER_LAT, 6),
            "lon": round(lon + rng.gauss(0, GPS_ERROR_M) / METRES_PER_LON, 6),
            "heading": heading,
            "speed_ms": round(self.speed_ms, 2),
            "accel_ms2": round(self.accel_ms2, 2),
            "delay_s": round(self.late_s),
            "doors_open": standing,
            "stop": self.line.stops_from[self.direction] + self.next if standing else None,
            "odometer_m": round(self.along_m),
            "occupancy": self.passengers,
            "journey": started.strftime("%Y-%m-%dT%H:%M"),
            "sequence": self.reports,
        }


class Vehicles:
    """A fleet: as many vehicles as there are messages a second."""

    def __init__(self, seed: int = 1, rate: float = RATE, start_ms: int = START_MS) -> None:
        if not 0 < rate <= MAX_RATE:
            raise LocalError(
                f"rate {rate:g}: choose more than 0 and at most {MAX_RATE:.0f} a second"
            )
        if not 0 <= start_ms <= LATEST_START_MS:
            raise LocalError(
                f"start-ms {start_ms}: choose milliseconds from 0 to {LATEST_START_MS}"
            )
        self.rate = rate
        self.start_ms = start_ms
        self._rng = random.Random(seed)
        count = max(1, round(rate))
        lines = [Line(number, self._rng) for number in range(1, 2 + count // PER_LINE)]
        self.fleet = [
            Vehicle(number, lines[number % len(lines)], self._rng, start_ms / 1000)
            for number in range(count)
        ]

    def __iter__(self) -> Iterator[tuple[float, Message]]:
        """Go on with the run: seconds since its start, and a message, without end."""
        rng, turn = self._rng, 0
        begun_s = self.start_ms / 1000
        order = rng.sample(self.fleet, len(self.fleet))  # neighbours in time are strangers in space
        while True:
            for vehicle in order:
                offset_s = (turn + rng.random()) / self.rate
                turn += 1
                vehicle.advance(begun_s + offset_s - vehicle.now_s, rng)
                yield offset_s, vehicle.report(self.start_ms + int(offset_s * 1000), rng)


def vehicles(
    seed: int = 1, rate: float = RATE, start_ms: int = START_MS
) -> Iterator[tuple[float, Message]]:
    """Return an endless run: seconds since `start_ms`, and a message, in the order of time."""
    return iter(Vehicles(seed, rate, start_ms))


def encode(message: Message) -> bytes:
    """Return a message as JSON without spaces, as it is counted and published."""
    return msgspec.json.encode(message)
