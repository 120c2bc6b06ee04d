"""One stream, as its users hold it in their hands."""

import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from anabranch.core.changes import (
    PUBLIC,
    CreateStream,
    DeleteStream,
    EditStream,
    Right,
    name_rights,
)
from anabranch.core.errors import LocalError
from anabranch.core.ids import (
    StreamPart,
    show,
)
from anabranch.core.machine import Outcome
from anabranch.core.message_key import join_key
from anabranch.core.messages import Contact
from anabranch.core.messages.data import MAX_CONTENT_BYTES
from anabranch.core.parts import MAX_PARTS
from anabranch.core.publishing import EXPIRED, SENT
from anabranch.core.registry import StreamState
from anabranch.core.waiting_drafts import TOO_LARGE
from anabranch.live.columns import Source, read_columns
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
from anabranch.live.past import of_offsets, of_time
from anabranch.live.publications import Publication
from anabranch.live.receipt import Receipt, receipt_of
from anabranch.live.storage.tokens import make_token
from anabranch.live.subscription import DEFAULT_BUFFER, Plan, Subscription
from anabranch.live.terms import (
    Time,
    check_move,
    check_settings,
    contact_of,
    require_part,
)

if TYPE_CHECKING:
    import pyarrow

    from anabranch.live.client import Network


