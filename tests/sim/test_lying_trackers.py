"""What trackers that lie can do: little, and not for long, as long as one of them is honest."""

import pytest

from anabranch.core.changes import Right
from anabranch.core.ids import NodeId, show
from anabranch.core.messages import ChainChanged, Instruction, ReadChain, WriteChange, Written
from anabranch.sim.lying_trackers import HONEST_FOR_S, LYING
from anabranch.sim.trusted_cluster import OWNERS
from trusted_network import TrustedNetwork

READ = Right.SUBSCRIBE
FOUND_OUT_S = 90.0  # a witness is asked within a minute, and once more a while later


def network_with(kind: str, place: int = 1, trackers: int = 2, nodes: int = 8) -> TrustedNetwork:
    network = TrustedNetwork(nodes, trackers, liars={place: kind})
    for node in network.others:
        network.permit(node, READ)
    network.wait(HONEST_FOR_S[1])
    return network


@pytest.mark.parametrize("kind", sorted(LYING))
def test_whatever_a_tracker_says_who_was_removed_reads_no_more(kind: str) -> None:
    network = network_with(kind)
    network.permit(network.one, Right(0))
    network.wait(FOUND_OUT_S)
    assert len(network.heads()) == 1
    for node in network.cluster.peers:
        assert not network.cluster.view(node, network.part.stream).may(
            network.user(network.one), READ, network.sim.now
        )
    assert network.one.id not in network.publish(network.owner)


def test_one_that_hides_is_found_out_by_all_who_ask_it_and_left() -> None:
    network = network_with("hiding", place=1, trackers=3)
    liar = show(network.cluster.trackers[1].id)
    network.permit(network.one, Right(0))
    # A node leaves it for a minute at a time, each node at times of its own.
    left_it: set[NodeId] = set()
    for _ in range(30):
        network.wait(FOUND_OUT_S / 10)
        for node in network.cluster.peers:
            trackers = network.cluster.registries[node.id].directory(network.part).trackers
            if trackers[-1].node == network.cluster.trackers[1].id:
                left_it.add(node.id)
    assert left_it == {node.id for node in network.cluster.peers}
    accused = [n.detail for _, n in network.seen.notices if n.kind == "stale-tracker"]
    assert accused
    assert all(liar in detail for detail in accused)


def test_one_that_hides_calls_written_what_it_throws_away() -> None:
    network = network_with("hiding", place=0)
    liar = network.cluster.trackers[0].machine
    answer = liar.hear(network.owner.id, WriteChange(7, b"a change"))
    assert [effect.message for effect in answer] == [Written(7, 1)]
    assert liar.say(network.owner.id, ChainChanged("network", 9)) == []


def test_one_that_forges_is_cut_off_again_and_again() -> None:
    network = network_with("forging", place=0)
    network.wait(FOUND_OUT_S)
    assert sum(network.seen.faults().values()) > 3
    assert len(network.heads()) == 1


def test_one_that_colludes_names_nobody_but_its_accomplices() -> None:
    network = TrustedNetwork(8, 2, liars={0: "colluding"}, disguises={7: "silent"})
    network.wait(HONEST_FOR_S[1])
    liar = network.cluster.trackers[0].machine
    accomplice = network.cluster.peers[7].id
    said = liar.say(network.owner.id, Instruction(network.part, 3, (), (network.one.id,)))
    assert [[c.node for c in told.connect] + list(told.accept) for told in said] == [[accomplice]]
    untouched = ReadChain(1, "network")
    assert liar.say(network.owner.id, untouched) == [untouched]


def test_one_that_misdirects_makes_nobody_take_more_neighbours_than_it_has_room_for() -> None:
    network = network_with("misdirecting", place=0, nodes=10)
    network.wait(FOUND_OUT_S)
    for node in network.cluster.peers:
        assert len(network.cluster.neighbours(node, network.part)) <= 9
        for name, (size, bound) in node.machine.sizes().items():
            assert size <= bound, name


def test_the_owners_change_counts_even_if_one_tracker_hides_it_from_the_start() -> None:
    network = network_with("hiding", place=1)
    network.permit(network.two, Right(0))
    network.wait(FOUND_OUT_S)
    got = network.publish(network.owner)
    assert network.two.id not in got
    assert all(network.cluster.peers[index].id in got for index in OWNERS)
