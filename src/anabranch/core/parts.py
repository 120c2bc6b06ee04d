"""The stream parts a node is a member of, and the overlays that serve them."""

import random
from collections.abc import Callable, Iterator, Mapping

import msgspec

from anabranch.core.duplicates import Budget, Duplicates
from anabranch.core.ids import NodeId, PartKey, StreamPart, number_of, part_key
from anabranch.core.machine import Effect, Notice, Sizes, fullest
from anabranch.core.messages import Contact
from anabranch.core.overlay import Directory, Overlay, OverlayFactory, RecentFrames
from anabranch.core.publishing import Publishing

MAX_PARTS = 1_000
JOIN_WINDOW_S = 60.0  # frames older than this when we join are history, and come by resend


class Part(msgspec.Struct):
    """What a node keeps of one stream part it is a member of."""

    part: StreamPart
    key: PartKey
    overlay: Overlay
    seen: Duplicates
    subscribed: bool = False
    publishing: Publishing | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing keeps the node in this overlay."""
        return not self.subscribed and self.publishing is None


class Parts:
    """Membership: at most `MAX_PARTS` parts, one overlay object for each kind of overlay."""

    def __init__(
        self,
        me: Contact,
        directory: Directory,
        factories: Mapping[str, OverlayFactory],
        rng: random.Random,
        linked: Callable[[NodeId], bool],
    ) -> None:
        self.recent = RecentFrames()
        self._factories = factories
        self._context = (me, rng, self.recent, linked)
        self._directory = directory
        self._budget = Budget()
        self._parts: dict[PartKey, Part] = {}
        self.overlays: dict[str, Overlay] = {}
        self.get = self._parts.get  # by key; bound once because every packet asks

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts.values())

    def find(self, part: StreamPart) -> Part | None:
        """Return our state in a part by its name."""
        return self._parts.get(part_key(part))

    def join(self, part: StreamPart, now: float) -> tuple[Part | None, list[Effect]]:
        """Return our state in a part, becoming a member if need be; or None, and why."""
        key = part_key(part)
        state = self._parts.get(key)
        if state is not None:
            return state, []
        settings = self._directory(part)
        if settings is None or settings.overlay not in self._factories:
            return None, [Notice(part, "no-such-stream", "create it, or check its name")]
        if len(self._parts) >= MAX_PARTS:
            return None, [Notice(part, "too-many-parts", f"a node joins at most {MAX_PARTS}")]
        overlay = self.overlays.get(settings.overlay)
        if overlay is None:
            overlay = self.overlays[settings.overlay] = self._factories[settings.overlay](
                *self._context
            )
        floor = number_of(max(0, int((now - JOIN_WINDOW_S) * 1000)), 0)
        state = self._parts[key] = Part(part, key, overlay, Duplicates(self._budget, floor))
        return state, overlay.join(part, settings, now)

    def leave(self, state: Part, now: float) -> list[Effect]:
        """Stop being a member, and keep nothing of it."""
        del self._parts[state.key]
        state.seen.forget()
        self.recent.forget(state.key)
        return state.overlay.leave(state.part, now)

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound; of many alike, the fullest."""
        return {"parts": (len(self._parts), MAX_PARTS)} | fullest(
            [
                self.recent.sizes(),
                *(overlay.sizes() for overlay in self.overlays.values()),
                *(state.seen.sizes() for state in self),
                *(state.publishing.sizes() for state in self if state.publishing),
            ]
        )