class Stream(NumberedPublishing):
    """A stream of the network: publish to it, subscribe to it, say who may."""

    def __init__(self, network: "Network", name: str) -> None:
        self.id = name
        self._network = network
        self._node = network.node
        self._turn = 0

    def __repr__(self) -> str:
        return f"Stream({self.id!r})"

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return self._created().partitions

    def _created(self) -> CreateStream:
        state = self._node.registry.stream(self.id)
        if state is None or state.created is None:
            raise NoSuchStream(
                f"{self.id} was deleted, or not used for so long that this node forgot it: "
                "ask network.stream() for it again"
            )
        return state.created

    def _state(self) -> StreamState:
        self._created()
        state = self._node.registry.stream(self.id)
        assert state is not None
        return state

    # --- Messages -------------------------------------------------------------------------

    async def publish(
        self, content: Any, *, key: str | bytes | None = None, partition: int | None = None
    ) -> MessageId:
        """Publish JSON (a dict, a list, a number...), text or bytes; return the message's id.

        Returns once a neighbour has the message, and raises NotPublished if none took it. Many
        may wait at once: those that do leave together. A `key` (text or bytes) travels along, and
        messages with one key go to one partition, in order; without, the partitions take turns.
        """
        return (await self._publish(content, key, partition, 0))[0]

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
        name, publication = await self._publish(content, key, partition, copies)
        assert publication.receipt is not None
        receipt = await publication.receipt
        if receipt.problem:
            raise NotStored(
                f"{name} was published, and is not known to be stored: {receipt.problem}"
            )
        return receipt_of(name, receipt)

    def _check_copies(self, copies: int) -> None:
        stored = len(self._created().storage)
        if not stored:
            raise self._not_stored()
        if not 1 <= copies <= stored:
            raise LocalError(
                f"{copies} copies: {self.id} has {stored} storage nodes, ask for 1 to {stored}"
            )

    async def _publish(
        self, content: Any, key: str | bytes | None, partition: int | None, copies: int
    ) -> tuple[MessageId, Publication]:
        self._node.check_open()
        own_key = encode_key(key)
        data, content_type = join_key(*encode_content(content), own_key)
        if len(data) > MAX_CONTENT_BYTES:
            raise TooLarge(
                f"a message of {len(data):,} bytes: at most {MAX_CONTENT_BYTES:,} can be sent; "
                "split it, or send a reference to it"
            )
        part = StreamPart(self.id, self._choose(own_key, partition))
        room = self._node.publications.room(self.id)
        if not room.take(len(data)):
            await room.enter(len(data))
        # The room is ours until the outcome, even if whoever called is gone by then.
        leave = partial(room.leave, len(data))
        try:
            publication = self._node.publish(part, data, content_type, leave, copies)
        except Closed:
            leave()
            raise
        outcome = await publication.outcome
        if outcome.result != SENT:
            raise self._unpublished(part, outcome)
        chain = self._node.publications.chain(part)
        name = message_id(self.id, part.partition, self._network.me, chain, outcome.number)
        return name, publication

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

    def subscribe(
        self,
        partitions: int | Sequence[int] | None = None,
        *,
        last: int | None = None,
        since: Time | None = None,
        ordered: bool = True,
        buffer: int = DEFAULT_BUFFER,
    ) -> Subscription:
        """Receive messages, of all partitions or of some, within `async with`.

        They come in the order in which each publisher published them. What does not come is asked
        of storage nodes and neighbours, for a bounded time (`message.gap` tells what could not be
        had). With `ordered=False` they come as they come, and nothing is asked for.

        `last` begins with the last so many messages of each partition, `since` with those from a
        time on (a datetime, a timedelta for so long ago, or milliseconds); the stream must be
        stored for that. What is new follows, with nothing lost or doubled in between.

        At most `buffer` new messages wait to be read; if more come the oldest are dropped, and
        the next message tells how many (`message.missed`).
        """
        history = None
        if last is not None or since is not None:
            history = of_time(self._node.driver.now(), since, last=last)
        return self._read(partitions, Plan(ordered, history), buffer)

    def history(
        self,
        start: Time | None = None,
        end: Time | None = None,
        *,
        partitions: int | Sequence[int] | None = None,
        last: int | None = None,
        publisher: str | None = None,
        chain: str | None = None,
        offsets: tuple[int, int | None] | None = None,
    ) -> Subscription:
        """Read what is stored, within `async with`: it ends where the past ends.

        Messages from `start` up to `end` (both included) by their publishers' clocks, in that
        order; or those with `offsets` from one up to another (without it, or None: to the end), in
        their order. Only the `last` so many, those of a `publisher`, or of one `chain` of a
        publisher. Raises HistoryLost at the end if not all of it could be had.
        """
        if offsets is not None:
            if start is not None or end is not None:
                raise LocalError("give times or offsets, not both")
            if not isinstance(offsets, tuple) or len(offsets) != 2:
                raise LocalError("give offsets as two numbers: (first, end), or (first, None)")
            history = of_offsets(*offsets, publisher, chain, last)
        else:
            now = self._node.driver.now()
            history = of_time(now, start, end, publisher, chain, last)
        return self._read(partitions, Plan(True, history, live=False), DEFAULT_BUFFER)

    def batches(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        partition: int = 0,
        form: str = "messages",
    ) -> AsyncIterator["pyarrow.RecordBatch"]:
        """Read what is stored as Arrow record batches, by offset: the fast way to much of it.

        One row is one message; an encrypted stream comes as `form="frames"`, a row for each signed
        frame. It needs the extra `[storage]`. Storage nodes are read from directly, over HTTP; if
        one breaks off the next goes on.
        """
        require_part(self.id, self.partitions, partition)
        if not self._created().storage:
            raise self._not_stored()
        node = self._node
        sources: list[Source] = [
            (
                entry.http,
                partial(make_token, node.identity, node.network, entry.node, node.driver.now()),
            )
            for entry in node.registry.storage
            if entry.http and entry.node in self._created().storage
        ]
        return read_columns(sources, self.id, partition, start, end, form)

    def _read(
        self, partitions: int | Sequence[int] | None, plan: Plan, buffer: int
    ) -> Subscription:
        parts = self._parts(partitions)
        if not self.may("subscribe"):
            raise self._may_not("subscribe to")
        if plan.history is not None and not self._created().storage:
            raise self._not_stored()
        missed = self._node.observer.missed
        return Subscription(parts, self._node.enter, self._node.leave, buffer, missed, plan=plan)

    def _not_stored(self) -> NotStored:
        return NotStored(
            f"no storage node keeps {self.id}: create streams with --storage, or name storage "
            f"nodes with `anabranch stream edit {self.id} --storage ...`"
        )

    def carry(self, partitions: int | Sequence[int] | None = None) -> Subscription:
        """Pass on what others publish, within `async with`, without the keys to read it.

        `async with stream.carry() as carrying: await carrying.discard()` does so until it ends.
        """
        parts = self._parts(partitions)
        if not self.may("subscribe") and not self.may("publish"):
            raise self._may_not("subscribe to")
        return Subscription(parts, self._node.enter, self._node.leave, reads=False)

    def _parts(self, partitions: int | Sequence[int] | None) -> tuple[StreamPart, ...]:
        count = self.partitions
        if partitions is None:
            chosen = list(range(count))
        else:
            chosen = [partitions] if isinstance(partitions, int) else list(partitions)
        for partition in chosen:
            require_part(self.id, count, partition)
        return tuple(StreamPart(self.id, partition) for partition in dict.fromkeys(chosen))

    def _may_not(self, what: str) -> NotPermitted:
        me, right = self._network.me, what.partition(" ")[0]
        return NotPermitted(
            f"{me} may not {what} {self.id}: its owner can permit it with "
            f"`anabranch stream grant {self.id} {me} {right}`"
        )

    # --- How it is set up -----------------------------------------------------------------

    async def edit(
        self,
        *,
        partitions: int | None = None,
        overlay: str | None = None,
        degree: int | None = None,
        metadata: str | None = None,
        trackers: Iterable[Contact | str] | None = None,
        storage: int | Iterable[str] | None = None,
    ) -> None:
        """Change how the stream is set up; what is not given stays. Partitions can be added only.

        `trackers` are the stream's own, and with none the network's serve it; `storage` are the
        addresses of the storage nodes that keep it, or how many of the network's shall. A stream
        that is stored gets or loses one storage node at a time, so that its history moves along.
        """
        check_settings(partitions, overlay, degree)
        before = self._created().storage
        edit = EditStream(
            partitions=partitions,
            overlay=overlay,
            degree=degree,
            metadata=metadata,
            trackers=None if trackers is None else tuple(map(contact_of, trackers)),
            storage=None if storage is None else self._network.choose_storage(storage, before),
        )
        if edit.storage is not None:
            check_move(before, edit.storage)
        if edit == EditStream():
            raise LocalError("name what is to be changed: partitions, degree, metadata...")
        if partitions is not None and partitions < self.partitions:
            raise LocalError(
                f"{self.id} has {self.partitions} partitions: more can be added, and none taken "
                "away, since what was published there would be lost"
            )
        await self._network.change(self.id, edit)

    async def delete(self) -> None:
        """Delete the stream; everyone leaves it."""
        await self._network.change(self.id, DeleteStream())

    def info(self) -> dict[str, Any]:
        """Return what the registry says of the stream."""
        state, created = self._state(), self._created()
        return {
            "id": self.id,
            "partitions": created.partitions,
            "overlay": created.overlay,
            "degree": created.degree,
            "metadata": created.metadata,
            "trackers": [show(contact.node) for contact in created.trackers],
            "storage": [show(node) for node in created.storage],
            "encrypted": not state.is_public(Right.SUBSCRIBE, self._node.driver.now()),
            "permissions": [
                {
                    "who": "public" if node == PUBLIC else show(node),
                    "rights": list(name_rights(held.rights)),
                    "expires_ms": held.expires_ms,
                }
                for node, held in sorted(state.permissions.items())
            ],
        }
