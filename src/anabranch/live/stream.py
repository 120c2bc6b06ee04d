"""One stream, as its users hold it in their hands."""

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
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
from anabranch.core.messages import Contact
from anabranch.core.registry import StreamState
from anabranch.live.columns import Source, read_columns
from anabranch.live.errors import (
    NoSuchStream,
    NotPermitted,
    NotStored,
)
from anabranch.live.past import of_offsets, of_time
from anabranch.live.publishing import Publishing
from anabranch.live.storage.tokens import make_token
from anabranch.live.subscription import DEFAULT_BUFFER, Plan, Subscription
from anabranch.live.terms import (
    Time,
    check_move,
    check_settings,
    confirm_within_of,
    contact_of,
    require_part,
)

if TYPE_CHECKING:
    import pyarrow

    from anabranch.live.client import Network


class Stream(Publishing):
    """A stream of the network: publish to it, subscribe to it, say who may."""

    def __init__(self, network: "Network", name: str) -> None:
        self.id = name
        self._network = network
        self._node = network.node
        super().__init__()

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

    # --- Reading --------------------------------------------------------------------------

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
        if self._node.registry.is_unconfirmed(self.id, self._node.driver.now()):
            return NotPermitted(
                f"no tracker has confirmed who may {what} {self.id} for too long: start a tracker, "
                "or demand less: its owner can with `anabranch stream edit "
                f"{self.id} --confirm-within never`, and this node with its own --confirm-within"
            )
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
        confirm_within: timedelta | float | None = None,
    ) -> None:
        """Change how the stream is set up; what is not given stays. Partitions can be added only.

        `trackers` are the stream's own, and with none the network's serve it; `storage` are the
        addresses of the storage nodes that keep it, or how many of the network's shall. A stream
        that is stored gets or loses one storage node at a time, so that its history moves along.
        `confirm_within`: within which time a tracker has to have confirmed rights; 0: never.
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
            confirm_within_s=confirm_within_of(confirm_within),
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
            "confirm_within_s": created.confirm_within_s,
            "permissions": [
                {
                    "who": "public" if node == PUBLIC else show(node),
                    "rights": list(name_rights(held.rights)),
                    "expires_ms": held.expires_ms,
                }
                for node, held in sorted(state.permissions.items())
            ],
        }
