"""Who may do what with a stream, as its users ask and say it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from anabranch.core.changes import ALL_RIGHTS, MAX_ACTIONS, SetPermission, name_rights
from anabranch.core.errors import LocalError
from anabranch.core.ids import MAX_TIMESTAMP_MS
from anabranch.core.registry import StreamState
from anabranch.live.terms import check_public, node_of, rights_of

if TYPE_CHECKING:
    from anabranch.live.client import Network
    from anabranch.live.node import Node


class Permissions(ABC):
    """The permissions of a stream, which is a Stream."""

    id: str
    _network: "Network"
    _node: "Node"

    @abstractmethod
    def _state(self) -> StreamState:
        """Return what the registry says of the stream."""

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
