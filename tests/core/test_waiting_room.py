"""Who makes room: held against a dumb twin."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.ids import ChainKey, publisher_of
from anabranch.core.waiting_room import WaitingRoom
from machines import SIGNERS, Chain

CHAINS = [Chain(SIGNERS[i], number=boot).key for i in range(3) for boot in (1, 2)]


def test_there_is_room_until_there_is_none() -> None:
    room = WaitingRoom()
    room.enter(CHAINS[0], 10)
    room.enter(CHAINS[0], 10)
    assert (room.frames, room.bytes, room.publishers) == (2, 20, 1)
    assert room.who_makes_room(CHAINS[0], 2, 20) is None
    assert room.who_makes_room(CHAINS[0], 1, 20) == CHAINS[0]
    assert room.who_makes_room(CHAINS[0], 2, 19) == CHAINS[0]
    room.leave(CHAINS[0], 10)
    room.leave(CHAINS[0], 10)
    assert (room.frames, room.bytes, room.publishers) == (0, 0, 0)


def test_of_ones_own_chains_the_one_that_waits_longest_makes_room() -> None:
    room = WaitingRoom()
    for chain in CHAINS[:2]:
        room.enter(chain, 1)
    assert room.who_makes_room(CHAINS[1], 1, 9) == CHAINS[0]
    room.renew(CHAINS[0])
    assert room.who_makes_room(CHAINS[1], 1, 9) == CHAINS[1]


@given(st.lists(st.tuples(st.sampled_from(CHAINS), st.integers(0, 50)), min_size=1, max_size=40))
def test_whoever_makes_room_has_more_than_an_equal_share(rows: list[tuple[ChainKey, int]]) -> None:
    room, waiting = WaitingRoom(), list[tuple[ChainKey, int]]()
    for comer, size in rows:
        room.enter(comer, size)
        waiting.append((comer, size))
        while (chain := room.who_makes_room(comer, 6, 120)) is not None:
            publishers = {publisher_of(each) for each, _ in waiting}
            theirs = [s for each, s in waiting if publisher_of(each) == publisher_of(chain)]
            too_many = len(waiting) > 6
            fair = (6 if too_many else 120) / len(publishers)
            assert (len(theirs) if too_many else sum(theirs)) > fair
            gone = next(row for row in waiting if row[0] == chain)
            waiting.remove(gone)
            room.leave(*gone)
        assert room.frames == len(waiting) <= 6
        assert room.bytes == sum(size for _, size in waiting) <= 120
