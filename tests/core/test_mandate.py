"""Mandates: for whom a node acts, and what nobody can pretend."""

from typing import Any

import msgspec
import pytest

from anabranch.core import mandate as module
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.ids import NodeId
from anabranch.core.mandate import MANDATE_S, MAX_MANDATE_S, Introductions, introduce
from anabranch.core.messages import Introduce
from machines import KEYS, NODES, SIGNERS, START

NET = b"n" * 32
USER, NODE = SIGNERS[5], NODES[1]
MINE = introduce(USER, NET, NODE, START)


def introductions(network: bytes = NET) -> Introductions:
    return Introductions(network, KEYS.verify)


def reason(known: Introductions, peer: NodeId, word: Introduce, now: float = START) -> str:
    with pytest.raises(RemoteError) as caught:
        known.take(peer, word, now)
    return caught.value.reason


def test_a_node_acts_for_its_user_for_a_day() -> None:
    known = introductions()
    assert known.user(NODE, START) is None
    known.take(NODE, MINE, START)
    assert known.user(NODE, START) == USER.node
    assert known.user(NODE, START + MANDATE_S - 0.01) == USER.node
    assert known.user(NODE, START + MANDATE_S) is None
    assert known.user(NODES[2], START) is None


def test_real_keys_sign_mandates_as_well() -> None:
    user, known = Identity(b"\7" * 32), Introductions(NET, KnownKeys().verify)
    word = introduce(user, NET, NODE, START)
    known.take(NODE, word, START)
    assert known.user(NODE, START) == user.node
    assert reason(known, NODES[2], word) == "mandate-forged"


def test_nobody_else_can_use_it() -> None:
    assert reason(introductions(), NODES[2], MINE) == "mandate-forged"
    assert reason(introductions(b"m" * 32), NODE, MINE) == "mandate-forged"
    assert reason(introductions(b""), NODE, MINE) == "mandate-forged"


@pytest.mark.parametrize(
    "change",
    [
        {"user": NODES[6]},
        {"until_ms": MINE.until_ms + 1},
        {"until_ms": MINE.until_ms - 1},
        {"signature": bytes(64)},
        {"signature": MINE.signature[:-1] + bytes([MINE.signature[-1] ^ 1])},
    ],
)
def test_nothing_of_it_can_be_changed(change: dict[str, Any]) -> None:
    known = introductions()
    assert reason(known, NODE, msgspec.structs.replace(MINE, **change)) == "mandate-forged"
    assert known.user(NODE, START) is None


def test_a_node_cannot_write_its_own_mandate_for_another_user() -> None:
    signed_by_itself = introduce(SIGNERS[1], NET, NODE, START)
    pretended = msgspec.structs.replace(signed_by_itself, user=USER.node)
    assert reason(introductions(), NODE, pretended) == "mandate-forged"


def test_one_that_is_over_or_lasts_too_long_does_not_hold() -> None:
    known = introductions()
    assert reason(known, NODE, MINE, START + MANDATE_S) == "mandate-expired"
    eager = introduce(USER, NET, NODE, START + MAX_MANDATE_S - MANDATE_S + 0.01)
    assert reason(known, NODE, eager) == "mandate-too-long"
    known.take(NODE, introduce(USER, NET, NODE, START + MAX_MANDATE_S - MANDATE_S), START)


def test_a_newer_one_takes_its_place_and_a_bad_one_does_not() -> None:
    known = introductions()
    known.take(NODE, MINE, START)
    later = START + MANDATE_S / 2
    assert reason(known, NODE, introduce(USER, b"m" * 32, NODE, later), later) == "mandate-forged"
    assert known.user(NODE, later) == USER.node
    known.take(NODE, introduce(SIGNERS[6], NET, NODE, later), later)
    assert known.user(NODE, START + MANDATE_S) == SIGNERS[6].node


def test_what_is_said_again_costs_no_signature() -> None:
    looked: list[NodeId] = []

    def verify(user: NodeId, digest: bytes, signature: bytes) -> bool:
        looked.append(user)
        return KEYS.verify(user, digest, signature)

    known = Introductions(NET, verify)
    known.take(NODE, MINE, START)
    known.take(NODE, MINE, START + 1)
    assert looked == [USER.node]
    known.gone(NODE)
    assert known.user(NODE, START) is None
    known.take(NODE, MINE, START + 2)
    assert looked == [USER.node] * 2


def test_they_go_with_their_link_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INTRODUCED", 2)
    known = introductions()
    for node in NODES[1:4]:
        known.take(node, introduce(USER, NET, node, START), START)
    assert known.sizes() == {"introductions": (2, 2)}
    assert [known.user(node, START) for node in NODES[1:4]] == [None, USER.node, USER.node]
    known.gone(NODES[2])
    known.gone(NODES[9])
    assert known.sizes() == {"introductions": (1, 2)}
