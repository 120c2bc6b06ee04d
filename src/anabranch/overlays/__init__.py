"""The overlays by name: a stream chooses one of these.

Those that a tracker builds have two sides: what a node does, and the graph that its tracker keeps.
"""

from collections.abc import Mapping

from anabranch.core.ids import NodeId
from anabranch.core.overlay import Overlay
from anabranch.core.tracked import MakeTopology
from anabranch.overlays.latency_aware import LatencyAware
from anabranch.overlays.probing import Probing
from anabranch.overlays.random_regular import RandomRegular
from anabranch.overlays.regular_graph import RegularGraph

OVERLAYS: dict[str, type[Overlay]] = {"random-regular": RandomRegular, "latency-aware": Probing}
TOPOLOGIES: Mapping[str, MakeTopology] = {
    "random-regular": RegularGraph[NodeId],
    "latency-aware": LatencyAware,
}
