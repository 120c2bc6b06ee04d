"""Trackers that are parted, write on, and meet again: one history, and revocation holds."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.changes import (
    Action,
    CreateStream,
    DeleteStream,
    Right,
    SetPermission,
    SetTrackers,
)
from anabranch.core.errors import LocalError
from anabranch.core.history import make_change
from anabranch.core.identity import Signer
from anabranch.core.ids import NodeId
from anabranch.core.messages import WriteChange, Written
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_keeper import RegistryKeeper
from anabranch.core.succession import TAKEOVER_S, UNDER_WAY_S
from chains import COPIER, ENTRIES, NET, OWNER, SECOND, STREAM, THIRD, WRITER, Writer, network_rows
from machines import KEYS, NODES, SIGNERS
from tracker_world import World

ANN, BEN = SIGNERS[1:3]
TRACKERS = (WRITER, COPIER, THIRD)


class Trackers(World):
    """Three trackers with one stream, in which ANN may grant rights, and authors that they know."""

    def __init__(self) -> None:
        super().__init__()
        writer = Writer().add(CreateStream(), SetPermission(ANN.node, Right.GRANT))
        self.written: dict[str, list[bytes]] = {}  # what was acknowledged
        self._ticket = 0
        for tracker in TRACKERS:
            self.add(tracker, [*network_rows(*ENTRIES), *writer.rows()])

    def change(
        self, tracker: NodeId, action: Action, chain: str = STREAM, author: Signer = OWNER
    ) -> list[Any]:
        """Let somebody who knows what this tracker knows ask it for a change."""
        self.join(author.node, tracker)
        history = self.nodes[tracker].keeper.history(chain)
        change = make_change(author, history, action, self.now)
        self._ticket += 1
        before = len(self.out)
        self.say(author.node, tracker, WriteChange(self._ticket, change))
        self.wait(UNDER_WAY_S)
        told = self.told(author.node, before)
        answers = [m for m in told if type(m) is Written and m.ticket == self._ticket]
        if answers and not answers[0].problem:
            self.written.setdefault(chain, []).append(change)
        return answers

    def restart(self, tracker: NodeId) -> None:
        """Let a tracker begin anew from its disk."""
        self.stop(tracker)
        self.add(tracker, list(self.disks[tracker].rows))

    def agree(self) -> None:
        """Hold all trackers to one registry, which has all that was acknowledged."""
        keepers = [self.nodes[tracker].keeper for tracker in TRACKERS]
        assert len({keeper.digest for keeper in keepers}) == 1
        for chain, changes in self.written.items():
            assert all(keepers[0].history(chain).has(change) for change in changes)
        for tracker in TRACKERS:
            again = RegistryKeeper(NET, KEYS.verify, self.disks[tracker].rows)
            assert again.digest == keepers[0].digest

    def may(self, node: NodeId, right: Right) -> bool:
        states = [self.nodes[tracker].keeper.state(STREAM) for tracker in TRACKERS]
        [answer] = {state.may(node, right, self.now) for state in states}
        return bool(answer)


def test_a_grant_here_and_a_revocation_there() -> None:
    world = Trackers()
    assert world.change(COPIER, SetPermission(BEN.node, Right.PUBLISH))
    assert world.may(BEN.node, Right.PUBLISH)
    world.part([WRITER], [COPIER, THIRD])
    world.wait(TAKEOVER_S)
    both = Right.PUBLISH | Right.SUBSCRIBE
    [grant] = world.change(WRITER, SetPermission(BEN.node, both), author=ANN)
    [revoke] = world.change(THIRD, SetPermission(BEN.node, 0))
    assert (grant.problem, revoke.problem) == ("", "")
    world.heal()
    world.agree()
    assert not world.may(BEN.node, Right.PUBLISH)
    assert not world.may(BEN.node, Right.SUBSCRIBE)
    assert len(world.nodes[WRITER].keeper.history(STREAM).tips) == 2
    [healed] = world.change(COPIER, SetPermission(BEN.node, Right.SUBSCRIBE))
    assert healed.problem == ""  # it names both branches, which makes them one again
    world.agree()
    assert len(world.nodes[WRITER].keeper.history(STREAM).tips) == 1
    assert world.may(BEN.node, Right.SUBSCRIBE)


def test_what_somebody_gives_after_he_was_removed_elsewhere_is_not_given() -> None:
    world = Trackers()
    world.part([WRITER], [COPIER, THIRD])
    world.wait(TAKEOVER_S)
    [revoke] = world.change(WRITER, SetPermission(ANN.node, 0))
    [grant] = world.change(COPIER, SetPermission(BEN.node, Right.PUBLISH), author=ANN)
    assert (revoke.problem, grant.problem) == ("", "")
    world.heal()
    world.agree()
    assert not world.may(BEN.node, Right.PUBLISH)
    assert not world.may(ANN.node, Right.GRANT)


def test_three_that_are_all_alone_end_with_one_history() -> None:
    world = Trackers()
    world.part(*([tracker] for tracker in TRACKERS))
    world.wait(TAKEOVER_S)
    for at, tracker in enumerate(TRACKERS):
        for right in (Right.PUBLISH, Right.SUBSCRIBE):
            [answer] = world.change(tracker, SetPermission(NODES[20 + at], right))
            assert answer.problem == ""
        [answer] = world.change(tracker, CreateStream(degree=4 + at), SECOND)
        assert answer.problem == ""
    assert len({world.nodes[tracker].keeper.digest for tracker in TRACKERS}) == 3
    world.heal()
    world.agree()
    assert world.nodes[WRITER].keeper.streams() == [STREAM, SECOND]
    assert world.nodes[WRITER].keeper.history(STREAM).height == 2 + 6


def test_a_branch_of_many_pages_is_read_whole() -> None:
    world = Trackers()
    world.part([WRITER], [COPIER, THIRD])
    world.wait(TAKEOVER_S)
    for nodes, tracker in ((NODES[20:25], WRITER), (NODES[25:30], COPIER)):
        writer = Writer().take(*world.nodes[tracker].keeper.history(STREAM).changes)
        for at in range(70):
            world.write(writer, SetPermission(nodes[at % 5], 1 + at % 7), tracker)
    world.heal()
    world.agree()
    assert world.nodes[THIRD].keeper.history(STREAM).height == 2 + 2 * 70


def test_two_lists_of_trackers_become_one() -> None:
    world = Trackers()
    world.part([WRITER], [COPIER, THIRD])
    world.wait(TAKEOVER_S)
    world.change(WRITER, SetTrackers((ENTRIES[0], ENTRIES[2], ENTRIES[1])), NETWORK)
    world.change(COPIER, SetTrackers((ENTRIES[1], ENTRIES[0], ENTRIES[2])), NETWORK)
    world.heal()
    world.agree()
    assert sum(node.succession.writes(world.now) for node in world.nodes.values()) == 1


TRACKER = st.sampled_from(TRACKERS)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("change"),
            TRACKER,
            st.sampled_from([STREAM, SECOND]),
            st.sampled_from([OWNER, ANN, BEN]),
            st.one_of(
                st.builds(
                    SetPermission,
                    st.sampled_from([ANN.node, BEN.node, NODES[20]]),
                    st.integers(0, 31),
                ),
                st.builds(CreateStream),
                st.builds(DeleteStream),
            ),
        ),
        st.tuples(st.just("part"), st.tuples(*[st.integers(0, 2)] * 3)),
        st.tuples(st.just("restart"), TRACKER),
        st.tuples(st.just("disk"), TRACKER, st.sampled_from(["", "full"])),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 5.0, 40.0])),
    ),
    max_size=12,
)


@settings(max_examples=150)
@given(STEPS)
def test_whatever_happens_all_trackers_end_with_one_registry(steps: list[Any]) -> None:
    world = Trackers()
    for kind, *step in steps:
        if kind == "change":
            tracker, chain, author, action = step
            try:
                world.change(tracker, action, chain, author)
            except LocalError:
                continue  # it would be refused
        elif kind == "part":
            groups = [
                [t for t, at in zip(TRACKERS, step[0], strict=True) if at == n] for n in (0, 1, 2)
            ]
            world.part(*groups)
        elif kind == "restart":
            world.restart(step[0])
        elif kind == "disk":
            world.disks[step[0]].problem = step[1]
        else:
            world.wait(step[0])
    for disk in world.disks.values():
        disk.problem = ""
    world.heal()
    world.wait(40)
    world.agree()
