"""A network with a registry, simulated: what is granted works, and what is taken back does not."""

import pytest

from anabranch.core.changes import CreateStream, DeleteStream, Right
from anabranch.sim.trusted_cluster import BOTH, OWNERS
from trusted_network import TrustedNetwork

READ = Right.SUBSCRIBE


def test_who_may_read_gets_a_private_message_and_nobody_else_does() -> None:
    network = TrustedNetwork()
    assert network.publish(network.owner) == network.owners()
    network.permit(network.one, READ)
    assert network.publish(network.owner) == {**network.owners(), network.one.id: 1}
    network.permit(network.one, Right(0))
    assert network.publish(network.owner) == network.owners()


def test_a_permission_ends_when_it_expires() -> None:
    network = TrustedNetwork()
    network.permit(network.one, READ, network.sim.now + 10)
    assert network.one.id in network.publish(network.owner)
    network.wait(10)
    assert network.publish(network.owner) == network.owners()


def test_who_may_publish_can_and_others_cannot() -> None:
    network = TrustedNetwork()
    assert network.publish(network.two) == {}
    network.permit(network.two, Right.PUBLISH)
    assert network.publish(network.two) == network.owners()
    network.permit(network.two, BOTH)
    assert network.publish(network.two) == {**network.owners(), network.two.id: 1}


def test_who_has_no_right_has_no_neighbours() -> None:
    network = TrustedNetwork()
    network.permit(network.one, READ)
    cluster, part = network.cluster, network.part
    members = [network.cluster.peers[index].id for index in OWNERS] + [network.one.id]
    assert sorted(node.id for node in cluster.members(part)) == sorted(members)
    for node in cluster.peers:
        assert len(cluster.neighbours(node, part)) == (2 if node.id in members else 0)


@pytest.mark.parametrize("private", [0, 1])
def test_rights_and_keys_hold_for_hours_after_the_last_tracker_is_gone(private: int) -> None:
    network = TrustedNetwork(private=private)
    network.permit(network.one, BOTH)
    before = network.publish(network.owner)
    assert network.publish(network.one) == before
    for tracker in network.cluster.trackers:
        network.sim.crash(tracker)
    for _ in range(2):
        network.wait(2 * 3_600)
        assert network.publish(network.owner) == before
        assert network.publish(network.one) == before


def test_a_stream_that_is_deleted_and_created_anew_is_joined_again() -> None:
    network = TrustedNetwork()
    network.write(DeleteStream())
    assert network.publish(network.owner) == {}
    network.write(CreateStream(public=int(BOTH)))
    assert len(network.publish(network.owner)) == 6


def test_keys_and_permissions_are_there_after_a_restart() -> None:
    network = TrustedNetwork()
    network.permit(network.one, READ)
    network.publish(network.owner)
    assert network.one.disk.keys
    network.sim.crash(network.one)
    network.cluster.restart(network.one)
    network.cluster.subscribe(network.one, network.part)
    network.wait(5)
    assert network.one.id in network.publish(network.owner)


def test_a_tracker_has_after_a_crash_what_was_on_its_disk() -> None:
    network = TrustedNetwork(trackers=1)
    network.permit(network.one, READ)
    (tracker,) = network.cluster.trackers
    head = network.cluster.history(tracker, network.part.stream).head
    network.sim.crash(tracker)
    network.cluster.restart(tracker)
    network.wait(1)
    assert network.cluster.history(tracker, network.part.stream).head == head


def test_every_tracker_copies_what_the_first_one_has() -> None:
    network = TrustedNetwork(trackers=3)
    network.permit(network.one, READ)
    cluster = network.cluster
    heads = {cluster.history(node, network.part.stream).head for node in cluster.trackers}
    assert len(heads) == 1
    assert all(len(tracker.disk.rows) == 5 for tracker in cluster.trackers)


def test_a_public_stream_is_read_by_all() -> None:
    network = TrustedNetwork(private=0)
    assert len(network.publish(network.owner)) == 6
    assert all(not node.disk.keys for node in network.cluster.peers)


@pytest.mark.parametrize("real_keys", [False, True])
def test_real_keys_work_in_simulation_too(real_keys: bool) -> None:
    network = TrustedNetwork(real_keys=real_keys)
    network.permit(network.one, READ)
    assert network.publish(network.owner) == {**network.owners(), network.one.id: 1}
