"""Many named deadlines behind a machine's one timer."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Deadlines by key. Moving one to a later time costs a dictionary write and no heap work."""

    __slots__ = ("_at", "_filed", "_heap", "_order")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._filed: dict[K, float] = {}  # the earliest heap entry of each key that is still valid
        self._order = 0  # ties fall in the order of filing, never by comparing keys

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def at(self, key: K) -> float | None:
        """Return when `key` is due."""
        return self._at.get(key)

    def set(self, key: K, at: float) -> None:
        """Let `key` be due at `at`, whatever was set before."""
        self._at[key] = at
        if key not in self._filed or self._filed[key] > at:
            self._file(key, at)
            self._prune()

    def sooner(self, key: K, at: float) -> None:
        """Let `key` be due at `at` unless it is due earlier already."""
        if key not in self._at or self._at[key] > at:
            self.set(key, at)

    def cancel(self, key: K) -> None:
        """Forget `key`."""
        self._at.pop(key, None)
        self._filed.pop(key, None)
        self._prune()

    @property
    def next_at(self) -> float | None:
        """When the first key is due."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._filed.get(key) == at:
                due = self._at[key]
                if due == at:
                    return at
                heapq.heappop(self._heap)
                self._file(key, due)
            else:
                heapq.heappop(self._heap)
        return None

    def pop_due(self, now: float) -> list[K]:
        """Remove and return the keys that are due, earliest first."""
        due: list[K] = []
        while (at := self.next_at) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key], self._filed[key]
            due.append(key)
        return due

    def _file(self, key: K, at: float) -> None:
        self._filed[key] = at
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, key))

    def _prune(self) -> None:
        """Keep the heap in proportion to the keys: entries that no longer hold are left in it."""
        if len(self._heap) > 64 + 4 * len(self._at):
            self._heap.clear()
            self._filed.clear()
            for key, at in self._at.items():
                self._file(key, at)
