"""What tests of the store on a disk share: frames, a random load, and a check of everything."""

from collections.abc import Sequence
from random import Random

from anabranch.core import frames
from anabranch.core.ids import ChainKey, StreamPart, chain_key, number_of, part_key
from anabranch.core.machine import Draft
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import LATE, MAX_NUMBER, FrameName, Selection
from anabranch.core.store import (
    Delete,
    HashAt,
    HeldIn,
    Keep,
    LogState,
    LogWrite,
    Order,
    OrderHeld,
    Page,
    Placed,
    Promise,
    Restart,
    Settle,
    Truncate,
    hash_after,
)
from anabranch.live.storage.sqlite import SqliteLogStore
from anabranch.sim.stores import MemoryStore
from machines import NODES, OTHER, PART

PAGE_BYTES = 1 << 20
Store = MemoryStore | SqliteLogStore


class Source:
    """Makes frames: of several chains, of several sizes, each one new."""

    def __init__(self, rng: Random, part: StreamPart = PART, most_bytes: int = 900) -> None:
        self.rng = rng
        self.part = part_key(part)
        self.most_bytes = most_bytes
        self.count = 0

    def frame(self, chain: ChainKey | None = None, messages: int = 1) -> bytes:
        """Make the next frame."""
        self.count += 1
        first = number_of(1_000 + self.count, 0)
        content = self.rng.randbytes(self.rng.randrange(1, self.most_bytes))
        drafts = [(first + at, Draft(content)) for at in range(messages)]
        key = chain or chain_key(NODES[self.count % 5], 1)
        return frames.build(self.part, key, first - 1, drafts, lambda digest: digest * 2)

    def frames(self, count: int) -> tuple[bytes, ...]:
        """Make some."""
        return tuple(self.frame(messages=self.rng.choice((1, 1, 3))) for _ in range(count))


def held_names(store: Store, part: StreamPart) -> tuple[FrameName, ...]:
    """Return the names of all held frames."""
    names = store.find(HeldIn(part, b"", 1 << 20)).names[0]
    return tuple(FrameName(ChainKey(each[8:]), int.from_bytes(each[:8])) for each in names)


def drain(store: Store, part: StreamPart, **selected: object) -> list[Placed]:
    """Read everything that is selected, which is whole."""
    placed: list[Placed] = []
    selection: Selection | None = Selection(**selected)  # type: ignore[arg-type]
    while selection is not None:
        answer = store.find(Page(part, selection, MAX_NUMBER, PAGE_BYTES))
        assert not answer.missing
        assert not answer.problem
        placed += answer.placed
        selection = answer.following
    return placed


def check_log(store: Store, state: LogState) -> None:
    """See that a log is dense, and that its hashes lead from its beginning to its end."""
    offset, hashed = state.start, NO_HASH
    for at, row in enumerate(drain(store, state.part)):
        assert row.offset == offset
        if at == 0 and state.start:  # what came before is gone
            hashed = store.find(HashAt(state.part, offset)).hash
        hashed = hash_after(hashed, offset, row.entry)
        offset += frames.peek(row.entry.frame).count
    assert offset == state.length
    assert offset == state.start or hashed == state.hash


def same(one: Store, other: Store) -> bool:
    """Return whether two stores have the same in everything that can be asked."""
    if sorted(one.states(), key=_part) != sorted(other.states(), key=_part):
        return False
    return all(
        drain(one, state.part, by_number=by_number) == drain(other, state.part, by_number=by_number)
        for state in one.states()
        for by_number in (False, True)
    )


def _part(state: LogState) -> StreamPart:
    return state.part


class Load:
    """Random writes that a machine could want, over two parts."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.sources = {part: Source(rng, part) for part in (PART, OTHER)}
        self.epoch = 1

    def group(self, model: MemoryStore) -> list[Sequence[LogWrite]]:
        """Draw what goes into one commit: a batch, and perhaps more that does not rest on it."""
        group = [self.batch(model)]
        for _ in range(self.rng.choice((0, 0, 2))):
            part = self.rng.choice((PART, OTHER))
            group.append([Order(part, self.epoch, 1, self.sources[part].frames(2))])
        return group

    def batch(self, model: MemoryStore) -> Sequence[LogWrite]:
        """Draw a batch; `model` has what is on the disk, or will be."""
        rng = self.rng
        part = rng.choice((PART, PART, OTHER))
        source = self.sources[part]
        state = next((found for found in model.states() if found.part == part), LogState(part))
        self.epoch += 1
        kind = rng.randrange(20)
        if kind < 10:
            return [
                Order(part, self.epoch, self.epoch, source.frames(rng.randrange(1, 9))),
                Settle(part, state.length),
            ]
        if kind < 14:
            return [Keep(part, source.frames(rng.randrange(1, 9)), self.epoch)]
        if kind < 16:
            names = held_names(model, part)[: rng.randrange(1, 30)]
            marks = tuple(rng.choice((0, LATE, 5)) for _ in names)
            return [OrderHeld(part, self.epoch, self.epoch, names, marks)]
        if kind < 18:
            return [Promise(part, self.epoch, NODES[self.epoch % 7])]
        if kind < 19:
            offsets = [row.offset for row in drain(model, part)[-5:] if row.offset is not None]
            return [Truncate(part, rng.choice([*offsets, state.length]))]
        if rng.random() < 0.5:
            return [Restart(part, state.length + 5, rng.randbytes(32))]
        return [Delete(part)]
