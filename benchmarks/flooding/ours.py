"""Ours: a node of the live network for every member, over WebSockets; a tracker beside them."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from anabranch import Message, Network, Stream, Subscription, connect
from anabranch.core import waiting_drafts
from anabranch.live.local import LocalNetwork

STREAM = "flood"


class OurMember:
    """A node."""

    def __init__(self, network: Network, stream: Stream, subscription: Subscription) -> None:
        self._network = network
        self._stream = stream
        self._subscription = subscription

    async def publish(self, payload: bytes) -> None:
        """Publish; whoever waits for more than 256 waits elsewhere."""
        self._stream.publish_soon(payload)

    def receive(self) -> AsyncIterator[Message]:
        """Return the subscription, which brings messages."""
        return self._subscription

    async def close(self) -> None:
        """Leave."""
        await self._network.close(0.0)


class Anabranch:
    """Our network; a message that waits for others leaves in one frame with them, or alone."""

    signed = True

    def __init__(self, single: bool) -> None:
        self.name = "anabranch, single" if single else "anabranch"
        self._single = single
        self._usual = waiting_drafts.FRAME_MESSAGES

    async def start(self) -> str:
        """Start a tracker, and make a stream that everybody may read."""
        self._folder = tempfile.TemporaryDirectory(prefix="anabranch-flood-")
        self._local = LocalNetwork(Path(self._folder.name))
        await self._local.start(1, 0)
        key = self._local.owner_key
        async with connect(self._local.address, key=key) as owner:
            await owner.create_stream(STREAM, public=["subscribe"])
        return f"{key} {self._local.address}"

    async def join(self, index: int, where: str) -> OurMember:
        """Start a node."""
        if self._single:
            waiting_drafts.FRAME_MESSAGES = 1
        key, address = where.split()
        network = connect(address, key=Path(key))
        await network.__aenter__()
        stream = await network.stream(STREAM)
        subscription = stream.subscribe()
        if index:
            await subscription.__aenter__()
        return OurMember(network, stream, subscription)

    async def stop(self) -> None:
        """End the tracker."""
        waiting_drafts.FRAME_MESSAGES = self._usual
        await self._local.stop()
        self._folder.cleanup()

    def helpers(self) -> list[int]:
        """Return the tracker's process."""
        return [tracker.pid for tracker in self._local.trackers]
