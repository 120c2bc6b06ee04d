"""What is looked up: in its order, a few for each who names chains, and none for ever."""

from anabranch.core.look_ups import MAX_LOOKED_UP, MAX_LOOKED_UP_FOR_ONE, LookUps
from machines import NODES

ANN, BEN = NODES[1:3]
ONE, TWO = NODES[30:32]


def name(look_ups: LookUps, sender: bytes, *chains: str) -> list[str]:
    """Name chains; return those for which there was room."""
    taken = []
    for chain in chains:
        if look_ups.has_room(chain, sender):
            look_ups.begin(chain, sender, (ONE, TWO))
            taken.append(chain)
    return taken


def test_each_tracker_is_asked_in_the_order_in_which_chains_were_named() -> None:
    look_ups = LookUps()
    name(look_ups, ANN, "b", "a")
    assert look_ups.waiting(ONE) == look_ups.waiting(TWO) == ["b", "a"]
    look_ups.ask("b", ONE)
    assert (look_ups.waiting(ONE), look_ups.waiting(TWO)) == (["a"], ["b", "a"])


def test_a_look_up_is_over_when_the_last_tracker_has_told() -> None:
    look_ups = LookUps()
    name(look_ups, ANN, "a", "b")
    look_ups.ask("a", ONE)
    assert not look_ups.told("a", ONE)
    assert not look_ups.told("a", ONE)
    assert look_ups.told("a", TWO)  # it was never asked: what it told, it told of itself
    assert not look_ups.told("a", TWO)
    assert ("a" in look_ups, "b" in look_ups) == (False, True)
    assert look_ups.leave(ONE) == []
    assert look_ups.leave(TWO) == ["b"]
    assert look_ups.sizes()["chains looked up"][0] == 0


def test_nobody_has_more_than_a_few_and_all_together_have_no_more_than_there_is_room_for() -> None:
    look_ups = LookUps()
    many = [f"ann/{at}" for at in range(10)]
    assert name(look_ups, ANN, *many) == many[:MAX_LOOKED_UP_FOR_ONE]
    assert look_ups.has_room(many[0], BEN)  # it is looked up in any case
    assert name(look_ups, BEN, "ben") == ["ben"]
    look_ups.forget(many[0])
    assert name(look_ups, ANN, *many[4:6]) == many[4:5]
    for at in range(100):
        name(look_ups, NODES[at % len(NODES)] + bytes([at]), f"other/{at}")
    assert look_ups.sizes()["chains looked up"] == (MAX_LOOKED_UP, MAX_LOOKED_UP)
    assert not look_ups.has_room("another", NODES[3])
    look_ups.forget("ben")
    assert look_ups.has_room("another", NODES[3])
