"""A running tracker's pages, while real nodes report to it and carry traffic."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from anabranch import Network, Stream
from anabranch.core.ids import StreamPart, show
from anabranch.live.tracker import TrackerProcess
from live.networks import eventually, live_network, neighbours, run
from live.readers import all_have, read_everywhere

NODES = 5
MESSAGES = 50


class Busy:
    """A tracker, nodes that have carried messages, and a client that reads the tracker's pages."""

    def __init__(
        self,
        tracker: TrackerProcess,
        nodes: list[Network],
        stream: Stream,
        session: aiohttp.ClientSession,
    ) -> None:
        self.tracker = tracker
        self.names = {show(node.node.node) for node in nodes}
        self.stream = stream
        self._session = session

    async def get(self, page: str, **query: str) -> Any:
        """Return a page that is JSON."""
        async with self._session.get(self.tracker.http.address + page, params=query) as answer:
            assert answer.status == 200
            return await answer.json()

    async def metrics(self) -> dict[tuple[str, str], float]:
        """Return every figure by its name and what it is of: a stream, or a kind of event."""
        async with self._session.get(f"{self.tracker.http.address}/metrics") as answer:
            text = await answer.text()
        return {
            (
                sample.name,
                sample.labels.get("stream") or sample.labels.get("what", ""),
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@asynccontextmanager
async def busy(folder: Path) -> AsyncIterator[Busy]:
    """Let nodes carry messages until every one of them has said so to the tracker."""
    async with live_network(folder) as live, aiohttp.ClientSession() as session:
        nodes = [await live.join() for _ in range(NODES)]
        stream = await nodes[0].create_stream("busy")
        readers = await read_everywhere(nodes, stream.id)
        await eventually(
            lambda: all(neighbours(node, stream.id) == NODES - 1 for node in nodes), "neighbours"
        )
        for number in range(MESSAGES):
            await stream.publish(number)
        await all_have(readers, MESSAGES)
        [tracker] = live.trackers
        part = StreamPart(stream.id, 0)

        def has_heard() -> bool:
            known = tracker.machine.tracker.nodes(part).values()
            reports = [node.report for node in known if node.report is not None]
            return sum(report.delivered for report in reports) == NODES * MESSAGES

        await eventually(has_heard, "every node has reported what it delivered")
        yield Busy(tracker, nodes, stream, session)


def test_the_pages_of_a_running_tracker(tmp_path: Path) -> None:
    async def main() -> None:
        async with busy(tmp_path) as network:
            await _check_health(network)
            await _check_topology(network)
            await _check_prediction(network)
            await _check_reports(network)
            await _check_metrics(network)

    run(main())


async def _check_health(network: Busy) -> None:
    health = await network.get("/health")
    assert (health["status"], health["nodes"], health["parts"]) == ("ok", NODES, 1)
    assert health["network"] == network.tracker.network.hex()


async def _check_topology(network: Busy) -> None:
    [part] = (await network.get("/topology", stream=network.stream.id))["parts"]
    assert set(part["topology"]) == network.names
    for name, node in part["topology"].items():
        assert node["address"].startswith("ws://127.0.0.1:")
        assert {peer["node"] for peer in node["neighbours"]} == network.names - {name}
        # The handshake measures a round trip, so that there is one from the first status on.
        assert all(peer["rtt_ms"] > 0 for peer in node["neighbours"])


async def _check_prediction(network: Busy) -> None:
    predicted = await network.get("/prediction", stream=network.stream.id)
    links = NODES * (NODES - 1) // 2
    assert (predicted["nodes"], predicted["links"]) == (NODES, links)
    assert (predicted["measured_links"], predicted["unreachable_pairs"]) == (links, 0)
    assert 0 < predicted["min_ms"] <= predicted["p50_ms"] <= predicted["max_ms"]


async def _check_reports(network: Busy) -> None:
    [part] = (await network.get("/reports", stream=network.stream.id))["parts"]
    reports = part["reports"]
    assert {report["node"] for report in reports} == network.names
    assert [report["delivered"] for report in reports] == [MESSAGES] * NODES
    assert sum(report["published"] for report in reports) == MESSAGES
    assert sum(report["duplicates"] for report in reports) > 0
    assert all(report["dropped"] == report["missed"] == 0 for report in reports)


async def _check_metrics(network: Busy) -> None:
    figures = await network.metrics()
    stream = network.stream.id
    assert figures["anabranch_tracker_nodes", ""] == NODES
    assert figures["anabranch_part_nodes", stream] == NODES
    assert figures["anabranch_part_reporting_nodes", stream] == NODES
    assert figures["anabranch_part_delivered_messages", stream] == NODES * MESSAGES
    assert figures["anabranch_part_rtt_mean_seconds", stream] > 0
    assert figures["anabranch_tracker_handled_total", "statuses"] >= NODES
    assert figures["anabranch_tracker_handled_total", "faults"] == 0
