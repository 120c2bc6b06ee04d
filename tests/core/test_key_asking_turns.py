"""Many chains of one publisher wait for keys: each has its turn, and nobody else waits for them."""

import random

import pytest

from anabranch.core import frames, held_frames
from anabranch.core.encryption import GroupKey, new_key
from anabranch.core.group_keys import FrameLock, KeyRing
from anabranch.core.held_frames import HOLD_S, Held, HeldFrames
from anabranch.core.ids import NodeId, StreamPart, chain_key, next_number, part_key
from anabranch.core.key_asking import ANSWER_S, ASKS_PER_PUBLISHER, NO_KEY, REFUSED_S, Asking
from anabranch.core.key_records import make_refusal, read_request
from anabranch.core.key_routes import KeyRoutes
from anabranch.core.machine import Draft, LinkDown, LinkUp, Send
from anabranch.core.messages import KeyAnswer, KeyRequest
from anabranch.core.registry import StreamState
from key_world import NET, READ, WRITE, KeyWorld, View, as_it_is, line, losing
from machines import KEYS, NODES, OTHER, PART, SIGNERS, START, data, leftovers, of

HONEST, READER, HOSTILE = 1, 2, 3
AT_ONCE = ASKS_PER_PUBLISHER

ENTROPY = random.Random(7).randbytes


def locked(place: int, chain: int, now: float, key: GroupKey, part: StreamPart = PART) -> bytes:
    """Make a frame that begins a chain of this publisher."""
    number = next_number(0, int(now * 1000))
    drafts = [(number, Draft(b"%d" % chain))]
    name, lock = chain_key(NODES[place], chain), FrameLock(key, None, ENTROPY)
    return frames.build(part_key(part), name, 0, drafts, SIGNERS[place].sign, lock)


# --- A publisher that wants others not to be read -------------------------------------------


class Attack:
    """A reader between a publisher and another who makes up chains and keys without end."""

    def __init__(self, refuses: bool) -> None:
        self.world = KeyWorld((HONEST, READER), (READER, HOSTILE))
        for place, rights in ((HONEST, WRITE | READ), (READER, READ), (HOSTILE, WRITE | READ)):
            self.world.let(place, rights)
        self.world.start(HONEST, READER, HOSTILE)
        self.refuses = refuses
        self.chains = 0

    def go_on(self, frames_a_second: int) -> None:
        for _ in range(frames_a_second):
            self.chains += 1
            frame = locked(HOSTILE, self.chains, self.world.now, new_key(ENTROPY))
            self.world.do(READER, data(NODES[HOSTILE], frame))
            if self.refuses:
                self.refuse()
        self.world.wait(1)

    def refuse(self) -> None:
        """Answer at once, so that more is asked."""
        requests = self.world.requests(to=HOSTILE)
        self.world.wire.clear()
        for asked in requests:
            question = read_request(asked.request, NET, KEYS)
            refusal = make_refusal(SIGNERS[HOSTILE], asked.request, question, "no")
            self.world.say(HOSTILE, READER, KeyAnswer(PART, asked.ticket, refusal))


@pytest.mark.parametrize("refuses", [False, True])
def test_who_makes_up_chains_and_keys_keeps_nobody_from_being_read(refuses: bool) -> None:
    attack = Attack(refuses)
    world = attack.world
    for second in range(60):
        attack.go_on(40)
        if second >= 28:
            world.publish(HONEST, b"honest %d" % second)
    assert world.read(READER) == [b"honest %d" % second for second in range(28, 60)]
    assert world.ended(READER) == []


def test_nor_when_there_is_no_room_for_what_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_frames, "MAX_HELD_FRAMES", 50)
    attack = Attack(refuses=False)
    world = attack.world
    attack.go_on(100)
    world.fate = losing(KeyAnswer)
    world.publish(HONEST, b"one", b"two")
    attack.go_on(100)
    world.fate = as_it_is
    attack.go_on(100)
    attack.go_on(100)
    assert world.read(READER) == [b"one", b"two"]


def test_what_is_asked_of_a_publisher_does_not_grow_with_its_chains() -> None:
    attack = Attack(refuses=False)
    for _ in range(int(HOLD_S)):
        attack.go_on(40)
    asked = [request for request in attack.world.requests(sender=READER) if request.hops == 1]
    assert len(asked) <= AT_ONCE * HOLD_S / ANSWER_S  # of 1200 chains


# --- Turns ----------------------------------------------------------------------------------


def crowd(size: int) -> tuple[KeyWorld, GroupKey]:
    """Let a reader wait for a key in many chains, of which no process knows anything."""
    world, key = line(2, 2), new_key(ENTROPY)
    world.publish(1, b"one")
    world.wire.clear()
    for chain in range(1, size + 1):
        world.do(2, data(NODES[1], locked(1, chain, world.now, key)))
    return world, key


