"""GossipSub of py-libp2p: a network of others that signs, as ours does.

Members are linked as those of the bare mesh are, four neighbours each, and GossipSub takes all of
them into its mesh. Signing is strict: every message carries the signature (Ed25519) of its
publisher, and every member checks it once. Links are as libp2p makes them by itself: TCP, Noise,
Yamux. Version 1.1 of the protocol, because later ones announce even small messages before sending.

It runs on trio: all members of a process share one thread with one trio loop, because a thread for
each would have them wait for one another. What it limits by default is lifted, or it would drop
messages: ten a second from a neighbour, 32 that wait for a neighbour, 32 that wait for the
subscriber. The last two are not options, so what its module has for them is replaced.
"""

import asyncio
import hashlib
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from random import Random
from typing import Any

from flooding.harness import MEMBERS, PATIENCE_S, free_ports
from flooding.meshes import DEGREE, Mailbox, regular_graph

TOPIC = "flood"
PROTOCOL = "/meshsub/1.1.0"
HEARTBEAT_S = 1  # as GossipSub's authors have it; py-libp2p's own default is two minutes
MAX_WAITING = 1 << 20  # messages: nothing is to be dropped


class TrioThread:
    """A trio loop in a thread of its own; it ends with the last member."""

    def __init__(self) -> None:
        self.members = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._token: Any
        self._nursery: Any
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        import trio

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                self._token, self._nursery = trio.lowlevel.current_trio_token(), nursery
                nursery.start_soon(trio.sleep_forever)
                self._ready.set()

        trio.run(main)

    async def begin(self, task: Callable[..., Awaitable[None]]) -> None:
        """Run a task in there; return when it says that it has started."""
        import trio

        run = partial(trio.from_thread.run, trio_token=self._token)
        await asyncio.to_thread(run, self._nursery.start, task)

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function in there; calls keep their order."""
        self._token.run_sync_soon(call, *arguments)

    async def end(self) -> None:
        """End the loop and the thread."""
        self.soon(self._nursery.cancel_scope.cancel)
        await asyncio.to_thread(self._thread.join, PATIENCE_S)


class GossipMember:
    """A host with pubsub; what it receives is handed to asyncio, as much at once as there is."""

    def __init__(self, thread: TrioThread, index: int, where: str) -> None:
        self._thread = thread
        self._index = index
        self._ports, self._edges = json.loads(where)
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox()
        self._came: list[bytes] = []
        self._outgoing: Any
        self._scope: Any

    async def live(self, task_status: Any) -> None:
        """Be a host, in trio, until the scope is cancelled."""
        import trio
        from libp2p import new_host
        from libp2p.pubsub.gossipsub import GossipSub as Router
        from libp2p.pubsub.pubsub import Pubsub
        from libp2p.tools.anyio_service import background_trio_service

        place = _address(self._ports[self._index])
        host = new_host(key_pair=_key_pair(self._index), listen_addrs=[place])
        router = Router(
            *([PROTOCOL], DEGREE, DEGREE, 2 * DEGREE),
            heartbeat_interval=HEARTBEAT_S,
            spam_protection_enabled=False,
            eclipse_protection_enabled=False,  # it wants neighbours at several addresses
        )
        pubsub = Pubsub(host, router, strict_signing=True)
        self._outgoing, outgoing = trio.open_memory_channel[bytes](MAX_WAITING)
        async with (
            host.run(listen_addrs=[place]),
            background_trio_service(pubsub),
            background_trio_service(router),
            trio.open_nursery() as nursery,
        ):
            self._scope = nursery.cancel_scope
            await pubsub.wait_until_ready()
            subscription = await pubsub.subscribe(TOPIC)
            for one, other in self._edges:
                if max(one, other) == self._index:
                    await self._connect(host, pubsub, min(one, other))
            nursery.start_soon(self._read, subscription)
            task_status.started()
            async for payload in outgoing:
                await pubsub.publish(TOPIC, payload)

    async def _connect(self, host: Any, pubsub: Any, index: int) -> None:
        from libp2p.peer.id import ID
        from libp2p.peer.peerinfo import PeerInfo

        peer = ID.from_pubkey(_key_pair(index).public_key)
        await host.connect(PeerInfo(peer, [_address(self._ports[index])]))
        await pubsub.wait_for_peer(peer, PATIENCE_S)

    async def _read(self, subscription: Any) -> None:
        async for message in subscription:
            if self._index:  # a publisher is handed its own messages as well
                self._came.append(message.data)
                if len(self._came) == 1:
                    self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        came, self._came = self._came, []
        for payload in came:
            self._mailbox.put(payload)

    async def publish(self, payload: bytes) -> None:
        """Let it be published in the other thread."""
        self._thread.soon(self._outgoing.send_nowait, payload)

    def receive(self) -> AsyncIterator[bytes]:
        """Yield what came."""
        return self._mailbox.read()

    async def close(self) -> None:
        """Leave."""
        self._thread.soon(self._scope.cancel)
        self._thread.members -= 1
        if not self._thread.members:
            await self._thread.end()


class GossipSub:
    """Hosts of py-libp2p with four neighbours each."""

    name, signed = "libp2p gossipsub", True

    def __init__(self) -> None:
        self._thread: TrioThread | None = None

    @staticmethod
    def problem() -> str:
        """Return why it cannot be measured."""
        found = find_spec("libp2p")  # to import it takes seconds
        return "" if found else "libp2p is not installed"

    async def start(self) -> str:
        """Choose places and neighbours."""
        return json.dumps([free_ports(MEMBERS), regular_graph(Random(7))])

    async def join(self, index: int, where: str) -> GossipMember:
        """Start a host that is linked with those of its neighbours who came before."""
        if self._thread is None:
            _lift_limits()
            self._thread = TrioThread()
        member = GossipMember(self._thread, index, where)
        await self._thread.begin(member.live)
        self._thread.members += 1
        return member

    async def stop(self) -> None:
        """Nothing runs beside the members."""

    def helpers(self) -> list[int]:
        """Return nobody."""
        return []


def _lift_limits() -> None:
    from libp2p.pubsub import pubsub

    pubsub.SUBSCRIPTION_CHANNEL_SIZE = MAX_WAITING
    pubsub.RpcQueue = partial(pubsub.RpcQueue, max_size=MAX_WAITING)
    logging.getLogger("libp2p").setLevel(logging.ERROR)


def _key_pair(index: int) -> Any:
    from libp2p.crypto.ed25519 import create_new_key_pair

    return create_new_key_pair(hashlib.sha256(f"flood {index}".encode()).digest())


def _address(port: int) -> Any:
    from multiaddr import Multiaddr

    return Multiaddr(f"/ip4/127.0.0.1/tcp/{port}")
