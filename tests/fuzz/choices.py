"""What a fuzzer's bytes decide."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Decisions read from bytes; when these run out, every decision is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def bytes(self, count: int) -> bytes:
        """Take bytes as they stand."""
        begin = self._at
        self._at = begin + count
        return self._data[begin : self._at]

    def below(self, end: int) -> int:
        """Choose a number from 0 to end - 1, where end is at most 65536."""
        return int.from_bytes(self.bytes(1 if end <= 256 else 2)) % end

    def pick(self, options: Sequence[T]) -> T:
        """Choose one of these."""
        return options[self.below(len(options))]

    def one_in(self, count: int) -> bool:
        """Say yes now and then."""
        return self.below(256) % count == count - 1
