"""Mandates: for which user a node acts.

A node's own key makes its links, a user's key has the rights. So a node brings along, as its
first word on every link, what its user has signed: that this node acts for him in this network,
until then. The link has proved the node's key, hence nobody else can use what is signed for it.
"""

import hashlib

from anabranch.core.errors import RemoteError
from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import MAX_TIMESTAMP_MS, NodeId
from anabranch.core.machine import Sizes
from anabranch.core.messages import Introduce

MANDATE_S = 24 * 3600.0
RENEW_S = MANDATE_S / 2
MAX_MANDATE_S = 2 * MANDATE_S  # the clock of who made it may be ahead of ours
MAX_INTRODUCED = 1 << 17  # more than a node or a tracker has links

_DOMAIN = b"anabranch mandate v1\0"


def mandate_digest(network: bytes, user: NodeId, node: NodeId, until_ms: int) -> bytes:
    """Hash what a mandate's signature covers; all parts but the network's name have one length."""
    covered = len(network).to_bytes(4) + network + user + node + until_ms.to_bytes(8)
    return hashlib.sha256(_DOMAIN + covered).digest()


def introduce(signer: Signer, network: bytes, node: NodeId, now: float) -> Introduce:
    """Let a node act for the user who signs, for a day from now."""
    until_ms = min(int((now + MANDATE_S) * 1000), MAX_TIMESTAMP_MS)
    signature = signer.sign(mandate_digest(network, signer.node, node, until_ms))
    return Introduce(signer.node, until_ms, signature)


class Introductions:
    """For whom the nodes act that we have links to."""

    def __init__(self, network: bytes, verify: Verify) -> None:
        self._network = network
        self._verify = verify
        self._heard: dict[NodeId, Introduce] = {}

    def take(self, peer: NodeId, introduction: Introduce, now: float) -> None:
        """Believe a peer for whom it acts; RemoteError if its mandate does not hold."""
        if introduction == self._heard.get(peer):
            return  # it is said again where it may have been lost
        user, until_ms = introduction.user, introduction.until_ms
        if not _holds(until_ms, now):
            raise RemoteError("mandate-expired", f"{until_ms} at {now:.3f}")
        if until_ms > (now + MAX_MANDATE_S) * 1000:
            raise RemoteError("mandate-too-long", f"{until_ms} at {now:.3f}")
        digest = mandate_digest(self._network, user, peer, until_ms)
        if not self._verify(user, digest, introduction.signature):
            raise RemoteError("mandate-forged", f"in the name of {user.hex()}")
        self._heard.pop(peer, None)
        self._heard[peer] = introduction
        if len(self._heard) > MAX_INTRODUCED:
            del self._heard[next(iter(self._heard))]

    def gone(self, peer: NodeId) -> None:
        """Forget a peer whose link has ended."""
        self._heard.pop(peer, None)

    def user(self, peer: NodeId, now: float) -> NodeId | None:
        """Return for whom a peer acts; None if it has not said so, or no longer may."""
        heard = self._heard.get(peer)
        return heard.user if heard is not None and _holds(heard.until_ms, now) else None

    def sizes(self) -> Sizes:
        """Return the table with its bound."""
        return {"introductions": (len(self._heard), MAX_INTRODUCED)}


def _holds(until_ms: int, now: float) -> bool:
    return until_ms > now * 1000
