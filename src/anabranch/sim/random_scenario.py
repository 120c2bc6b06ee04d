"""A scenario drawn from a seed: any size, any faults, any workload that a run can bear."""

import random

from anabranch.sim.byzantine import BYZANTINE
from anabranch.sim.disk_faults import NO_DISK_FAULTS, DiskFaults
from anabranch.sim.faithless import FAITHLESS
from anabranch.sim.faults import Faults
from anabranch.sim.lying_trackers import LYING
from anabranch.sim.network import PacketFaults
from anabranch.sim.scenario import Scenario


def random_scenario(seed: int, most_nodes: int = 24) -> Scenario:
    """Draw all options; most runs have most kinds of faults, some have few or none."""
    rng = random.Random(f"{seed}/options")
    like_tcp = random.Random(f"{seed}/order of packets")

    def maybe(value: float, chance: float = 0.5) -> float:
        return round(value, 3) if rng.random() < chance else 0.0

    nodes = rng.choice([1, 2, 3, 5, *range(4, most_nodes + 1)])
    packets = PacketFaults(
        loss=maybe(rng.uniform(0, 0.1)),
        duplication=maybe(rng.uniform(0, 0.1)),
        jitter_ms=maybe(rng.uniform(0, 50)),
        reordering=maybe(rng.uniform(0, 0.2)),
        bandwidth_kbps=maybe(rng.uniform(5, 100), 0.3),
        spread_ms=round(like_tcp.uniform(1, 50), 3) if like_tcp.random() < 0.3 else 0.0,
        in_order=like_tcp.random() < 0.3,
        deviation_percent=round(like_tcp.uniform(1, 20), 3) if like_tcp.random() < 0.3 else 0.0,
    )
    faults = Faults(
        packets=packets,
        crash_every_s=maybe(rng.uniform(1, 10)),
        crash_for_s=round(rng.uniform(0.1, 15), 3),
        churn_every_s=maybe(rng.uniform(1, 10)),
        churn_for_s=round(rng.uniform(0.1, 10), 3),
        tracker_crash_every_s=maybe(rng.uniform(4, 15), 0.4),
        tracker_crash_for_s=round(rng.uniform(0.1, 15), 3),
        partition_every_s=maybe(rng.uniform(5, 15), 0.4),
        partition_for_s=round(rng.uniform(0.5, 12), 3),
        clog_every_s=maybe(rng.uniform(0.5, 5), 0.4),
        clog_for_s=round(rng.uniform(0.1, 15), 3),
    )
    byzantine = {}
    if nodes >= 10 and rng.random() < 0.4:
        byzantine = {rng.choice(sorted(BYZANTINE)): rng.randint(1, max(1, nodes // 10))}
    return Scenario(
        name=f"random-{seed}",
        nodes=nodes,
        parts=rng.choice([1, 1, 1, 2, 3]),
        trackers=rng.choice([1, 1, 2, 3]),
        # In a ring, a peer that is cut off for its misdeeds takes messages on their way with it.
        degree=rng.choice([4, 4, 6] if byzantine else [2, 3, 4, 4, 4, 5, 6]),
        across_ms=round(rng.uniform(1, 150), 3),
        join_over_s=round(rng.uniform(0, 5), 3),
        run_for_s=round(rng.uniform(5, 20), 3),
        publishers=rng.randint(1, min(nodes, 4)),
        subscribers=rng.choice([0, 0, max(1, nodes // 2)]),
        messages_per_s=round(rng.uniform(0.5, 10), 3),
        messages_at_once=rng.choice([1, 1, 5, 40]),
        message_bytes=rng.choice([0, 10, 308, 2000]),
        faults=faults,
        byzantine=byzantine,
    )


def random_trust_scenario(seed: int, most_nodes: int = 12) -> Scenario:
    """Draw a network with a registry whose users, nodes and trackers are not all to be trusted."""
    rng = random.Random(f"{seed}/trust options")

    def maybe(value: float, chance: float = 0.5) -> float:
        return round(value, 3) if rng.random() < chance else 0.0

    nodes, trackers = rng.randint(3, most_nodes), rng.choice([1, 2, 2, 3, 3])
    faults = Faults(
        packets=PacketFaults(loss=maybe(rng.uniform(0, 0.05)), jitter_ms=maybe(rng.uniform(0, 50))),
        crash_every_s=maybe(rng.uniform(3, 15)),
        crash_for_s=round(rng.uniform(0.1, 15), 3),
        churn_every_s=maybe(rng.uniform(3, 15), 0.3),
        tracker_crash_every_s=maybe(rng.uniform(5, 15)),
        tracker_crash_for_s=round(rng.uniform(0.1, 20), 3),
        # Two trackers write at the same time once they have lost each other for ten seconds.
        partition_every_s=maybe(rng.uniform(5, 20), 0.6),
        partition_for_s=round(rng.uniform(5, 25), 3),
    )
    byzantine, lying = {}, {}
    if nodes >= 6 and rng.random() < 0.6:
        byzantine = {rng.choice(sorted(FAITHLESS)): rng.randint(1, nodes // 4)}
    if trackers > 1 and rng.random() < 0.5:
        lying = {rng.choice(sorted(LYING)): rng.randint(1, trackers - 1)}
    parts = rng.choice([1, 1, 2])
    return Scenario(
        name=f"random-trust-{seed}",
        nodes=nodes,
        parts=parts,
        trackers=trackers,
        across_ms=round(rng.uniform(1, 100), 3),
        join_over_s=round(rng.uniform(0, 3), 3),
        run_for_s=round(rng.uniform(10, 40), 3),
        # Who has found a tracker out, or thinks so, leaves it alone for a minute.
        settle_for_s=130.0 if trackers > 1 else 100.0,
        publishers=rng.randint(1, min(nodes, 4)),
        messages_per_s=round(rng.uniform(0.5, 2), 3),
        message_bytes=rng.choice([10, 40, 308]),
        faults=faults,
        byzantine=byzantine,
        registry=True,
        private=rng.randint(0 if parts > 1 else 1, parts),
        changes_per_s=round(rng.uniform(0.05, 1.0), 3),
        lying_trackers=lying,
    )


def random_storage_scenario(seed: int, most_nodes: int = 10) -> Scenario:
    """Draw a network that stores its streams, and whose storage nodes are killed under load."""
    rng = random.Random(f"{seed}/storage options")

    def maybe(value: float, chance: float = 0.5) -> float:
        return round(value, 3) if rng.random() < chance else 0.0

    nodes, storage = rng.randint(2, most_nodes), rng.choice([1, 2, 3, 3, 3, 3, 4, 5])
    packets = PacketFaults(
        loss=maybe(rng.uniform(0, 0.1)),
        duplication=maybe(rng.uniform(0, 0.1)),
        jitter_ms=maybe(rng.uniform(0, 50)),
        reordering=maybe(rng.uniform(0, 0.2)),
    )
    faults = Faults(
        packets=packets,
        crash_every_s=maybe(rng.uniform(3, 10)),
        crash_for_s=round(rng.uniform(0.1, 15), 3),
        churn_every_s=maybe(rng.uniform(3, 10), 0.3),
        tracker_crash_every_s=maybe(rng.uniform(4, 15), 0.3),
        storage_crash_every_s=maybe(rng.uniform(1, 6), 0.9),
        storage_crash_for_s=round(rng.uniform(0.1, 8), 3),
        disk_full_every_s=maybe(rng.uniform(4, 15), 0.3),
        disk_full_for_s=round(rng.uniform(0.1, 6), 3),
        partition_every_s=maybe(rng.uniform(5, 15), 0.5),
        partition_for_s=round(rng.uniform(0.5, 10), 3),
        clog_every_s=maybe(rng.uniform(1, 5), 0.3),
        clog_for_s=round(rng.uniform(0.1, 8), 3),
        disks=_random_disk_faults(seed),
    )
    reads = random.Random(f"{seed}/histories")
    return Scenario(
        name=f"random-storage-{seed}",
        nodes=nodes,
        parts=rng.choice([1, 1, 2]),
        trackers=rng.choice([1, 1, 2]),
        across_ms=round(rng.uniform(1, 150), 3),
        join_over_s=round(rng.uniform(0, 3), 3),
        run_for_s=round(rng.uniform(10, 30), 3),
        publishers=rng.randint(1, min(nodes, 4)),
        messages_per_s=round(rng.uniform(0.5, 5), 3),
        messages_at_once=rng.choice([1, 1, 1, 5, 20]),
        message_bytes=rng.choice([10, 40, 308]),
        faults=faults,
        storage=storage,
        copies=rng.randint(0, storage),
        histories_per_s=round(reads.uniform(0.1, 1), 3) if reads.random() < 0.7 else 0.0,
    )


def _random_disk_faults(seed: int) -> DiskFaults:
    """Draw disks that rot, stick and fail; some runs have none that do."""
    rng = random.Random(f"{seed}/disks")
    if rng.random() < 0.25:
        return NO_DISK_FAULTS

    def maybe(low: float, high: float, chance: float = 0.5) -> float:
        return round(rng.uniform(low, high), 3) if rng.random() < chance else 0.0

    return DiskFaults(
        row_rots_every_s=maybe(0.3, 5),
        page_lost_every_s=maybe(2, 15, 0.4),
        page_rows=rng.randint(2, 20),
        scrub_s=round(rng.uniform(1, 30), 3),
        slow_every_s=maybe(3, 15, 0.4),
        slow_for_s=round(rng.uniform(0.5, 8), 3),
        slow_s=round(rng.uniform(0.05, 3), 3),
        unreadable_every_s=maybe(1, 10, 0.4),
        unreadable_for_s=round(rng.uniform(0.1, 6), 3),
        power_cut_every_s=maybe(5, 15, 0.3),
        power_cut_for_s=round(rng.uniform(0.1, 6), 3),
        done_at_crash=round(rng.uniform(0, 1), 3),
        tail_lost_every_s=maybe(3, 12, 0.4),
        tail_messages=rng.choice([5, 50, 1_000]),
        backup_restored_every_s=maybe(5, 15, 0.3),
        backup_every_s=round(rng.uniform(1, 10), 3),
        forgets_for_s=round(rng.uniform(0.1, 6), 3),
        unflagged=maybe(0.5, 1, 0.8),
    )


def random_calm_scenario(seed: int, most_nodes: int = 16) -> Scenario:
    """Draw a network in which nothing goes wrong, so that nothing may be repaired either."""
    rng = random.Random(f"{seed}/calm options")
    nodes, storage = rng.randint(3, most_nodes), rng.choice([0, 1, 2, 3, 3, 3, 5])
    return Scenario(
        name=f"random-calm-{seed}",
        nodes=nodes,
        parts=rng.choice([1, 1, 2]),
        trackers=rng.choice([1, 1, 2]),
        degree=rng.choice([2, 3, 4, 4, 5]),
        across_ms=round(rng.uniform(1, 150), 3),
        join_over_s=round(rng.uniform(0, 3), 3),
        run_for_s=round(rng.uniform(10, 30), 3),
        settle_for_s=30.0,
        publishers=rng.randint(1, min(nodes, 4)),
        subscribers=rng.choice([0, 0, max(1, nodes // 2)]),
        messages_per_s=round(rng.uniform(1, 10), 3),
        messages_at_once=rng.choice([1, 1, 1, 5, 20]),
        message_bytes=rng.choice([10, 40, 308]),
        storage=storage,
        copies=rng.randint(0, storage),
    )
