"""One stream, as its users hold it in their hands."""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from anabranch.core.changes import (
    ALL_RIGHTS,
    MAX_ACTIONS,
    PUBLIC,
    CreateStream,
    DeleteStream,
    EditStream,
    Right,
    SetPermission,
    name_rights,
    parse_rights,
)
from anabranch.core.errors import LocalError
from anabranch.core.ids import (
    MAX_PARTITIONS,
    MAX_TIMESTAMP_MS,
    NodeId,
    StreamPart,
    parse_node,
    show,
    stream_part,
)
from anabranch.core.machine import Outcome
from anabranch.core.messages import Contact
from anabranch.core.messages.data import MAX_CONTENT_BYTES
from anabranch.core.messages.tracker import MAX_NEIGHBOURS
from anabranch.core.parts import MAX_PARTS
from anabranch.core.publishing import (
    EXPIRED,
    SENT,
    TOO_LARGE,
)
from anabranch.core.registry import StreamState
from anabranch.live.errors import (
    AnabranchError,
    Closed,
    NoSuchStream,
    NotPermitted,
    NotPublished,
    TooLarge,
)
from anabranch.live.message import MessageId, encode_content, message_id
from anabranch.live.subscription import DEFAULT_BUFFER, Subscription
from anabranch.overlays import OVERLAYS

if TYPE_CHECKING:
    from anabranch.live.client import Network


def full_name(name: str, owner: str) -> str:
    """Return `<owner>/<path>` for a path of one's own; check a full name."""
    full = name if name.startswith("0x") else f"{owner}/{name.lstrip('/')}"
    return stream_part(full).stream


def rights_of(rights: str | Iterable[str]) -> Right:
    """Read rights as people name them; one name, or several."""
    names = (rights,) if isinstance(rights, str) else tuple(rights)
    if not all(isinstance(name, str) for name in names):
        raise LocalError(f"{names!r} are no rights: name publish, subscribe, grant, edit, delete")
    return parse_rights(names)


def check_settings(partitions: int | None, overlay: str | None, degree: int | None) -> None:
    """Refuse what no stream can be."""
    if overlay is not None and overlay not in OVERLAYS:
        raise LocalError(f"there is no overlay {overlay!r}: choose of {', '.join(OVERLAYS)}")
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        raise LocalError(f"{partitions} partitions: a stream has 1 to {MAX_PARTITIONS}")
    if degree is not None and not 2 <= degree <= MAX_NEIGHBOURS:
        raise LocalError(f"a degree of {degree}: a node has 2 to {MAX_NEIGHBOURS} neighbours")


def node_of(who: str) -> NodeId:
    """Read an address, or `public`; the zero address may be a mistake, and is nobody's."""
    if who == "public":
        return PUBLIC
    if not isinstance(who, str):
        raise LocalError(f"{who!r} is nobody: name an address (0x...) or public")
    node = parse_node(who)
    if node == PUBLIC:
        raise LocalError("the zero address is nobody's: write public if you mean everyone")
    return node


def check_public(node: NodeId, rights: int) -> None:
    """Refuse to let everybody be an administrator."""
    if node == PUBLIC and rights & ~(Right.PUBLISH | Right.SUBSCRIBE):
        raise LocalError("everyone may publish or subscribe; grant, edit and delete are for some")


def contact_of(tracker: Contact | str) -> Contact:
    """Read a tracker as people write it: 0x...=ws://host:port."""
    if isinstance(tracker, Contact):
        return tracker
    node, _, place = str(tracker).partition("=")
    if not place.startswith(("ws://", "wss://")):
        raise LocalError(f"{tracker!r} names no tracker: write 0x...=ws://host:port")
    return Contact(parse_node(node), place)


def require_part(name: str, partitions: int, partition: int) -> None:
    """Refuse a partition that the stream does not have."""
    if not 0 <= partition < partitions:
        raise LocalError(
            f"{name} has partitions 0 to {partitions - 1}: there is no partition {partition}"
        )


