"""Who asks over HTTP: a user signs that it is him, for one storage node and for a while.

    Authorization: Anabranch <user>.<until_ms>.<signature>

The signature covers a domain tag, the network, the storage node, the user and the time until which
the token holds, each with its length before it. So what one storage node was shown is of no use at
another, and what was overheard is of no use for long.
"""

import hashlib
import re

from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import NodeId, parse_node, show

SCHEME = "Anabranch"
MAX_TOKEN_S = 3_600.0
TOKEN_S = 3_300.0  # so that the clocks of the two may differ by some minutes

_DOMAIN = b"anabranch storage token v1"
_TOKEN = re.compile(r"(0x[0-9a-f]{40})\.([0-9]{1,16})\.([0-9a-f]{128})")


def make_token(
    identity: Signer, network: bytes, storage_node: NodeId, now: float, lifetime_s: float = TOKEN_S
) -> str:
    """Make a token with which a user shows himself to a storage node, until it has expired."""
    if not 0 < lifetime_s <= MAX_TOKEN_S:
        raise LocalError(f"a token holds for at most {MAX_TOKEN_S:.0f} s, not for {lifetime_s}")
    until_ms = int((now + lifetime_s) * 1000)
    signature = identity.sign(_digest(network, storage_node, identity.node, until_ms))
    return f"{show(identity.node)}.{until_ms}.{signature.hex()}"


def check_token(
    token: str, network: bytes, storage_node: NodeId, now: float, verify: Verify
) -> NodeId:
    """Return whose token it is; RemoteError if it is nobody's, or not for here and now."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise RemoteError("token-malformed", "a token is <user>.<until_ms>.<signature>")
    user, until_ms = parse_node(found[1]), int(found[2])
    if until_ms <= now * 1000:
        raise RemoteError("token-expired", "make a new one, and look at your clock")
    if until_ms > (now + MAX_TOKEN_S) * 1000:
        raise RemoteError("token-too-long", f"a token holds for at most {MAX_TOKEN_S:.0f} s")
    if not verify(user, _digest(network, storage_node, user, until_ms), bytes.fromhex(found[3])):
        raise RemoteError(
            "token-signature",
            f"{show(user)} did not sign this for {show(storage_node)} in this network",
        )
    return user


def authorization(token: str) -> str:
    """Return what stands in the header of a request."""
    return f"{SCHEME} {token}"


def token_in(header: str) -> str:
    """Return the token that such a header holds; RemoteError if it holds something else."""
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != SCHEME.lower():
        raise RemoteError("token-scheme", f"write Authorization: {SCHEME} <token>")
    return token.strip()


def _digest(network: bytes, storage_node: NodeId, user: NodeId, until_ms: int) -> bytes:
    hashed = hashlib.sha256()
    for field in (_DOMAIN, network, storage_node, user, until_ms.to_bytes(8)):
        hashed.update(len(field).to_bytes(2) + field)
    return hashed.digest()
