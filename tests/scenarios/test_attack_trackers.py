"""Attacks by trackers, or with their help: they arrange who meets whom, and nothing else."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from anabranch import Network
from anabranch.core.changes import Right, SetPermission, hash_change
from anabranch.core.history import make_change
from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId, show
from anabranch.core.messages import Bye, Contact, Instruction, Meet, Refused, Status
from anabranch.core.messages.tracker import MAX_COUNTER
from anabranch.core.registry import StreamState
from anabranch.live.keys import new_key
from anabranch.live.tracker import TrackerProcess
from live.attackers import Spy, change_of, write
from live.false_trackers import (
    FalseTracker,
    Forging,
    Hiding,
    Parted,
    Swallowing,
    kill,
    path_served_by,
)
from live.hostile_peer import carry, make_frame
from live.networks import eventually, live_network, neighbours, restart_tracker, run
from live.town import Town, inhabit, number_at, town

FOUND_OUT_S = 40.0  # a tracker that is behind is given its time
BOTH = int(Right.PUBLISH | Right.SUBSCRIBE)


@asynccontextmanager
async def two_trackers(folder: Path, guests: int = 2) -> AsyncIterator[Town]:
    """Let a town have two trackers, of which the first writes and serves its stream."""
    async with live_network(folder, 2) as live, AsyncExitStack() as stack:
        path = path_served_by(live, 0, show(live.owner.node))
        place = await inhabit(live, stack, guests, path)
        await eventually(
            lambda: all(len(held(node, live.trackers)) == 2 for node in place.nodes), "witnesses"
        )
        yield place


def held(node: Network, trackers: list[TrackerProcess]) -> list[TrackerProcess]:
    """Return the trackers that a node has links with."""
    return [tracker for tracker in trackers if tracker.identity.node in node.node.driver.links]


def honest(place: Town) -> set[NodeId]:
    return {network.node.node for network in place.nodes}


def rights_of(place: Town, user: Identity, trackers: Sequence[TrackerProcess]) -> list[int]:
    """Return what a user may by the word of each of these trackers and of each honest node."""
    at_ms = int(time.time() * 1000)
    states = [t.machine.keeper.state(place.stream.id) for t in trackers]
    states += [node.node.registry.stream(place.stream.id) for node in place.nodes]
    return [state.held(user.node, at_ms) for state in states if isinstance(state, StreamState)]


async def nobody_gives(
    place: Town, *users: Identity, trackers: Sequence[TrackerProcess] = ()
) -> None:
    """Wait until these trackers, or all, and all honest nodes agree that these may nothing."""
    asked = trackers or place.live.trackers
    nothing = [0] * (len(asked) + len(place.nodes))
    for user in users:
        await eventually(lambda: rights_of(place, user, asked) == nothing, "no rights")  # noqa: B023


async def one_registry(place: Town) -> None:
    """Wait until all trackers have the same changes, and all honest nodes the stream's."""
    keepers, name = [t.machine.keeper for t in place.live.trackers], place.stream.id
    await eventually(lambda: len({keeper.digest for keeper in keepers}) == 1, "one registry")
    await eventually(
        lambda: (
            {n.node.registry.history(name).head for n in place.nodes}
            == {keepers[0].history(name).head}
        ),
        "all nodes have read it",
    )


# --- Hiding ---------------------------------------------------------------------------------