class Stream:
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

    def _state(self) -> StreamState:
        state = self._node.registry.stream(self.id)
        if state is None or state.created is None:
            raise NoSuchStream(
                f"{self.id} was deleted, or not used for so long that this node forgot it: "
                "ask network.stream() for it again"
            )
        return state

    def _created(self) -> CreateStream:
        created = self._state().created
        assert created is not None
        return created

    # --- Messages -------------------------------------------------------------------------

    async def publish(
        self, content: Any, *, key: str | bytes | None = None, partition: int | None = None
    ) -> MessageId:
        """Publish JSON (a dict, a list, a number...), text or bytes; return the message's id.

        Returns once a neighbour has the message, and raises NotPublished if none took it. Many
        may wait at once: those that do leave together. Messages with one `key` go to one
        partition, in order; without a key the partitions take turns.
        """
        self._node.check_open()
        data, content_type = encode_content(content)
        if len(data) > MAX_CONTENT_BYTES:
            raise TooLarge(
                f"a message of {len(data):,} bytes: at most {MAX_CONTENT_BYTES:,} can be sent; "
                "split it, or send a reference to it"
            )
        part = StreamPart(self.id, self._choose(key, partition))
        room = self._node.room(self.id)
        await room.enter(len(data))
        # The room is ours until the outcome, even if whoever called is gone by then.
        leave = partial(room.leave, len(data))
        try:
            future = self._node.publish(part, data, content_type, leave)
        except Closed:
            leave()
            raise
        outcome = await future
        if outcome.result != SENT:
            raise self._unpublished(part, outcome)
        chain = self._node.chain(part)
        return message_id(self.id, part.partition, self._network.me, chain, outcome.number)

    def _choose(self, key: str | bytes | None, partition: int | None) -> int:
        partitions = self.partitions
        if partition is not None:
            if key is not None:
                raise LocalError("give a key or a partition, not both")
            require_part(self.id, partitions, partition)
            return partition
        if key is not None:
            data = key.encode() if isinstance(key, str) else key
            return zlib.crc32(data) % partitions
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
        buffer: int = DEFAULT_BUFFER,
    ) -> Subscription:
        """Receive messages, of all partitions or of some, within `async with`.

        At most `buffer` messages wait to be read; if more come the oldest are dropped, and the
        next message tells how many (`message.missed`).
        """
        parts = self._parts(partitions)
        if not self.may("subscribe"):
            raise self._may_not("subscribe to")
        observer = self._node.observer
        return Subscription(parts, self._node.enter, self._node.leave, buffer, observer.missed)

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

    # --- Permissions ----------------------------------------------------------------------

    def may(self, right: str, who: str | None = None) -> bool:
        """Tell whether somebody (we, if nobody is named) has a right on this stream."""
        node = node_of(who or self._network.me)
        return self._state().may(node, rights_of(right), self._node.driver.now())

    async def grant(self, who: str, *rights: str, expires_ms: int = 0) -> None:
        """Give rights to an address, or to everyone (`"public"`), for ever or until a time."""
        given = rights_of(rights)
        if not given:
            raise LocalError("name the rights to give: publish, subscribe, grant, edit, delete")
        check_public(node_of(who), given)
        if not isinstance(expires_ms, int) or not 0 <= expires_ms <= MAX_TIMESTAMP_MS:
            raise LocalError(f"{expires_ms!r} is no time: give milliseconds since 1970, or 0")
        if 0 < expires_ms <= self._node.driver.now() * 1000:
            raise LocalError(f"{expires_ms} is over already: give milliseconds since 1970")
        await self._permit(who, lambda held: held | given, expires_ms)

    async def revoke(self, who: str, *rights: str) -> None:
        """Take rights away; without any named, all."""
        taken = rights_of(rights) or ALL_RIGHTS
        if node_of(who) == self._state().owner:
            raise LocalError(f"{who} owns {self.id} and has every right on it, whatever is revoked")
        await self._permit(who, lambda held: held & ~taken, None)

    async def _permit(self, who: str, change: Callable[[int], int], expires_ms: int | None) -> None:
        node = node_of(who)

        def decide() -> SetPermission:
            # From what is held now: a right that was taken back meanwhile is not given again,
            # and one that has expired does not come back with another.
            held = self._state().permissions.get(node)
            if held is not None and 0 < held.expires_ms <= self._node.driver.now() * 1000:
                held = None
            before = held.rights if held else 0
            after = change(before)
            if expires_ms is None:
                return SetPermission(node, after, held.expires_ms if held else 0)
            if held is not None and held.expires_ms != expires_ms and after != change(0):
                raise LocalError(
                    f"{who} holds {', '.join(name_rights(before))} with another end: grant them "
                    "all together, with one end, or revoke them first"
                )
            return SetPermission(node, after, expires_ms)

        await self._network.change(self.id, decide)

    async def set_permissions(
        self,
        permissions: Mapping[str, str | Iterable[str]],
        expires_ms: Mapping[str, int] | None = None,
    ) -> None:
        """Set the rights of many, by address or `"public"`, in one change that holds as a whole.

        Each has exactly the rights that are named, until the end that `expires_ms` names for it
        or, without one, for ever; who has none named loses all.
        """
        ends = expires_ms or {}
        if not 1 <= len(permissions) <= MAX_ACTIONS:
            raise LocalError(
                f"{len(permissions)} permissions at once: give 1 to {MAX_ACTIONS}, and more in turn"
            )
        nodes = {who: node_of(who) for who in permissions}
        if len(set(nodes.values())) != len(nodes):
            raise LocalError("an address is named twice: name it once, with all its rights")
        actions = []
        for who, named in permissions.items():
            rights = int(rights_of(named))
            check_public(nodes[who], rights)
            actions.append(SetPermission(nodes[who], rights, ends.get(who, 0)))
        await self._network.change(self.id, actions)

    async def edit(
        self,
        *,
        partitions: int | None = None,
        overlay: str | None = None,
        degree: int | None = None,
        metadata: str | None = None,
        trackers: Iterable[Contact | str] | None = None,
        storage: Iterable[str] | None = None,
    ) -> None:
        """Change how the stream is set up; what is not given stays. Partitions can be added only.

        `trackers` are the stream's own, and with none the network's serve it; `storage` are the
        addresses of the storage nodes that keep it.
        """
        check_settings(partitions, overlay, degree)
        edit = EditStream(
            partitions=partitions,
            overlay=overlay,
            degree=degree,
            metadata=metadata,
            trackers=None if trackers is None else tuple(map(contact_of, trackers)),
            storage=None if storage is None else tuple(map(node_of, storage)),
        )
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
