"""The stream parts a node is a member of, and the overlays that serve them."""

import random
from collections.abc import Callable, Iterator, Mapping

import msgspec

from anabranch.core.duplicates import Budget, Duplicates
from anabranch.core.ids import NodeId, PartKey, StreamPart, number_of, part_key
from anabranch.core.known_frames import KnownFrames
from anabranch.core.machine import Effect, Notice, Sizes, fullest
from anabranch.core.messages import Contact
from anabranch.core.overlay import (
    Directory,
    Overlay,
    OverlayFactory,
    PartSettings,
    RecentFrames,
)
from anabranch.core.publishing import Publishing

MAX_PARTS = 1_000
JOIN_WINDOW_S = 60.0  # frames older than this when we join are history, and come by resend


class Part(msgspec.Struct):
    """What a node keeps of one stream part it is a member of."""

    part: StreamPart
    key: PartKey
    settings: PartSettings
    overlay: Overlay
    seen: Duplicates
    subscribed: bool = False
    reads: bool = True  # what it is subscribed to; else it only carries, and wants no keys
    plain: bool = True  # it is delivered as it comes, and not only to those who read in order
    publishing: Publishing | None = None
    is_stored: bool = False  # its stream named storage nodes when this was last looked at

    @property
    def idle(self) -> bool:
        """Whether nothing keeps the node in this overlay."""
        return not self.subscribed and self.publishing is None


class Parts:
    """Membership: at most `MAX_PARTS` parts, one overlay object for each kind of overlay."""

    __slots__ = (
        *("_advertised", "_budget", "_context", "_directory", "_factories", "_named", "_parts"),
        *("find", "get", "known", "overlays", "recent"),
    )

    def __init__(
        self,
        me: Contact,
        directory: Directory,
        factories: Mapping[str, OverlayFactory],
        rng: random.Random,
        linked: Callable[[NodeId], bool],
    ) -> None:
        self.recent = RecentFrames()
        self.known = KnownFrames()
        self._factories = factories
        self._context = (me, rng, self.recent, linked)
        self._advertised: tuple[str, bool] | None = None  # if it differs from the first address
        self._directory = directory
        self._budget = Budget()
        self._parts: dict[PartKey, Part] = {}
        self._named: dict[StreamPart, Part] = {}
        self.overlays: dict[str, Overlay] = {}
        self.get = self._parts.get  # by key; bound once because every packet asks
        self.find = self._named.get  # by name

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts.values())

    def join(self, part: StreamPart, now: float) -> tuple[Part | None, list[Effect]]:
        """Return our state in a part, becoming a member if need be; or None, and why."""
        state = self._named.get(part)
        if state is not None:
            return state, []
        settings = self._settings(part)
        if settings is None:
            return None, [Notice(part, "no-such-stream", "create it, or check its name")]
        if len(self._parts) >= MAX_PARTS:
            return None, [Notice(part, "too-many-parts", f"a node joins at most {MAX_PARTS}")]
        overlay = self._overlay(settings.overlay, now)
        floor = number_of(max(0, int((now - JOIN_WINDOW_S) * 1000)), 0)
        seen = Duplicates(self._budget, floor)
        state = Part(part, part_key(part), settings, overlay, seen)
        self._parts[state.key] = self._named[part] = state
        self.recent.mark_stored(state.key, settings.is_stored, now)
        return state, overlay.join(part, settings, now)

    def change(self, state: Part, now: float) -> list[Effect] | None:
        """Do as the registry has it now; None if it knows the part no more."""
        settings, before = self._settings(state.part), state.settings
        if settings is None or settings == before:
            return None if settings is None else []
        state.settings = settings
        self.recent.mark_stored(state.key, settings.is_stored, now)
        if settings == msgspec.structs.replace(before, is_stored=settings.is_stored):
            return []  # nothing that the overlay has to know
        if settings.overlay == before.overlay:
            return state.overlay.change(state.part, settings, now)
        left = state.overlay.leave(state.part, now)
        state.overlay = self._overlay(settings.overlay, now)
        return left + state.overlay.join(state.part, settings, now)

    def leave(self, state: Part, now: float) -> list[Effect]:
        """Stop being a member, and keep nothing of it."""
        del self._parts[state.key], self._named[state.part]
        state.seen.forget()
        self.recent.forget(state.key)
        self.known.forget(state)
        return state.overlay.leave(state.part, now)

    def advertise(self, address: str, dialable: bool, now: float) -> list[Effect]:
        """Tell all overlays where others can dial this node, or that none can."""
        self._advertised = address, dialable
        overlays = self.overlays.values()
        return [e for each in overlays for e in each.advertise(address, dialable, now)]

    def _settings(self, part: StreamPart) -> PartSettings | None:
        settings = self._directory(part)
        return settings if settings and settings.overlay in self._factories else None

    def _overlay(self, kind: str, now: float) -> Overlay:
        if kind not in self.overlays:
            overlay = self.overlays[kind] = self._factories[kind](*self._context)
            if self._advertised is not None:
                overlay.advertise(*self._advertised, now)  # it has no members yet to report
        return self.overlays[kind]

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound; of many alike, the fullest."""
        return {"parts": (len(self._parts), MAX_PARTS)} | fullest(
            [
                self.recent.sizes(),
                self.known.sizes(),
                *(overlay.sizes() for overlay in self.overlays.values()),
                *(state.seen.sizes() for state in self),
                *(state.publishing.sizes() for state in self if state.publishing),
            ]
        )
