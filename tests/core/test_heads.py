"""The heads of all chains: sorted names, and a digest that changes with every one of them."""

import random

from anabranch.core.heads import Heads


def test_names_are_sorted_and_listed_from_any_place() -> None:
    heads = Heads()
    for name in ("b", "d", "a", "c", "b"):
        heads.set(name, bytes(32))
    assert (heads.names(), len(heads)) == (["a", "b", "c", "d"], 4)
    assert heads.after("", 2) == ["a", "b"]
    assert heads.after("b", 9) == ["c", "d"]
    assert heads.after("bb", 1) == ["c"]
    assert heads.after("d", 1) == []


def test_the_digest_is_that_of_the_heads_and_not_of_how_they_came() -> None:
    chains = {f"chain {at}": at.to_bytes(32) for at in range(1_000)}
    one, two, order = Heads(), Heads(), list(chains)
    for name in order:
        one.set(name, chains[name])
    random.Random(1).shuffle(order)
    for name in order:
        two.set(name, bytes(32))
        assert two.digest != one.digest
        two.set(name, chains[name])
    assert two.digest == one.digest
    two.set(order[0], b"x" * 32)
    assert two.digest != one.digest
    two.set(order[0], chains[order[0]])
    assert two.digest == one.digest


def test_every_name_and_every_head_counts() -> None:
    digests = set()
    for chains in ({}, {"a": b"1"}, {"a": b"2"}, {"b": b"1"}, {"a": b"1", "b": b"1"}):
        heads = Heads()
        for name, head in chains.items():
            heads.set(name, head * 32)
        digests.add(heads.digest)
    assert len(digests) == 5