def asked_for(world: KeyWorld) -> list[int]:
    """Return the chains that were asked for, in that order, and forget them."""
    found = [int.from_bytes(request.chain[-8:]) for request in world.requests(sender=2)]
    world.wire.clear()
    return found


def test_all_chains_have_their_turn() -> None:
    world, _ = crowd(10)
    assert asked_for(world) == [1, 2, 3, 4]
    for turn in ([5, 6, 7, 8], [9, 10, 1, 2], [3, 4, 5, 6]):
        world.wait(ANSWER_S)
        assert asked_for(world)[:4] == turn
        world.wait(ANSWER_S * (turn[-1] < 5))  # a second try has twice the time


def test_chains_that_nobody_answers_for_do_not_keep_one_from_being_read() -> None:
    world, _ = crowd(3 * AT_ONCE)
    world.state.removals += 1  # a reason for another key
    world.announce()
    world.publish(1, b"two")
    assert world.read(2) == [b"one"]
    world.wait(3 * ANSWER_S)
    assert world.read(2) == [b"one", b"two"]
    world.wait(HOLD_S)
    assert world.dropped(2) == [NO_KEY] * 3 * AT_ONCE
    left = leftovers(world.peers[NODES[2]])
    assert not {"keys asked for", "publishers asked", "frames without a key"} & set(left)


def test_an_answer_that_comes_late_counts_though_others_have_their_turn() -> None:
    world, key = crowd(2 * AT_ONCE)
    first = world.requests(sender=2)[0]
    world.wait(ANSWER_S)
    world.peers[NODES[1]]._keys._ring.use(PART.stream, key)
    world.say(2, 1, first)
    assert sorted(world.read(2)[1:]) == [b"%d" % chain for chain in range(1, 2 * AT_ONCE + 1)]
    assert world.dropped(2) == []


def test_an_answer_that_is_late_and_spoiled_takes_no_turn() -> None:
    world, _ = crowd(2 * AT_ONCE)
    first = world.requests(sender=2)[0]
    world.wait(ANSWER_S)
    asked_for(world)
    world.say(1, 2, KeyAnswer(PART, first.ticket, b"junk"))
    assert asked_for(world) == []
    world.wait(ANSWER_S)
    assert asked_for(world) == [1, 2, 3, 4]


def test_a_link_that_ended_costs_no_more_than_the_turn() -> None:
    world, _ = crowd(2 * AT_ONCE)
    world.wait(ANSWER_S)
    asked_for(world)
    world.do(2, LinkDown(NODES[1], "reset"))
    world.do(2, LinkUp(NODES[1]))
    world.wait(0)
    assert asked_for(world) == [1, 2, 3, 4]


def test_chains_that_are_given_up_leave_their_turn_to_those_of_another_part() -> None:
    held, view = HeldFrames(), View(StreamState(PART.stream, NET))
    ring, routes = KeyRing(NODES[2]), KeyRoutes()
    asking = Asking(
        SIGNERS[2], KEYS, ENTROPY, NET, view, ring, held, routes, lambda part, chain: [NODES[1]]
    )

    def came(part: StreamPart) -> list[KeyRequest]:
        frame = locked(1, 1 + len(held), START, new_key(ENTROPY), part)
        each = Held(part, frames.peek(frame), frame, 1, NODES[1], frames.lock_of(frame))
        held.put(each, START)
        return [send.message for send in of(Send, asking.look([each.chain], START))]

    asked = [len(came(part)) for part in [PART] * AT_ONCE + [OTHER] * AT_ONCE]
    assert asked == [1] * AT_ONCE + [0] * AT_ONCE
    gone = [each.chain for each in held.leave(part_key(PART))]
    sent = [send.message.part for send in of(Send, asking.look(gone, START))]
    assert sent == [OTHER] * AT_ONCE
    gone = [each.chain for each in held.leave(part_key(OTHER))]
    assert asking.look(gone, START) == []
    assert not any(size for size, _ in asking.sizes().values())
    assert asking.wakeup_at is None


@pytest.mark.parametrize("ways", [[NODES[1]], []])
def test_a_key_whose_turn_never_came_was_not_asked_for_in_vain(ways: list[NodeId]) -> None:
    held, view = HeldFrames(), View(StreamState(PART.stream, NET))
    common = (KeyRing(NODES[2]), held, KeyRoutes(), lambda part, chain: ways)
    asking, gone = Asking(SIGNERS[2], KEYS, ENTROPY, NET, view, *common), list[Held]()
    for number in range(2 * AT_ONCE):
        frame = locked(1, number, START, new_key(ENTROPY))
        each = Held(PART, frames.peek(frame), frame, 1, NODES[1], frames.lock_of(frame))
        held.put(each, START)
        asking.look([each.chain], START)
        gone.append(each)
    asking.gave_up(gone, START)
    vain = [asking.is_in_vain(each.key, START) for each in gone]
    assert vain == [True] * AT_ONCE + [False] * AT_ONCE
    assert not asking.is_in_vain(gone[0].key, START + REFUSED_S)
