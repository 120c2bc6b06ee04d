"""What neighbours may have of us, and how much."""

import pytest

from anabranch.core.codec import encode
from anabranch.core.frames import peek
from anabranch.core.lending import BUSY, MAX_AT_ONCE, MAX_LENT_FRAMES, NOT_STORED, PER_S, page
from anabranch.core.machine import Effect, Send
from anabranch.core.messages import Resend, Resent
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from machines import NODES, OTHER, PART, SIGNERS, START, Chain
from reading_world import NEIGHBOURS, ReadingWorld

NEIGHBOUR = NEIGHBOURS[0]


def ask(world: ReadingWorld, wanted: Selection, sender: bytes = NEIGHBOUR) -> list[Effect]:
    return world.reader.receive(sender, Resend(7, PART, wanted), world.now)


def of_chain(chain: Chain, after: int = 0, upto: int = MAX_NUMBER) -> Selection:
    return Selection(after=after, upto=upto, whose=bytes(chain.key), by_number=True)


def test_a_neighbour_gets_the_frames_of_a_chain_in_order() -> None:
    world, chain = ReadingWorld(neighbours=1), Chain(SIGNERS[9])
    frames = [chain.frame(b"a", b"b", at=START + i) for i in range(4)]
    lasts = [peek(frame).last for frame in frames]
    world.come(frames[1], Chain(SIGNERS[8]).frame(), frames[0], frames[3], frames[2])
    assert ask(world, of_chain(chain)) == [Send(NEIGHBOUR, Resent(7, tuple(frames)))]
    within = of_chain(chain, lasts[0], lasts[2] - 1)
    assert ask(world, within) == [Send(NEIGHBOUR, Resent(7, (frames[1], frames[2])))]
    nothing = of_chain(chain, lasts[3])
    assert ask(world, nothing) == [Send(NEIGHBOUR, Resent(7))]


def test_who_is_no_neighbour_gets_no_answer() -> None:
    world, chain = ReadingWorld(neighbours=1), Chain(SIGNERS[9])
    world.come(chain.frame())
    assert ask(world, of_chain(chain), NODES[30]) == []
    other = Resend(7, OTHER, of_chain(chain))
    assert world.reader.receive(NEIGHBOUR, other, START) == []


@pytest.mark.parametrize("whose", [b"", bytes(SIGNERS[9].node)])
def test_only_a_chain_may_be_asked_for(whose: bytes) -> None:
    world, chain = ReadingWorld(neighbours=1), Chain(SIGNERS[9])
    world.come(chain.frame())
    refused = [Send(NEIGHBOUR, Resent(7, problem=NOT_STORED))]
    assert ask(world, Selection(whose=whose, by_number=True)) == refused
    assert ask(world, Selection(whose=bytes(chain.key))) == refused
    assert ask(world, Selection(whose=bytes(chain.key), by_number=True, last=3)) == refused


@pytest.mark.parametrize(("count", "size"), [(MAX_LENT_FRAMES * 2 + 5, 1), (9, 100_000)])
def test_a_page_is_bounded_and_says_what_follows(count: int, size: int) -> None:
    chain = Chain(SIGNERS[9])
    frames = [chain.frame(b"x" * size, at=START + i) for i in range(count)]
    wanted, got, pages = of_chain(chain), list[bytes](), 0
    while wanted is not None:
        answer = page(frames, wanted, 7)
        assert len(answer.frames) <= MAX_LENT_FRAMES
        assert encode(answer)
        got += answer.frames
        wanted = answer.following
        pages += 1
    assert got == frames
    assert pages > 2


def test_a_neighbour_that_asks_too_much_is_told_to_wait() -> None:
    world, chain = ReadingWorld(neighbours=1), Chain(SIGNERS[9])
    busy = [Send(NEIGHBOUR, Resent(7, problem=BUSY))]
    for _ in range(int(MAX_AT_ONCE)):
        assert ask(world, of_chain(chain)) != busy
    assert ask(world, of_chain(chain)) == busy
    world.now += 1.5 / PER_S
    assert ask(world, of_chain(chain)) != busy
    assert ask(world, of_chain(chain)) == busy
    assert world.reader.sizes()["borrowers"][0] == 1
    world.cut(NEIGHBOUR)
    assert world.reader.sizes()["borrowers"][0] == 0
