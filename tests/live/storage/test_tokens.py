"""Who asks: tokens hold for one user, one storage node, one network, and not for long."""

import pytest

from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.ids import NodeId, show
from anabranch.live.storage.tokens import (
    MAX_TOKEN_S,
    TOKEN_S,
    authorization,
    check_token,
    make_token,
    token_in,
)

USER, OTHER = Identity(b"u" * 32), Identity(b"o" * 32)
NETWORK, NODE = b"n" * 32, NodeId(b"s" * 20)
NOW = 1_000_000.0
KEYS = KnownKeys()


def reason(token: str, network: bytes = NETWORK, node: NodeId = NODE, now: float = NOW) -> str:
    with pytest.raises(RemoteError) as caught:
        check_token(token, network, node, now, KEYS.verify)
    return caught.value.reason


def test_a_token_names_its_user() -> None:
    token = make_token(USER, NETWORK, NODE, NOW)
    assert token.startswith(show(USER.node) + ".")
    assert check_token(token, NETWORK, NODE, NOW, KEYS.verify) == USER.node
    assert token_in(authorization(token)) == token


def test_it_holds_until_it_has_expired() -> None:
    token = make_token(USER, NETWORK, NODE, NOW)
    just_before = NOW + TOKEN_S - 0.001
    assert check_token(token, NETWORK, NODE, just_before, KEYS.verify) == USER.node
    assert reason(token, now=NOW + TOKEN_S) == "token-expired"


def test_clocks_may_differ_by_minutes() -> None:
    token = make_token(USER, NETWORK, NODE, NOW)
    assert check_token(token, NETWORK, NODE, NOW - 300, KEYS.verify) == USER.node
    assert reason(token, now=NOW - 301) == "token-too-long"


def test_it_is_for_one_node_in_one_network() -> None:
    token = make_token(USER, NETWORK, NODE, NOW)
    assert reason(token, node=NodeId(b"t" * 20)) == "token-signature"
    assert reason(token, network=b"m" * 32) == "token-signature"


def test_nobody_can_speak_for_somebody_else_or_stay_longer() -> None:
    user, until, signature = make_token(USER, NETWORK, NODE, NOW, 60).split(".")
    assert reason(f"{show(OTHER.node)}.{until}.{signature}") == "token-signature"
    assert reason(f"{user}.{int(until) + 1000}.{signature}") == "token-signature"


@pytest.mark.parametrize(
    "token", ["", "x", "0x12.5.ab", "a.b.c", "0x" + "0" * 40 + ".1." + "A" * 128]
)
def test_what_is_no_token_is_refused(token: str) -> None:
    assert reason(token) == "token-malformed"


@pytest.mark.parametrize("header", ["", "Bearer abc", "Anabranchabc"])
def test_other_ways_to_say_who_one_is_are_refused(header: str) -> None:
    with pytest.raises(RemoteError, match="Anabranch <token>"):
        token_in(header)


@pytest.mark.parametrize("lifetime_s", [0, -1, MAX_TOKEN_S + 1])
def test_no_token_is_made_that_would_be_refused(lifetime_s: float) -> None:
    with pytest.raises(LocalError, match="at most 3600 s"):
        make_token(USER, NETWORK, NODE, NOW, lifetime_s)
