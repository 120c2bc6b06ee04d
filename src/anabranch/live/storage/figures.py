"""A storage node in figures: how its logs stand, and what it has served, for Prometheus."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from anabranch.core.ids import NodeId, StreamPart
from anabranch.live.storage.damage import Damage
from anabranch.live.storage.ranges import LogStatus, Status

MAX_PARTS_SHOWN = 1_000  # the longest logs: every label costs whoever collects the figures

# What is shown of each log. They are gauges: a log that is cut or deleted goes back.
PART_GAUGES: dict[str, tuple[str, Callable[[LogStatus], float]]] = {
    "start": ("The first offset that is still there.", lambda s: s.start),
    "high": ("The offset before which all is settled.", lambda s: s.high),
    "length": ("The offset of the next message.", lambda s: s.length),
    "held_frames": ("Frames without a place in the log.", lambda s: s.held),
    "epoch": ("The epoch of the log's primary.", lambda s: s.epoch),
    "has_primary": ("Whether a primary is known.", lambda s: s.primary is not None),
}


class StorageFigures(Collector):
    """Reads a storage node anew whenever Prometheus asks."""

    def __init__(
        self,
        node: NodeId,
        parts: Callable[[], Iterable[StreamPart]],
        status: Status,
        counts: Mapping[str, int],
        readers: Callable[[], int],
        compared: Mapping[str, int],
        damage: Callable[[], Damage] = Damage,
        registry_age_s: Callable[[], float] = float,
    ) -> None:
        self._node = node
        self._parts = parts
        self._status = status
        self._counts = counts
        self._readers = readers
        self._damage = damage
        self._compared = compared
        self._registry_age_s = registry_age_s

    def collect(self) -> Iterator[Metric]:
        """Return all figures."""
        stored = [(part, self._status(part)) for part in self._parts()]
        known = [(part, status) for part, status in stored if status is not None]
        led = sum(status.primary == self._node for _, status in known)
        yield GaugeMetricFamily("anabranch_storage_parts", "Stream parts kept here.", len(known))
        yield GaugeMetricFamily("anabranch_storage_led_parts", "Of these, led from here.", led)
        yield GaugeMetricFamily(
            "anabranch_storage_readers", "Ranges that are being read over HTTP.", self._readers()
        )
        yield GaugeMetricFamily(
            "anabranch_storage_registry_age_seconds",
            "Seconds without a tracker's confirmation of a ledger that this node follows.",
            self._registry_age_s(),
        )
        damage = self._damage()
        yield GaugeMetricFamily(
            "anabranch_storage_damaged_messages",
            "Messages that are damaged on the disk and not repaired yet.",
            damage.messages,
        )
        yield GaugeMetricFamily(
            "anabranch_storage_recovering_parts",
            "Logs that lack what the disk has forgotten.",
            len(damage.lost),
        )
        yield GaugeMetricFamily(
            "anabranch_storage_disagreeing_parts",
            "Logs whose settled part differs from that of another storage node.",
            len(damage.disagreeing),
        )
        yield GaugeMetricFamily(
            "anabranch_storage_scrub_progress", "Share of the scrub that is done.", damage.progress
        )
        yield GaugeMetricFamily(
            "anabranch_storage_scrub_finished_seconds",
            "When a scrub has last come to its end.",
            damage.finished_s,
        )
        text = "What was done for readers over HTTP."
        done = CounterMetricFamily("anabranch_storage_http", text, labels=["what"])
        for what, count in self._counts.items():
            done.add_metric([what], count)
        yield done
        found = CounterMetricFamily(
            "anabranch_storage_comparison",
            "Frames that comparisons with other nodes have brought: taken, or why not.",
            labels=["what"],
        )
        for what, count in self._compared.items():
            found.add_metric([what], count)
        yield found
        longest = sorted(known, key=lambda found: found[1].start - found[1].length)
        labels = ["stream", "partition"]
        for name, (text, value) in PART_GAUGES.items():
            gauge = GaugeMetricFamily(f"anabranch_storage_part_{name}", text, labels=labels)
            for part, status in longest[:MAX_PARTS_SHOWN]:
                gauge.add_metric([part.stream, str(part.partition)], value(status))
            yield gauge
