"""How fast the simulator is, beside a bare `heapq` loop in the same run.

One flood at a time through a settled 4-regular overlay, with traces on: real machines, real
packets, signatures checked with the cheap stand-in. The peer is what no simulator can beat: a
loop that pushes and pops as many events and does nothing with them. The figure is the ratio.

`--join 2048` instead lets so many nodes join, publishes once from every node, and drains.
"""

import argparse
import gc
import heapq
import json
import time

from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Constant
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.traces.files import TraceWriter
from anabranch.traces.recorder import Recorder

NODES = 1_000
MESSAGES = 60
SETTLE_S = 15.0


def settled(nodes: int, recorder: Recorder | None) -> Cluster:
    """Let `nodes` join at once and stand."""
    sim = Simulator(Constant(20), 1, recorder)
    cluster = Cluster(sim, 1, nodes)
    for node in cluster.peers:
        cluster.subscribe(node, cluster.parts[0])
    sim.run(START_AT + SETTLE_S)
    degrees = {len(cluster.neighbours(node, cluster.parts[0])) for node in cluster.peers}
    assert degrees == {4}, degrees
    return cluster


def flood(nodes: int, messages: int, traces: bool) -> dict[str, float]:
    """Measure handled events a second of processor time."""
    writer = TraceWriter()
    cluster = settled(nodes, Recorder(writer.write) if traces else None)
    sim = cluster.sim
    gc.collect()
    gc.freeze()
    before, began = sim.handled, time.process_time()
    for publisher in cluster.peers[:messages]:
        cluster.publish(publisher, cluster.parts[0], [b"x" * 308])
        sim.run(sim.now + 0.5)
    writer.flush()
    seconds = time.process_time() - began
    return {"events": sim.handled - before, "seconds": seconds, "records": writer.records}


def bare_heap(events: int, waiting: int) -> float:
    """Push and pop as many events on a heap of the same depth, and do nothing with them."""
    heap: list[tuple[float, int, None, None, None]] = []
    for sequence in range(waiting):
        heapq.heappush(heap, (float(sequence % 97), sequence, None, None, None))
    began = time.process_time()
    for sequence in range(waiting, waiting + events):
        at, _, _, _, _ = heapq.heappop(heap)
        heapq.heappush(heap, (at + 20.0, sequence, None, None, None))
    return time.process_time() - began


def everyone(nodes: int) -> dict[str, float]:
    """Join, publish once from every node, drain; wall time of the whole."""
    began = time.perf_counter()
    cluster = settled(nodes, None)
    joined = time.perf_counter() - began
    gc.freeze()
    sim = cluster.sim
    before = sim.sent_frames
    for publisher in cluster.peers:
        cluster.publish(publisher, cluster.parts[0], [b"x" * 308])
        sim.run(sim.now + 0.1)
    sim.run(sim.now + 2)
    sent = sim.sent_frames - before
    assert sent == nodes * ((nodes - 1) * 3 + 4), sent
    total = time.perf_counter() - began
    return {"nodes": nodes, "join_s": joined, "seconds": total, "events": sim.handled}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--join", type=int, help="this many nodes join and all publish")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.join:
        row: dict[str, float] = everyone(options.join)
        text = (
            "{nodes} nodes joined in {join_s:.1f} s; all published and drained in {seconds:.0f} s"
        )
        text += " ({events} events)"
    else:
        with_traces = flood(options.nodes, options.messages, True)
        without = flood(options.nodes, options.messages, False)
        bare_s = bare_heap(int(with_traces["events"]), 3 * options.nodes)
        row = {
            "nodes": options.nodes,
            "events": with_traces["events"],
            "events_per_s": with_traces["events"] / with_traces["seconds"],
            "events_per_s_without_traces": without["events"] / without["seconds"],
            "bare_heap_per_s": with_traces["events"] / bare_s,
            "ratio_to_bare_heap": with_traces["seconds"] / bare_s,
        }
        text = "{nodes} nodes: {events_per_s:,.0f} events a second with traces, "
        text += (
            "{events_per_s_without_traces:,.0f} without; a bare heap does {bare_heap_per_s:,.0f}"
        )
        text += ": ratio {ratio_to_bare_heap:.1f}"
    print(json.dumps(row) if options.json else text.format(**row))


if __name__ == "__main__":
    main()
