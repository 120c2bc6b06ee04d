"""What a hostile conversation needs where there is a registry: keys, mandates, a tracker's disk."""

import random
from functools import partial
from typing import Any

from register import Register

from anabranch.core.changes import (
    Genesis,
    SetTrackers,
    TrackerEntry,
    decode_change,
    encode_genesis,
    network_name,
)
from anabranch.core.encryption import new_key
from anabranch.core.errors import RemoteError
from anabranch.core.frames import lock_of
from anabranch.core.group_keys import FrameLock
from anabranch.core.history import History, make_change
from anabranch.core.identity import CheapKeys, Signer
from anabranch.core.ids import NodeId
from anabranch.core.key_exchange import KeyExchange
from anabranch.core.key_records import KeyQuestion, make_request, read_answer, read_request
from anabranch.core.machine import Effect, Event, Sizes, Store, Stored
from anabranch.core.mandate import introduce
from anabranch.core.messages import Introduce
from anabranch.core.messages.registry import NETWORK
from anabranch.core.tracker_node import TrackerNode
from anabranch.overlays import TOPOLOGIES

KEYS = CheapKeys()
OWNER = KEYS.identity(b"owner of the network")
GENESIS = encode_genesis(Genesis(1, "hostile", 0, OWNER.node, bytes(16)))
NAME = network_name(GENESIS)
LOCK = FrameLock(new_key(random.Random(1).randbytes), None, random.Random(2).randbytes)


def read_all(data: bytes) -> None:
    """Take bytes for every record that travels inside a packet: RemoteError or nothing."""
    for function in (
        decode_change,
        lock_of,
        lambda raw: read_request(raw, NAME, KEYS),
        lambda raw: read_answer(raw, b"", NAME, KEYS.verify),
    ):
        try:
            function(data)
        except RemoteError:
            continue


def key_request(signer: Signer, stream: str, publisher: NodeId, key_id: bytes, at: float) -> bytes:
    """Ask for a key, well signed."""
    question = KeyQuestion(
        NAME, stream, publisher, signer.node, signer.public, (key_id,), int(at * 1000), bytes(16)
    )
    return make_request(signer, question)


def introduction(user: Signer, node: NodeId, now: float) -> Introduce:
    """Introduce a node that acts for a user."""
    return introduce(user, NAME, node, now)


def peer_options(signer: Signer, register: Register, rng: random.Random) -> dict[str, Any]:
    """Return what makes a Peer one of a network with a registry and private streams."""
    return {
        "permits": register,
        "services": [register],
        "network": NAME,
        "mandate": partial(introduce, signer, NAME, signer.node),
        "keys": partial(KeyExchange, signer, KEYS, rng.randbytes, NAME, register, ()),
    }


class Disked:
    """A TrackerNode whose disk is as quick as it is reliable."""

    def __init__(self, me: NodeId, other: NodeId) -> None:
        history = History(NETWORK, NAME)
        history.add(GENESIS, KEYS.verify)
        both = SetTrackers((TrackerEntry(me), TrackerEntry(other)))
        rows = [(NETWORK, 1, GENESIS), (NETWORK, 2, make_change(OWNER, history, both, 1.0))]
        make = TOPOLOGIES
        self.inner = TrackerNode(me, NAME, KEYS.verify, random.Random(1), make, rows)

    @property
    def wakeup_at(self) -> float | None:
        """When the tracker wants to be woken."""
        return self.inner.wakeup_at

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Let the tracker act, and store what it wants stored."""
        done: list[Effect] = []
        waiting = self.inner.handle(event, now)
        while waiting:
            effect = waiting.pop(0)
            if type(effect) is Store:
                waiting = self.inner.handle(Stored(effect.token), now) + waiting
            else:
                done.append(effect)
        return done

    def sizes(self) -> Sizes:
        """Return its tables."""
        return self.inner.sizes()
