"""Latent damage is found by the queries that read it and by the scrub, and by nothing else."""

import pytest

from anabranch.core.ids import number_of
from anabranch.core.messages.storage import MAX_NUMBER, Selection, Span
from anabranch.core.store import (
    Copy,
    GoneError,
    HashAt,
    Keep,
    NamesIn,
    Order,
    OrderHeld,
    Page,
    Truncate,
)
from anabranch.sim.rot import Rot
from anabranch.sim.stores import MemoryStore
from machines import PART, SIGNERS, START, Chain
from storage_desk import name_of

MS = int(START * 1000)
ALL = Page(PART, Selection(), MAX_NUMBER, 1 << 20)


def store(placed: int = 4, held: int = 0) -> tuple[MemoryStore, Rot, list[bytes]]:
    logs, chain = MemoryStore(), Chain(SIGNERS[9])
    frames = [chain.frame(b"%d" % at) for at in range(placed + held)]
    logs.write([Order(PART, 1, MS, tuple(frames[:placed])), Keep(PART, tuple(frames[placed:]), MS)])
    return logs, Rot(logs), frames


def test_row_that_rots_is_whole_until_a_query_reads_it() -> None:
    logs, rot, frames = store()
    rot.add(PART, name_of(frames[1]))
    assert rot.has(PART, name_of(frames[1]))
    assert logs.states()[0].missing == ()
    low = number_of(0, 0)
    assert len(rot.find(NamesIn(PART, ((low, MAX_NUMBER, 99),))).names[0]) == 4, "only the index"
    assert logs.states()[0].missing == ()
    page = rot.find(ALL)
    assert [row.offset for row in page.placed] == [0, 2, 3]
    assert page.missing == (Span(1, 2),)
    assert len(rot) == 0


def test_page_beside_the_damage_does_not_find_it() -> None:
    logs, rot, frames = store()
    rot.add(PART, name_of(frames[3]))
    page = rot.find(Page(PART, Selection(end=2), MAX_NUMBER, 1 << 20))
    assert (len(page.placed), page.missing) == (2, ())
    assert logs.states()[0].missing == ()


def test_hash_of_a_damaged_row_finds_the_damage() -> None:
    logs, rot, frames = store()
    rot.add(PART, name_of(frames[2]))
    rot.find(HashAt(PART, 2))
    assert [hole.start for hole in logs.states()[0].missing] == [2]


def test_scrub_finds_everything_and_held_rows_vanish() -> None:
    logs, rot, frames = store(3, held=2)
    rot.add(PART, name_of(frames[0]))
    rot.add(PART, name_of(frames[4]))
    rot.scrub()
    [state] = logs.states()
    assert ([hole.start for hole in state.missing], state.held) == ([0], 1)
    assert len(rot) == 0


def test_held_frames_that_are_placed_from_the_disk_are_read_first() -> None:
    logs, rot, frames = store(1, held=2)
    rot.add(PART, name_of(frames[1]))
    both = [OrderHeld(PART, 1, MS, (name_of(frames[1]), name_of(frames[2])))]
    rot.write(both)
    with pytest.raises(GoneError):
        logs.write(both)
    logs.write([OrderHeld(PART, 1, MS, (name_of(frames[2]),))])
    assert [row.entry.frame for row in logs.find(ALL).placed] == [frames[0], frames[2]]


def test_frame_that_is_written_anew_is_good() -> None:
    logs, rot, frames = store(1, held=1)
    entry = logs.find(ALL).placed[0].entry
    rot.add(PART, name_of(frames[0]))
    writes = [Truncate(PART, 0), Copy(PART, 0, (entry,))]
    rot.write(writes)
    logs.write(writes)
    assert rot.find(ALL).missing == ()


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_damaged_rows_that_are_cut_are_gone_and_not_held(cut: int) -> None:
    logs, _, frames = store(3)
    logs.damage(PART, name_of(frames[1]))
    logs.write([Truncate(PART, cut)])
    [state] = logs.states()
    assert (state.length, state.held) == (cut, 3 - cut - (cut <= 1))
    assert bool(state.missing) == (cut == 2)
