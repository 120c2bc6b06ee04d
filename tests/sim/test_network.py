"""What befalls a packet is a function of the faults, the lane and the randomness."""

import random
import statistics

import pytest

from anabranch.core.ids import NodeId
from anabranch.sim.network import Constant, Lane, PacketFaults, Plane, SimNode, arrivals

NOW = 100.0


class _Idle:
    wakeup_at = None

    def handle(self, event: object, now: float) -> list[object]:
        return []

    def sizes(self) -> dict[str, tuple[int, int]]:
        return {}


def lane() -> Lane:
    a, b = (SimNode(NodeId(bytes([i]) * 20), i, _Idle()) for i in range(2))
    return Lane(a, b, 0.01)


def test_without_faults_a_packet_arrives_once_after_the_delay() -> None:
    assert arrivals(lane(), 300, NOW, PacketFaults(), random.Random(1)) == [NOW + 0.01]


@pytest.mark.parametrize(
    ("faults", "copies"),
    [
        (PacketFaults(loss=1.0), 0),
        (PacketFaults(duplication=1.0), 2),
    ],
)
def test_certain_loss_and_certain_duplication(faults: PacketFaults, copies: int) -> None:
    assert len(arrivals(lane(), 300, NOW, faults, random.Random(1))) == copies


def test_loss_is_a_probability() -> None:
    rng, faults = random.Random(1), PacketFaults(loss=0.25)
    arrived = sum(len(arrivals(lane(), 1, NOW, faults, rng)) for _ in range(4000))
    assert 2900 < arrived < 3100


def test_jitter_lets_packets_overtake_each_other() -> None:
    rng, faults = random.Random(1), PacketFaults(jitter_ms=50)
    times = [arrivals(lane(), 1, NOW, faults, rng)[0] for _ in range(50)]
    assert all(NOW + 0.01 <= at <= NOW + 0.06 for at in times)
    assert times != sorted(times)


def test_a_deviation_is_normal_and_in_percent_of_the_delay() -> None:
    rng, faults = random.Random(1), PacketFaults(deviation_percent=5)
    times = [arrivals(lane(), 1, NOW, faults, rng)[0] - NOW for _ in range(4000)]
    assert statistics.mean(times) == pytest.approx(0.01, rel=0.005)
    assert statistics.stdev(times) == pytest.approx(0.0005, rel=0.05)
    wild = PacketFaults(deviation_percent=500)
    assert min(arrivals(lane(), 1, NOW, wild, rng)[0] for _ in range(100)) == NOW  # never early


def test_a_spread_makes_packets_faster_or_slower_and_never_early() -> None:
    rng, faults = random.Random(1), PacketFaults(spread_ms=6)
    times = [arrivals(lane(), 1, NOW, faults, rng)[0] - NOW for _ in range(1000)]
    assert all(0.004 <= after <= 0.016 for after in times)
    assert sum(times) / 1000 == pytest.approx(0.01, rel=0.03)
    assert times != sorted(times)
    wide = PacketFaults(spread_ms=100)
    assert min(arrivals(lane(), 1, NOW, wide, rng)[0] for _ in range(100)) == NOW


def test_in_order_a_packet_waits_for_those_before_it_on_its_lane() -> None:
    rng, faults = random.Random(1), PacketFaults(spread_ms=6, in_order=True)
    busy, other = lane(), lane()
    times = [arrivals(busy, 1, NOW, faults, rng)[0] for _ in range(50)]
    assert times == sorted(times)
    assert len(set(times)) > 1
    assert min(arrivals(other, 1, NOW, faults, rng)[0] for _ in range(3)) < times[-1]


def test_reordering_holds_up_some_packets() -> None:
    rng, faults = random.Random(1), PacketFaults(reordering=0.5, reordering_ms=40)
    times = {round(arrivals(lane(), 1, NOW, faults, rng)[0], 6) for _ in range(50)}
    assert times == {NOW + 0.01, NOW + 0.05}


def test_bandwidth_makes_packets_wait_for_each_other() -> None:
    faults = PacketFaults(bandwidth_kbps=1)  # a kilobyte a second
    busy = lane()
    first, second = (arrivals(busy, 500, NOW, faults, random.Random(1))[0] for _ in range(2))
    assert (first, second) == pytest.approx((NOW + 0.51, NOW + 1.01))
    assert busy.waiting_s(NOW) == pytest.approx(1.0)


def test_a_clogged_lane_lets_nothing_leave_before_its_time() -> None:
    clogged = lane()
    clogged.sent_until = NOW + 2
    assert arrivals(clogged, 1, NOW, PacketFaults(), random.Random(1)) == [NOW + 2.01]


def test_a_partition_loses_everything() -> None:
    blocked = lane()
    blocked.blocked = True
    assert arrivals(blocked, 1, NOW, PacketFaults(), random.Random(1)) == []


def test_underlays() -> None:
    assert Constant(20).delay_s(3, 4) == 0.02
    plane = Plane(10, base_ms=1, across_ms=100, rng=random.Random(1))
    for a in range(10):
        assert plane.delay_s(a, a) == 0.001
        for b in range(10):
            assert plane.delay_s(a, b) == plane.delay_s(b, a) <= 0.001 + 0.1 * 2**0.5
