"""The power goes, a thousand times: what was written is there, and nothing else is broken."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from anabranch.core.store import Delete, LogWrite, Restart, StoreError, Truncate
from anabranch.live.storage.record import RecordFile
from anabranch.live.storage.sqlite import SqliteLogStore
from anabranch.sim.stores import MemoryStore
from live.storage.logs import Load, check_log, same
from live.storage.power import PowerVfs

Group = list[Sequence[LogWrite]]

CUTS = 1_000
CUTS_PER_FILE = 25  # then a new one, so that none becomes large


class World:
    """A store on a disk whose power goes again and again, and what was acknowledged of it."""

    def __init__(self, path: Path, seed: int, syncs: bool) -> None:
        self.rng = Random(seed)
        self.path = path
        self.vfs = PowerVfs(f"power-{path.parent.name}-{seed}", self.rng, syncs)
        self.load = Load(self.rng)
        self.model = MemoryStore()
        self.acknowledged = 0

    def open(self) -> SqliteLogStore:
        return SqliteLogStore(self.path, vfs=self.vfs.name, checkpoint_pages=40)

    def run_until_cut(self) -> None:
        """Write until the power goes; what was under way then may or may not be there."""
        self.vfs.cut_after(self.rng.randrange(1, 180))
        under_way: Group = []
        store = None
        try:
            store = self.open()
            while True:
                if self.rng.random() < 0.1:
                    store.retain(0)
                under_way = self.load.group(self.model)
                store.write(under_way)
                for batch in under_way:
                    self.model.write(batch)
                self.acknowledged += 1
                under_way = []
        except StoreError:
            if not self.vfs.is_off:
                raise
        if store is not None:
            with contextlib.suppress(StoreError):
                store.close()
        self.vfs.restart()
        self.check(under_way)

    def check(self, under_way: Group) -> None:
        """See that all that was acknowledged is there, and all of the last write or nothing.

        The record has all of that, too, and no log is below it: a power cut marks none.
        """
        self.check_record(under_way)
        store = self.open()
        try:
            if not same(store, self.model):
                for batch in under_way:
                    self.model.write(batch)
                assert same(store, self.model), "what was acknowledged is not what is there"
            for state in store.states():
                assert (state.owed, state.is_restored) == ((0, 0), False)
                check_log(store, state)
        finally:
            store.close()

    def check_record(self, under_way: Group) -> None:
        """See that each acknowledged rank is recorded, but where the last write was to cut it."""
        file = RecordFile(self.path, self.vfs.name)
        ranks = {record.part: record.rank for record in file.records}
        file.close()
        kinds = (Truncate, Restart, Delete)
        cut = {write.part for batch in under_way for write in batch if type(write) in kinds}
        for state in self.model.states():
            assert state.part in cut or ranks.get(state.part, (0, 0)) >= state.rank


# SQLite meets the next error before it tells of a failed synchronisation of a file that is new.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_that_was_acknowledged_is_lost_in_a_thousand_power_cuts(tmp_path: Path) -> None:
    acknowledged = 0
    for at in range(CUTS // CUTS_PER_FILE):
        folder = tmp_path / str(at)
        folder.mkdir()
        world = World(folder / "logs.sqlite", at, syncs=True)
        for _ in range(CUTS_PER_FILE):
            world.run_until_cut()
        acknowledged += world.acknowledged
        world.vfs.unregister()
    assert acknowledged > CUTS  # else there was nothing to lose


def test_a_disk_that_does_not_sync_loses_something(tmp_path: Path) -> None:
    lost = 0
    for at in range(10):
        folder = tmp_path / str(at)
        folder.mkdir()
        world = World(folder / "logs.sqlite", at, syncs=False)
        try:
            for _ in range(CUTS_PER_FILE):
                world.run_until_cut()
        except (AssertionError, StoreError):
            lost += 1
        world.vfs.unregister()
    assert lost == 10
