"""Those between a subscriber and a publisher: they pass on requests and answers as they are."""

import msgspec
import pytest

from anabranch.core import key_routes
from anabranch.core.held_frames import HOLD_S
from anabranch.core.ids import chain_key
from anabranch.core.key_asking import straying
from anabranch.core.key_records import KeyQuestion, make_request
from anabranch.core.machine import LinkDown
from anabranch.core.messages import KeyAnswer, KeyRequest
from anabranch.core.messages.links import MAX_KEY_HOPS
from key_world import NET, READ, WRITE, KeyWorld, diamond, line, losing
from machines import NODES, PART, SIGNERS


def request(ticket: bytes = b"t" * 16, hops: int = 1, chain: int = 1) -> KeyRequest:
    """Make a request of which nobody on the way looks at more than the outside."""
    return KeyRequest(PART, chain_key(NODES[1], chain), ticket, hops, b"anything")


def carriers() -> KeyWorld:
    """Make a row of nodes without a publisher who would answer."""
    world = KeyWorld((2, 3), (3, 4))
    for place in (2, 3, 4):
        world.let(place, READ)
    world.start(2, 3, 4)
    return world


def test_a_request_is_passed_on_once_and_never_back() -> None:
    world = carriers()
    world.say(2, 3, request())
    assert world.requests(sender=3) == [request(hops=2)]
    assert world.requests(sender=3, to=2) == []
    assert world.requests(sender=4) == []  # it has nobody else
    world.say(2, 3, request())
    world.say(4, 3, request())
    assert len(world.requests(sender=3)) == 1


def test_a_request_that_has_gone_too_far_ends() -> None:
    world = carriers()
    world.say(2, 3, request(hops=MAX_KEY_HOPS - 1))
    world.say(2, 3, request(b"u" * 16, MAX_KEY_HOPS))
    assert world.requests(sender=3) == [request(hops=MAX_KEY_HOPS)]


def test_who_is_no_neighbour_has_nothing_passed_on() -> None:
    world = carriers()
    world.say(7, 3, request())
    assert world.requests(sender=3) == []


def test_an_answer_is_passed_back_as_it_is_and_once() -> None:
    world = carriers()
    world.say(2, 3, request())
    answer = KeyAnswer(PART, b"t" * 16, b"whatever")
    world.say(2, 3, answer)  # not from who was asked
    assert world.answers() == []
    world.say(4, 3, answer)
    world.say(4, 3, answer)
    assert world.answers() == world.answers(sender=3, to=2) == [answer]


def test_a_request_that_is_made_again_gets_past_somebody_deaf_on_the_way() -> None:
    # 5 has two neighbours, and frames come to both of them through 2, who passes nothing on.
    world = KeyWorld((1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (1, 6), (3, 6), (4, 6))
    world.let(1, WRITE)
    for place in range(2, 7):
        world.let(place, READ)
    world.start(1, subscribe=False)
    world.start(2, 3, 4, 5, 6)
    deaf = NODES[2]
    world.fate = lambda sender, to, message: (
        [] if type(message) is KeyRequest and to == deaf else [message]
    )
    world.publish(1, b"one")
    world.wait(HOLD_S - 0.01)
    assert world.read(5) == [b"one"]


def test_a_first_request_strays_nowhere_and_a_later_one_here_and_there() -> None:
    first, later = bytes(16), b"\1" + bytes(range(1, 16))
    assert {straying(first[:1] + later[1:], hops) for hops in range(2, 65)} == {None}
    assert {straying(later, hops) for hops in range(2, 65)} == {None, *range(8)}


def test_who_is_gone_is_sent_no_answer() -> None:
    world = carriers()
    world.say(2, 3, request())
    world.do(3, LinkDown(NODES[2], "reset"))
    world.say(4, 3, KeyAnswer(PART, b"t" * 16, b"whatever"))
    assert world.answers() == []
    assert world.peers[NODES[3]].sizes()["key routes"][0] == 0


def test_a_neighbour_is_asked_no_more_than_it_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_routes, "REQUESTS_AT_ONCE", 6.0)
    world = carriers()
    for number in range(5):
        world.say(2, 3, request(bytes([number]) * 16))
    assert len(world.requests(sender=3)) == 3  # the other half is for other publishers


def test_a_request_that_comes_back_to_who_made_it_ends() -> None:
    world = diamond()
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    (mine,) = world.requests(sender=4)
    world.wire.clear()
    world.say(3, 4, msgspec.structs.replace(mine, hops=5))
    assert world.requests(sender=4) == []


def test_who_publishes_under_the_same_name_passes_on_what_only_the_other_can_answer() -> None:
    world = line(3, 3)
    world.publish(2, b"mine")
    twin = chain_key(NODES[2], 99)
    known = world.kept[NODES[2]][0].key_id
    for asked_for, passed_on in ((b"x" * 16, 1), (known, 0)):
        world.wire.clear()
        question = KeyQuestion(
            NET,
            PART.stream,
            NODES[2],
            NODES[3],
            SIGNERS[3].public,
            (asked_for,),
            int(world.now * 1000),
            b"n" * 16,
        )
        asked = KeyRequest(PART, twin, asked_for, 1, make_request(SIGNERS[3], question))
        world.say(3, 2, asked)
        assert len(world.requests(sender=2, to=1)) == passed_on
        assert len(world.answers(sender=2, to=3)) == 1 - passed_on