def test_a_tracker_that_hides_a_revocation(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_trackers(tmp_path) as place:
            publisher, subscriber = new_key()[0], new_key()[0]
            await place.allow({publisher.node: "publish", subscriber.node: "subscribe"})
            mallory = await place.enter(Spy(place.live, place.stream.id, publisher), neighbours=3)
            eve = await place.enter(Spy(place.live, place.stream.id, subscriber), neighbours=4)
            texts = [(number_at(), "granted")]
            frame = make_frame(place.part, publisher.node, publisher.sign, texts)
            mallory.send(place.nodes[1].node.node, carry(frame))
            await place.hear("granted")
            liar, other = place.live.trackers
            hiding = Hiding(liar, place.stream.id)
            await place.allow({publisher.node: "", subscriber.node: ""})
            # What the other one shows counts at once, whatever the first one says.
            late = make_frame(
                place.part, publisher.node, publisher.sign, [(number_at(), "late")], chain=8
            )
            for node in place.nodes:
                mallory.send(node.node.node, carry(late))
            await place.dropped("unpermitted not-neighbour", 1)
            await eve.hear(Bye, 3)
            caught = len(eve.carried)
            await place.publish("not for the removed")
            assert len(eve.carried) == caught
            # The liar still has them in its overlay. It is found out, and left.
            places = set(hiding.honest.tracker.topology(place.part))
            assert places == honest(place) | {mallory.node, eve.node}
            await eventually(
                lambda: all(node.metrics["notices"].get("stale-tracker") for node in place.nodes),
                "it is found out",
                FOUND_OUT_S,
            )
            overlay = other.machine.tracker
            await eventually(
                lambda: set(overlay.topology(place.part)) == honest(place), "all have left it"
            )
            await place.publish("by way of the other")
            assert len(eve.carried) == caught

    run(main())


# --- Instructing ----------------------------------------------------------------------------


def test_a_tracker_that_sends_false_instructions(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_trackers(tmp_path) as place:
            liar, other = (FalseTracker(tracker) for tracker in place.live.trackers)
            spies = [await place.enter(Spy(place.live, place.stream.id)) for _ in range(5)]
            strangers = tuple(Contact(spy.node, spy.address) for spy in spies)
            victim, part = place.nodes[1], place.part
            before = victim.node.peer.neighbours(part)
            # Not its part, more than the degree, no room for the next, and it is not so.
            false = [
                (other, Instruction(part, 1 << 30, strangers[:4])),
                (liar, Instruction(part, 1 << 30, strangers)),
                (liar, Instruction(part, MAX_COUNTER + 1, strangers[:4])),
                (liar, Refused(part, "unpermitted")),
            ]
            for tracker, message in false:
                assert tracker.process.driver.say(victim.node.node, message)
            await eventually(
                lambda: victim.metrics["notices"].get("bad-instruction", 0) == 2, "two are bad"
            )
            await eventually(lambda: victim.metrics["notices"].get("refused", 0) == 1, "refused")
            assert victim.node.peer.neighbours(part) == before
            await place.publish("after")
            # One that is well formed names strangers alone: they are met by nobody.
            counter = liar.honest.tracker.nodes(part)[victim.node.node].counter + 1
            liar.process.driver.say(victim.node.node, Instruction(part, counter, strangers[:4]))
            for spy in spies[:4]:
                await spy.hear(Meet)
                spy.say(victim.node.node, Meet(part, reply=True, recent_ms=60_000))
                await spy.hear(Bye)
            await eventually(lambda: neighbours(victim, part.stream) == 2, "it is among its own")
            await place.publish("after that")
            # And one that talks without end is heard by nobody.
            for node in place.nodes:
                for number in range(300):
                    liar.process.driver.say(node.node.node, Instruction(part, number))
            await eventually(
                lambda: set(other.honest.tracker.topology(part)) == honest(place), "it is left"
            )
            await eventually(
                lambda: all(neighbours(n, part.stream) == 2 for n in place.nodes), "neighbours"
            )
            await place.publish("after all")
            assert [spy.carried for spy in spies] == [[]] * 5

    run(main())


def test_a_tracker_that_places_colluders(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as place:
            liar = FalseTracker(place.tracker)
            liar.admit_everybody()
            colluders = [await place.enter(Spy(place.live, place.stream.id)) for _ in range(2)]
            for spy in colluders:
                await spy.reach(place.tracker.transport.address)
                spy._tracker = place.tracker.identity.node
                spy.say(spy._tracker, Status(place.part, 0, address=spy.address))
            placed = honest(place) | {spy.node for spy in colluders}
            await eventually(
                lambda: set(liar.honest.tracker.topology(place.part)) == placed, "they have places"
            )
            for spy in colluders:
                await eventually(
                    lambda: (
                        {peer for peer, word in spy.heard if type(word) is Bye}  # noqa: B023
                        >= honest(place)
                    ),
                    "everybody turns them away",
                )
            for number in range(3):
                await place.publish(f"not for colluders {number}")
            assert [spy.carried for spy in colluders] == [[], []]

    run(main())


# --- Changing the registry ------------------------------------------------------------------


@pytest.mark.parametrize("claim", ["the owner", "a stranger"])
def test_a_tracker_that_forges_changes(tmp_path: Path, claim: str) -> None:
    async def main() -> None:
        async with two_trackers(tmp_path) as place:
            mallory, (first, liar) = new_key()[0], place.live.trackers
            author = place.owner if claim == "the owner" else mallory.node
            history = first.machine.keeper.history(place.stream.id)
            before = history.head
            give = SetPermission(mallory.node, BOTH)
            forging = Forging(liar, history.chain, change_of(history, author, mallory.sign, give))
            forging.spread(first.identity.node, *honest(place))
            await eventually(
                lambda: all(node.metrics["notices"].get("fault") for node in place.nodes), "faults"
            )
            await eventually(
                lambda: all(held(node, [liar]) == [] for node in place.nodes), "nobody listens"
            )
            await eventually(
                lambda: liar.identity.node not in first.driver.links, "nor does the other tracker"
            )
            assert history.head == before
            await nobody_gives(place, mallory)
            await place.publish("after")

    run(main())


def test_a_grant_and_a_revocation_on_two_trackers(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_trackers(tmp_path, guests=1) as place:
            ann, eve, (first, second) = new_key()[0], new_key()[0], place.live.trackers
            await place.allow({ann.node: "grant", eve.node: "subscribe"})
            await one_registry(place)
            spy = await place.enter(Spy(place.live, place.stream.id, eve), neighbours=2)
            common = first.machine.keeper.history(place.stream.id).copy()
            parted = [Parted(first), Parted(second)]
            parted[0].part(second)
            parted[1].part(first)
            writes = second.machine.succession.writes
            await eventually(lambda: writes(second.driver.now()), "the second takes over")
            now = time.time()
            removal = make_change(place.live.owner, common.copy(), SetPermission(eve.node, 0), now)
            # The grant comes after the revocation in the order that all go by.
            give, moments = SetPermission(eve.node, BOTH), (now + n / 1000 for n in range(1_000))
            gifts = (make_change(ann, common.copy(), give, moment) for moment in moments)
            gift = next(gift for gift in gifts if hash_change(gift) > hash_change(removal))
            author = await place.enter(Spy(place.live, place.stream.id))
            assert await write(author, second, gift) == ""
            assert await write(author, first, removal) == ""
            states = [t.machine.keeper.state(place.stream.id) for t in (first, second)]
            assert [state.held(eve.node, int(now * 1000)) for state in states] == [0, BOTH]  # type: ignore[union-attr]
            for each in parted:
                each.heal()
            await one_registry(place)
            assert first.machine.keeper.history(place.stream.id).has(gift)
            await nobody_gives(place, eve)
            await spy.hear(Bye, 2)
            caught = len(spy.carried)
            await place.publish("after")
            assert len(spy.carried) == caught

    run(main())


def test_a_removed_administrator_with_a_tracker_for_an_accomplice(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_trackers(tmp_path, guests=1) as place:
            ann, eve, (first, liar) = new_key()[0], new_key()[0], place.live.trackers
            await place.allow({ann.node: "grant subscribe"})
            before = first.machine.keeper.history(place.stream.id).copy()
            await place.allow({ann.node: ""})
            await one_registry(place)
            # As if it had been made just before she was removed.
            gifts = [SetPermission(eve.node, BOTH), SetPermission(ann.node, 31)]
            backdated = make_change(ann, before, gifts, before.at_ms / 1000)
            spy = await place.enter(Spy(place.live, place.stream.id, eve))
            assert (await write(spy, first, backdated)).startswith("stale")
            effects = liar.machine.keeper.copy(liar.identity.node, place.stream.id, backdated)
            liar.driver._perform(effects, liar.driver.now())
            histories = [t.machine.keeper.history(place.stream.id) for t in (first, liar)]
            histories += [n.node.registry.history(place.stream.id) for n in place.nodes]
            await eventually(lambda: all(h.has(backdated) for h in histories), "it is spread")
            await one_registry(place)
            await nobody_gives(place, ann, eve)
            tracker = first.identity.node
            spy.say(tracker, Status(place.part, 0, address=spy.address))
            await spy.hear(Refused)
            await place.publish("after")

    run(main())


@pytest.mark.parametrize("answer", ["", "forbidden: you may not"])
def test_a_tracker_that_keeps_a_revocation_out(tmp_path: Path, answer: str) -> None:
    async def main() -> None:
        async with two_trackers(tmp_path, guests=1) as place:
            eve = new_key()[0]
            await place.allow({eve.node: "subscribe"})
            await one_registry(place)
            liar = Swallowing(place.live.trackers[0], answer)
            await place.allow({eve.node: ""})
            assert liar.swallowed
            await nobody_gives(place, eve, trackers=place.live.trackers[1:])
            await place.publish("after")

    run(main())


# --- Dying ----------------------------------------------------------------------------------


def test_takeover_when_the_writer_dies(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_trackers(tmp_path, guests=1) as place:
            eve, (first, second) = new_key()[0], place.live.trackers
            await place.allow({eve.node: "subscribe"})
            await one_registry(place)
            spy = await place.enter(Spy(place.live, place.stream.id, eve), neighbours=2)
            await kill(first)
            await place.allow({eve.node: ""})
            await spy.hear(Bye, 2)
            caught = len(spy.carried)
            await place.publish("after the removal")
            state = second.machine.keeper.state(place.stream.id)
            assert isinstance(state, StreamState)
            assert eve.node not in state.permissions
            await restart_tracker(place.live, 0)
            await one_registry(place)
            await nobody_gives(place, eve)
            assert len(spy.carried) == caught

    run(main())
