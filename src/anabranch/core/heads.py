"""The heads of all chains: by name, and one digest of them all.

Two trackers with the same digest have the same registry, so they compare one hash to find that
there is nothing to do. The digest is a hash of hashes, each over the chains of one bucket: after
a change only the chains of its bucket are gone through again.
"""

import hashlib
from bisect import bisect_right, insort

BUCKETS = 256

_DOMAIN = b"anabranch heads v1\0"


class Heads:
    """The head of each chain that has one."""

    def __init__(self) -> None:
        self._names: list[str] = []  # sorted
        self._buckets: list[dict[str, bytes]] = [{} for _ in range(BUCKETS)]
        self._hashes = [hashlib.sha256(_DOMAIN).digest()] * BUCKETS
        self._changed: dict[int, None] = {}  # buckets whose hash does not hold any more

    def __len__(self) -> int:
        return len(self._names)

    def names(self) -> list[str]:
        """Return the names of all chains, sorted."""
        return list(self._names)

    def after(self, name: str, most: int) -> list[str]:
        """Return the names that come after one, sorted, and no more than so many."""
        first = bisect_right(self._names, name)
        return self._names[first : first + most]

    def set(self, chain: str, head: bytes) -> None:
        """Take note of the head that a chain has now."""
        at = hashlib.sha256(chain.encode()).digest()[0]
        bucket = self._buckets[at]
        if chain not in bucket:
            insort(self._names, chain)
        bucket[chain] = head
        self._changed[at] = None

    @property
    def digest(self) -> bytes:
        """Return a hash of all names and heads."""
        for at in self._changed:
            self._hashes[at] = _hash(self._buckets[at])
        self._changed.clear()
        return hashlib.sha256(_DOMAIN + b"".join(self._hashes)).digest()


def _hash(bucket: dict[str, bytes]) -> bytes:
    digest = hashlib.sha256(_DOMAIN)
    for chain in sorted(bucket):
        name = chain.encode()
        digest.update(len(name).to_bytes(2) + name + bucket[chain])  # all heads have one length
    return digest.digest()
