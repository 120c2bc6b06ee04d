import random

import numpy as np
import pytest

from anabranch.core.prediction import predict
from anabranch.lab.flooding import flood, flood_on_arrays
from anabranch.lab.topologies import grow, instants, links_of, rtts_of, topology_of
from anabranch.lab.underlays import make_underlay


@pytest.mark.parametrize(
    ("underlay_name", "nodes", "degree", "processing_s"),
    [
        ("aws16", 96, 4, 0.0),  # where many copies arrive at the same time
        ("aws16", 48, 5, 0.0003),
        ("cities", 64, 4, 0.0003),
        ("square", 40, 6, 0.0),
        ("constant", 33, 3, 0.0),
    ],
)
def test_machines_and_kernels_agree_to_the_last_bit(
    underlay_name: str, nodes: int, degree: int, processing_s: float
) -> None:
    underlay = make_underlay(underlay_name, nodes, random.Random(4))
    cluster = grow(underlay, nodes, degree, "random-regular", "seed", processing_s)
    topology = topology_of(cluster, underlay, processing_s)
    computed = flood_on_arrays(topology, cluster.sim.now)
    measured = flood(cluster, topology)
    assert np.array_equal(measured.delays_s, computed.delays_s)
    assert np.array_equal(measured.hops, computed.hops)
    assert measured.duplicates == pytest.approx(computed.duplicates, abs=1e-12)
    assert np.array_equal(measured.links, computed.links)


def test_the_estimate_is_the_trackers() -> None:
    underlay = make_underlay("cities", 40, random.Random(4))
    cluster = grow(underlay, 40, 4, "random-regular", "seed", 0.0003)
    rtts_us = {pair: round(1e6 * rtt_s) for pair, rtt_s in rtts_of(cluster, underlay).items()}
    links = links_of(cluster)
    predicted = predict(links, rtts_us, sources=list(links)).mean_ms
    estimated_s = topology_of(cluster, underlay, 0.0003).estimate_s()
    assert predicted is not None
    assert estimated_s == pytest.approx(predicted / 1000, rel=1e-9)


def test_the_estimate_knows_nothing_of_processing() -> None:
    underlay = make_underlay("aws16", 32, random.Random(4))
    cluster = grow(underlay, 32, 4, "random-regular", "seed", 0.001)
    found = flood_on_arrays(topology_of(cluster, underlay, 0.001))
    mean_s = found.delays_s.sum() / (32 * 31)
    hops = found.hops.sum() / (32 * 31)
    assert found.estimated_s == pytest.approx(mean_s - hops * 0.001, rel=0.02)


def test_messages_are_published_one_after_the_other() -> None:
    assert instants(1.5, 3, 0.25).tolist() == [1.5, 1.75, 2.0]
