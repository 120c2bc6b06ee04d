"""Neighbours that are exchanged by delay, over real sockets: nothing is lost meanwhile."""

from pathlib import Path

import pytest

from anabranch.core import tracker as tracker_rules
from anabranch.core.ids import StreamPart
from anabranch.overlays import latency_aware
from live.networks import eventually, live_network, neighbours, run, traffic
from live.readers import all_have, all_linked, read_everywhere

NODES, DEGREE = 12, 4


def test_links_are_measured_and_exchanged_while_messages_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_rules, "IMPROVE_FIRST_S", 0.5)
    monkeypatch.setattr(latency_aware, "ROUND_S", 0.2)
    monkeypatch.setattr(latency_aware, "LEAST_GAIN", 0.0)  # all are about equally near here

    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(NODES)]
            made = await nodes[0].create_stream("near", degree=DEGREE, overlay="latency-aware")
            readers = await read_everywhere(nodes, made.id)
            await all_linked(nodes, made.id, DEGREE)
            tracker = live.trackers[0].machine.tracker
            graph = tracker._parts[StreamPart(made.id, 0)].graph
            first = {frozenset(link) for link in graph.links()}
            before = tracker.counts["instructions"]
            async with traffic(made) as published:
                await eventually(lambda: tracker.counts["probes"] > NODES, "probes are asked for")
                await eventually(lambda: graph._trips.most() > DEGREE, "probes are answered")
                await eventually(
                    lambda: tracker.counts["instructions"] >= before + NODES, "links are exchanged"
                )
            assert {frozenset(link) for link in graph.links()} != first
            await all_have(readers, len(published))
            for reader in readers:
                assert reader.contents == list(range(len(published)))
            await eventually(
                lambda: all(neighbours(node, made.id) >= DEGREE - 1 for node in nodes), "it stands"
            )
            assert all(node.metrics["notices"] == {} for node in nodes)

    run(main())
