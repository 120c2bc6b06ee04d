"""A tracker in figures: how large its parts are, and what their nodes report, for Prometheus."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.tracked import TrackedNode

MAX_PARTS_SHOWN = 1_000  # the largest ones: every label costs whoever collects the figures


class TrackerView(Protocol):
    """What is asked of a tracker's machine."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How often the tracker has done what, since it started."""

    def parts(self) -> list[StreamPart]:
        """Return the parts that have nodes, sorted."""

    def members(self) -> list[NodeId]:
        """Return the nodes that are in any part, sorted."""

    def parts_of(self, node: NodeId) -> list[StreamPart]:
        """Return the parts that a node is in, sorted."""

    def nodes(self, part: StreamPart) -> Mapping[NodeId, TrackedNode]:
        """Return what is known of each node of a part."""

    def neighbours(self, part: StreamPart, node: NodeId) -> tuple[NodeId, ...]:
        """Return the neighbours that a node of a part should have, sorted."""

    def topology(self, part: StreamPart) -> dict[NodeId, tuple[NodeId, ...]]:
        """Return every node of a part with its neighbours, sorted."""

    def rtts_us(self, part: StreamPart) -> dict[tuple[NodeId, NodeId], int]:
        """Return the round trips that the nodes of a part reported, per reporting node."""


class PartFigures(msgspec.Struct):
    """One part, added up over the nodes that are in it now."""

    nodes: int = 0
    links: int = 0
    rtts: int = 0
    rtt_sum_us: int = 0
    reporting: int = 0
    published: int = 0
    delivered: int = 0
    duplicates: int = 0
    dropped: int = 0
    missed: int = 0
    unstored: int = 0
    registry_age_s: int = 0  # the highest

    @property
    def rtt_mean_s(self) -> float | None:
        """The mean of the round trips that the nodes report, if any."""
        return self.rtt_sum_us / self.rtts / 1_000_000 if self.rtts else None


def figures_of(tracker: TrackerView, part: StreamPart) -> PartFigures:
    """Add a part up."""
    found = PartFigures()
    ends = 0
    for node, known in tracker.nodes(part).items():
        found.nodes += 1
        ends += len(tracker.neighbours(part, node))
        found.rtts += sum(1 for rtt in known.rtts_us if rtt)
        found.rtt_sum_us += sum(known.rtts_us)
        if known.report is not None:
            found.reporting += 1
            found.published += known.report.published
            found.delivered += known.report.delivered
            found.duplicates += known.report.duplicates
            found.dropped += known.report.dropped
            found.missed += known.report.missed
            found.unstored += known.report.unstored
            found.registry_age_s = max(found.registry_age_s, known.report.registry_age_s)
    found.links = ends // 2
    return found


# What is shown of each part. They are gauges: a node that leaves takes its totals along.
PART_GAUGES: dict[str, tuple[str, Callable[[PartFigures], float | None]]] = {
    "nodes": ("Nodes in the part.", lambda f: f.nodes),
    "links": ("Links between them.", lambda f: f.links),
    "rtt_mean_seconds": ("Mean round trip of the links.", lambda f: f.rtt_mean_s),
    "reporting_nodes": ("Nodes whose report is below.", lambda f: f.reporting),
    "published_messages": ("Messages its nodes published.", lambda f: f.published),
    "delivered_messages": ("Messages its nodes delivered.", lambda f: f.delivered),
    "duplicate_frames": ("Copies of frames its nodes dropped.", lambda f: f.duplicates),
    "dropped_frames": ("Frames its nodes dropped for other reasons.", lambda f: f.dropped),
    "missed_messages": ("Messages that slow readers did not get.", lambda f: f.missed),
    "unstored_messages": ("Messages its nodes published, not stored yet.", lambda f: f.unstored),
    "registry_age_seconds": (
        "Seconds without a tracker's confirmation of the registry, at the node with the most.",
        lambda f: f.registry_age_s,
    ),
}


class TrackerFigures(Collector):
    """Reads a tracker anew whenever Prometheus asks."""

    def __init__(self, tracker: TrackerView) -> None:
        self._tracker = tracker

    def collect(self) -> Iterator[Metric]:
        """Return all figures."""
        tracker = self._tracker
        parts = tracker.parts()
        members = len(tracker.members())
        yield GaugeMetricFamily("anabranch_tracker_parts", "Stream parts here.", len(parts))
        yield GaugeMetricFamily("anabranch_tracker_nodes", "Nodes in any of them.", members)
        done = CounterMetricFamily(
            "anabranch_tracker_handled", "What the tracker has handled.", labels=["what"]
        )
        for what, count in tracker.counts.items():
            done.add_metric([what], count)
        yield done
        largest = sorted(parts, key=lambda part: -len(tracker.nodes(part)))[:MAX_PARTS_SHOWN]
        figures = [(part, figures_of(tracker, part)) for part in largest]
        for name, (about, read) in PART_GAUGES.items():
            gauge = GaugeMetricFamily(
                f"anabranch_part_{name}", about, labels=["stream", "partition"]
            )
            for part, found in figures:
                value = read(found)
                if value is not None:
                    gauge.add_metric([part.stream, str(part.partition)], value)
            yield gauge
