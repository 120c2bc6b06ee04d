"""Peers that want what they may not have do not get it, however they try."""

import pytest

from anabranch.core.changes import Right
from anabranch.core.machine import Send
from anabranch.core.messages import KeyRequest, Meet, Status
from anabranch.sim.faithless import FAITHLESS
from anabranch.sim.trusted_cluster import BOTH
from trusted_network import TrustedNetwork

READ = Right.SUBSCRIBE


class Attacked:
    """Seven nodes that may read and one that may not, any more, and tries."""

    def __init__(self, kind: str) -> None:
        self.network = network = TrustedNetwork(8, 2, disguises={7: kind})
        self.villain = network.cluster.peers[7]
        for node in network.others:
            network.permit(node, READ)
        self.before = network.publish(network.owner)
        self.sent: list[Send] = []
        honest = network.sim._perform  # the one place where every effect passes

        def perform(node: object, effects: list[object]) -> None:
            if node is self.villain:
                self.sent += [e for e in effects if type(e) is Send]
            honest(node, effects)

        network.sim._perform = perform  # type: ignore[method-assign,assignment]
        network.permit(self.villain, Right(0))

    def said(self, kind: type) -> int:
        return sum(type(effect.message) is kind for effect in self.sent)


@pytest.mark.parametrize("kind", sorted(FAITHLESS))
def test_what_is_published_after_its_removal_is_closed_to_it(kind: str) -> None:
    attacked = Attacked(kind)
    network, villain = attacked.network, attacked.villain
    assert attacked.before[villain.id] == 1
    keys = set(villain.disk.keys)
    for _ in range(5):
        got = network.publish(network.owner)
        assert villain.id not in got
        assert len(got) == 7
    assert set(villain.disk.keys) == keys
    assert not any(
        villain.id in network.cluster.neighbours(node, network.part)
        for node in network.cluster.honest
    )


def test_one_that_lingers_asks_to_be_met_and_for_keys_in_vain() -> None:
    attacked = Attacked("lingering")
    attacked.network.wait(20)
    assert attacked.said(Meet) > 10
    assert attacked.said(KeyRequest) > 10


def test_one_that_impersonates_loses_its_links() -> None:
    attacked = Attacked("impersonating")
    attacked.network.wait(30)
    assert attacked.network.seen.faults()["mandate-forged"] >= 3


def test_one_that_lies_about_its_place_moves_nobody_else() -> None:
    attacked = Attacked("lying-status")
    network = attacked.network
    network.permit(attacked.villain, READ)  # it is let in, and lies all the same
    network.wait(60)
    assert attacked.said(Status) > 5
    assert len(network.publish(network.owner)) == 8


def test_one_that_may_not_publish_is_heard_by_nobody() -> None:
    attacked = Attacked("unpermitted")
    network = attacked.network
    network.permit(attacked.villain, READ)
    assert set(network.publish(attacked.villain)) <= {attacked.villain.id}
    network.permit(attacked.villain, BOTH)
    network.wait(60)  # it was cut off for what it did
    assert len(network.publish(attacked.villain)) == 8
