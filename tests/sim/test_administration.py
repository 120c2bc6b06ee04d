"""Those who change the registry: what they want is written, also where others are first."""

import random

from anabranch.core.changes import EditStream, SetPermission, decode_change
from anabranch.sim.administration import Administration
from anabranch.sim.trusted_cluster import OWNERS
from trusted_network import TrustedNetwork


def administered(changes_per_s: float, **options: object) -> tuple[TrustedNetwork, Administration]:
    network = TrustedNetwork(**options)  # type: ignore[arg-type]
    return network, Administration(network.cluster, random.Random(1), changes_per_s)


def actions_of(network: TrustedNetwork) -> list[object]:
    history = network.cluster.history(network.cluster.trackers[0], network.part.stream)
    return [action for change in history.changes for action in decode_change(change).actions]


def test_they_grant_take_back_edit_and_let_expire() -> None:
    network, administration = administered(2.0)
    before = len(actions_of(network))
    administration.start(network.sim.now + 30)
    network.wait(40)
    made = actions_of(network)[before:]
    assert administration.counts["written"] > 20
    permissions = [action for action in made if isinstance(action, SetPermission)]
    assert any(action.rights for action in permissions)
    assert any(not action.rights for action in permissions)
    assert any(action.expires_ms for action in permissions)
    assert any(isinstance(action, EditStream) for action in made)
    assert administration.counts["stale"] > 0  # and was tried again


def test_nothing_happens_where_nothing_is_asked_for() -> None:
    network, administration = administered(0.0)
    before = actions_of(network)
    administration.start(network.sim.now + 30)
    network.wait(40)
    assert actions_of(network) == before


def test_the_last_word_is_written_once_the_registry_can_be_reached() -> None:
    network, administration = administered(0.0, trackers=1)
    (tracker,) = network.cluster.trackers
    network.sim.crash(tracker)
    administration.settle()
    network.wait(20)
    assert list(administration.undone) == [network.part.stream]
    network.cluster.restart(tracker)
    network.wait(20)
    assert administration.undone == {}
    users = [action.node for action in actions_of(network)[-len(network.others) :]]
    assert users == [network.user(node) for node in network.others]


def test_a_partition_that_lasts_lets_two_trackers_write_and_all_agree_in_the_end() -> None:
    network, administration = administered(3.0)
    cluster = network.cluster
    here = [cluster.peers[OWNERS[0]], cluster.trackers[0]]
    there = [node for node in [*cluster.peers, *cluster.trackers] if node not in here]
    network.sim.partition({node.id: 1 for node in there})
    administration.start(network.sim.now + 25)
    network.wait(30)
    history = cluster.history(cluster.trackers[1], network.part.stream)
    assert history.head != cluster.history(cluster.trackers[0], network.part.stream).head
    network.sim.partition({})
    network.wait(90)
    history = cluster.history(cluster.trackers[0], network.part.stream)
    depths = [decode_change(change).depth for change in history.changes]
    assert len(set(depths)) < len(depths)
    assert cluster.history(cluster.trackers[1], network.part.stream).head == history.head
    assert network.heads() == {history.head}
