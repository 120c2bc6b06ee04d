"""Publish one message into a settled overlay and print when it reaches each node."""

from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Constant, Observer
from anabranch.sim.simulator import START_AT, Simulator


class Printer(Observer):
    def delivered(self, node, head, frame, hops, delay_s):
        print(f"0x{node.id.hex()[:8]}  {hops} hops  {delay_s * 1000:5.1f} ms")


sim = Simulator(Constant(delay_ms=20), seed=1)
cluster = Cluster(sim, seed=1, nodes=12, degree=4)
part = cluster.parts[0]
for node in cluster.peers:
    cluster.subscribe(node, part)
sim.run(until=START_AT + 10)  # the tracker builds the overlay

sim.observer = Printer()
cluster.publish(cluster.peers[0], part, [b"hello"])
sim.run(until=sim.now + 1)
