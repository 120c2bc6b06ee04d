"""One small run, told line by line: the recorded trace is kept in three-nodes.txt."""

import os
from pathlib import Path

from anabranch.core.machine import Subscribe
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Constant
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.traces import schema
from anabranch.traces.recorder import Recorder

GOLDEN = Path(__file__).parent / "three-nodes.txt"
WHY = """\
Why: three nodes and a tracker, 10 ms apart. A and B subscribe, A publishes, B leaves in silence,
C comes, A publishes again. Whoever changes the protocol sees here what a network then does.
Milliseconds from the start, who, what.
"""


def tell(record: schema.Record, names: dict[str, str]) -> str:
    def name(node: str) -> str:
        return names.get(node, node)

    what = type(record).__name__.lower()
    match record:
        case schema.Linked():
            text = f"{'up' if record.up else 'down'} {name(record.peer)} {record.reason}"
        case schema.Instruction():
            peers = " ".join(name(peer) for peer in record.neighbours)
            text = f"{record.counter} for {name(record.peer)}: {peers or 'nobody'}"
        case schema.Sent():
            text = f"to {name(record.peer)}, {record.size_bytes} bytes"
        case schema.Received():
            text = f"from {name(record.peer)}, {record.hops} hops"
        case schema.Duplicate():
            text = f"from {name(record.peer)}"
        case schema.Delivered():
            text = f"after {record.delay_ms} ms"
        case schema.Published():
            text = f"{record.count} messages"
        case schema.Topology():
            text = " ".join(name(peer) for peer in record.neighbours)
        case _:
            text = ""
    return f"{(record.at - START_AT) * 1000:9.1f}  {name(record.node)}  {what} {text}".rstrip()


def story() -> str:
    records: list[schema.Record] = []
    sim = Simulator(Constant(10), 1, Recorder(records.append))
    cluster = Cluster(sim, 1, nodes=3)
    part = cluster.parts[0]
    a, b, c = cluster.peers
    names = {
        "0x" + n.id.hex(): s for n, s in zip([a, b, c, *cluster.trackers], "ABCT", strict=True)
    }
    sim.tell(a, Subscribe(part))
    sim.tell(b, Subscribe(part))
    sim.run(START_AT + 1)
    cluster.publish(a, part, [b"one", b"two"])
    sim.run(START_AT + 2)
    sim.crash(b, silent=True)
    sim.tell(c, Subscribe(part))
    sim.run(START_AT + 10)
    cluster.publish(a, part, [b"three"])
    sim.run(START_AT + 11)
    cluster.snapshot()
    told = [tell(r, names) for r in records if not isinstance(r, schema.Rtt)]
    return WHY + "\n" + "\n".join(told) + "\n"


def test_three_nodes() -> None:
    told = story()
    if os.environ.get("ANABRANCH_RECORD"):
        GOLDEN.write_text(told)
    assert told == GOLDEN.read_text(), "if the change is meant, rerun with ANABRANCH_RECORD=1"
