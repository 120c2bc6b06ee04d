"""Permissions: looked up anew every second, and what waits for the registry's word."""

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Dropped, Effect, Notice
from anabranch.core.permission import (
    DOUBT_FOR_S,
    MAX_DOUBTFUL,
    MAX_DOUBTFUL_BYTES,
    MAX_DOUBTFUL_PER_PEER,
    MAX_TRUSTED,
    TRUST_FOR_S,
    Permission,
)
from machines import NODES, OTHER, PART, SIGNERS, START, Chain, head, packet

A, B = NODES[1:3]
FRAME = Chain(SIGNERS[9]).frame()
ELSEWHERE = StreamPart(PART.stream[:-3] + "elsewhere", 0)


class Register:
    """Knows who may publish, and counts how often it is asked."""

    def __init__(self, *may: NodeId) -> None:
        self.may = dict.fromkeys(may)
        self.asked = 0

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        self.asked += 1
        return publisher in self.may

    def stores(self, stream: str, user: NodeId) -> bool:
        return False

    def doubt(self, stream: str, now: float) -> list[Effect]:
        return [Notice(None, "asked", stream)]


def kept(permission: Permission, sender: NodeId, many: int = 1, part: StreamPart = PART) -> int:
    """Keep back some packets; return for how many there was no room."""
    dropped: list[Effect] = []
    for _ in range(many):
        dropped += permission.keep_back(part, head(FRAME), sender, packet(FRAME), START)
    return len(dropped)


def test_without_a_registry_everyone_may_publish() -> None:
    permission = Permission(None)
    assert permission.everyone
    assert permission.permits(PART, A, START)
    assert (permission.ask(PART.stream, START), permission.learned(PART.stream, START)) == ([], [])


def test_a_permission_is_looked_up_once_a_second() -> None:
    register = Register(SIGNERS[9].node)
    permission = Permission(register)
    for _ in range(10):
        assert permission.allows(PART, head(FRAME), START)
    assert register.asked == 1
    register.may.clear()  # it expires
    assert permission.allows(PART, head(FRAME), START + TRUST_FOR_S - 0.01)
    assert not permission.allows(PART, head(FRAME), START + TRUST_FOR_S)


def test_a_permission_in_one_part_is_none_in_another() -> None:
    register = Register(SIGNERS[9].node)
    permission = Permission(register)
    assert permission.allows(PART, head(FRAME), START)
    register.may.clear()
    assert not permission.allows(OTHER, head(Chain(SIGNERS[9], OTHER).frame()), START)


def test_the_registrys_word_ends_all_trust() -> None:
    register = Register(SIGNERS[9].node)
    permission = Permission(register)
    permission.allows(PART, head(FRAME), START)
    register.may.clear()
    assert permission.learned(ELSEWHERE.stream, START) == []
    assert not permission.allows(PART, head(FRAME), START)


def test_what_is_trusted_is_bounded() -> None:
    permission = Permission(Register(SIGNERS[9].node))
    for number in range(MAX_TRUSTED + 10):
        permission.allows(PART, head(Chain(SIGNERS[9], number=number).frame()), START)
    size, bound = permission.sizes()["trusted chains"]
    assert 0 < size <= bound == MAX_TRUSTED


def test_what_may_pass_is_handed_over_in_its_order_and_the_rest_waits_on() -> None:
    register = Register()
    permission, chain = Permission(register), Chain(SIGNERS[8])
    frames = [FRAME, chain.frame(), chain.frame()]
    for frame in frames:
        permission.keep_back(PART, head(frame), A, packet(frame), START)
    kept(permission, B, part=ELSEWHERE)
    assert permission.learned(PART.stream, START + 1) == []
    register.may = {SIGNERS[8].node: None}
    passing = permission.learned(PART.stream, START + 1)
    assert [(p.head, p.sender) for p in passing] == [(head(f), A) for f in frames[1:]]
    assert permission.wakeup_at == START + DOUBT_FOR_S
    assert permission.expire(START + DOUBT_FOR_S - 0.01) == []
    assert permission.expire(START + DOUBT_FOR_S) == [
        Dropped(head(FRAME), "unpermitted", A),
        Dropped(head(FRAME), "unpermitted", B),
    ]
    assert (permission.wakeup_at, permission.sizes()["doubtful bytes"][0]) == (None, 0)


def test_no_neighbour_fills_all_the_room() -> None:
    permission = Permission(Register())
    assert kept(permission, A, MAX_DOUBTFUL_PER_PEER) == 0
    assert kept(permission, A, 3) == 3
    others = MAX_DOUBTFUL // MAX_DOUBTFUL_PER_PEER - 1
    for place in range(others):
        assert kept(permission, NODES[5 + place], MAX_DOUBTFUL_PER_PEER) == 0
    assert kept(permission, B) == 1
    assert permission.sizes()["doubtful packets"] == (MAX_DOUBTFUL, MAX_DOUBTFUL)


def test_what_waits_is_bounded_in_bytes() -> None:
    permission, dropped = Permission(Register()), 0
    large = packet(Chain(SIGNERS[9]).frame(bytes(100_000)))
    for sender in NODES[1:20]:
        dropped += len(permission.keep_back(PART, head(FRAME), sender, large, START))
    assert dropped == 19 - MAX_DOUBTFUL_BYTES // len(large)
    size, bound = permission.sizes()["doubtful bytes"]
    assert size <= bound
