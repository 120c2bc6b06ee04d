"""Publishing, as the users of a stream do it: a message, many at once, or one to be stored."""

import asyncio
import zlib
from abc import abstractmethod
from collections.abc import Awaitable, Generator
from functools import partial
from typing import Any

from anabranch.core.changes import CreateStream
from anabranch.core.errors import LocalError
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Outcome
from anabranch.core.message_key import join_key
from anabranch.core.messages.data import MAX_CONTENT_BYTES
from anabranch.core.parts import MAX_PARTS
from anabranch.core.publishing import EXPIRED, SENT
from anabranch.core.waiting_drafts import TOO_LARGE
from anabranch.live.errors import (
    AnabranchError,
    Closed,
    NoSuchStream,
    NotPermitted,
    NotPublished,
    NotStored,
    TooLarge,
)
from anabranch.live.message import MessageId, encode_content, encode_key, message_id
from anabranch.live.numbered import NumberedPublishing
from anabranch.live.publications import Publication
from anabranch.live.receipt import Receipt, receipt_of
from anabranch.live.room import Room
from anabranch.live.terms import require_part


class Handed:
    """A message that was handed over: who awaits it gets its id, or hears why it has none."""

    __slots__ = ("_name", "publication")

    def __init__(self, publication: Publication, name: "partial[MessageId]") -> None:
        self.publication = publication
        self._name = name

    def __await__(self) -> Generator[Any, None, MessageId]:
        outcome = yield from self.publication.outcome
        return self._name(outcome)


class Publishing(NumberedPublishing):
    """What a Stream offers to those who publish."""

    def __init__(self) -> None:
        self._turn = 0
        self._waiting: set[asyncio.Task[MessageId]] = set()  # for room

    async def publish(
        self, content: Any, *, key: str | bytes | None = None, partition: int | None = None
    ) -> MessageId:
        """Publish JSON (a dict, a list, a number...), text or bytes; return the message's id.

        Returns once a neighbour has the message, and raises NotPublished if none took it. Many
        may wait at once: those that do leave together. A `key` (text or bytes) travels along, and
        messages with one key go to one partition, in order; without, the partitions take turns.
        """
        return await (await self._publish(self._prepare(content, key, partition), 0))

    def publish_soon(
        self, content: Any, *, key: str | bytes | None = None, partition: int | None = None
    ) -> Awaitable[MessageId]:
        """Hand over a message at once, and return what can be awaited for what `publish` returns.

        For many messages in a row: none of them needs a task, and who does not care about what
        became of one need not await it. What is wrong with a message itself is raised here. When
        too many are under way it waits its turn, as in `publish`.
        """
        prepared = self._prepare(content, key, partition)
        room = self._node.publications.room(self.id)
        if room.take(len(prepared[1])):
            return self._hand_over(prepared, room, 0)
        turn = room.line_up(len(prepared[1]))
        task = asyncio.ensure_future(self._in_turn(prepared, room, turn))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return task

    async def publish_stored(
        self,
        content: Any,
        copies: int = 1,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Publish, and return when so many storage nodes have said that they hold the message.

        Their words are signed, and are for keeping: see `Receipt`. Raises NotStored if too few of
        them said so in time; the message is published all the same.
        """
        self._check_copies(copies)
        handed = await self._publish(self._prepare(content, key, partition), copies)
        name, awaited = await handed, handed.publication.receipt
        assert awaited is not None
        receipt = await awaited
        if receipt.problem:
            raise NotStored(
                f"{name} was published, and is not known to be stored: {receipt.problem}"
            )
        return receipt_of(name, receipt)

    # --- Inside ---------------------------------------------------------------------------

    def _prepare(
        self, content: Any, key: str | bytes | None, partition: int | None
    ) -> tuple[StreamPart, bytes, int]:
        """Return where a message goes and how it is written, or raise what is wrong with it."""
        self._node.check_open()
        own_key = None
        data, content_type = encode_content(content)
        if key is not None:
            own_key = encode_key(key)
            data, content_type = join_key(data, content_type, own_key)
        if len(data) > MAX_CONTENT_BYTES:
            raise TooLarge(
                f"a message of {len(data):,} bytes: at most {MAX_CONTENT_BYTES:,} can be sent; "
                "split it, or send a reference to it"
            )
        return StreamPart(self.id, self._choose(own_key, partition)), data, content_type

    async def _in_turn(
        self, prepared: tuple[StreamPart, bytes, int], room: Room, turn: "asyncio.Future[None]"
    ) -> MessageId:
        await room.wait(turn, len(prepared[1]))
        return await self._hand_over(prepared, room, 0)

    async def _publish(self, prepared: tuple[StreamPart, bytes, int], copies: int) -> Handed:
        size, room = len(prepared[1]), self._node.publications.room(self.id)
        if not room.take(size):
            await room.enter(size)
        return self._hand_over(prepared, room, copies)

    def _hand_over(
        self, prepared: tuple[StreamPart, bytes, int], room: Room, copies: int
    ) -> Handed:
        """Let a message go that has its room until its outcome, whoever is gone by then."""
        part, data, content_type = prepared
        leave = partial(room.leave, len(data))
        try:
            publication = self._node.publish(part, data, content_type, leave, copies)
        except Closed:
            leave()
            raise
        return Handed(publication, partial(self._name, part))

    def _name(self, part: StreamPart, outcome: Outcome) -> MessageId:
        if outcome.result != SENT:
            raise self._unpublished(part, outcome)
        chain = self._node.publications.chain(part)
        return message_id(self.id, part.partition, self._network.me, chain, outcome.number)

    def _check_copies(self, copies: int) -> None:
        stored = len(self._created().storage)
        if not stored:
            raise self._not_stored()
        if not 1 <= copies <= stored:
            raise LocalError(
                f"{copies} copies: {self.id} has {stored} storage nodes, ask for 1 to {stored}"
            )

    def _choose(self, key: bytes | None, partition: int | None) -> int:
        partitions = self._created().partitions
        if partition is not None:
            if key is not None:
                raise LocalError("give a key or a partition, not both")
            require_part(self.id, partitions, partition)
            return partition
        if key is not None:
            return zlib.crc32(key) % partitions
        self._turn = (self._turn + 1) % partitions
        return self._turn

    def _unpublished(self, part: StreamPart, outcome: Outcome) -> AnabranchError:
        if outcome.result == EXPIRED:
            return NotPublished(
                f"no neighbour took the message: nobody else is in {part}, or none can be reached, "
                "or our clock is minutes off theirs (only who may subscribe or publish can be "
                "there: grant a carrier one of these)"
            )
        if outcome.result == TOO_LARGE:
            return TooLarge(f"at most {MAX_CONTENT_BYTES:,} bytes can be sent")
        if outcome.result == "unpermitted":
            return self._may_not("publish to")
        if outcome.result == "too-many-parts":
            return NotPublished(f"this node is in {MAX_PARTS} stream parts, and can join no more")
        if outcome.result == "no-such-stream":
            return NoSuchStream(f"{part}: there is no such stream (any more)")
        return NotPublished(f"the message was not published: {outcome.result}")

    @abstractmethod
    def _created(self) -> CreateStream:
        """Return what the registry says of the stream, or raise NoSuchStream."""

    @abstractmethod
    def _not_stored(self) -> NotStored:
        """Say that no storage node keeps the stream."""

    @abstractmethod
    def _may_not(self, what: str) -> NotPermitted:
        """Say that we may not do something."""
