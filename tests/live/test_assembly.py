"""What a node does before it is one: it finds trackers, more than one if they are there."""

from collections.abc import Mapping

import pytest

from anabranch.core.ids import NodeId
from anabranch.core.messages import Contact
from anabranch.live.assembly import MAX_FOUND, find_trackers
from anabranch.live.errors import NetworkUnreachable
from anabranch.live.transports import TransportError
from anabranch.live.transports.memory import MemoryHub, MemoryTransport
from live.networks import run

A, B = NodeId(b"a" * 20), NodeId(b"b" * 20)


class Doors(MemoryTransport):
    """A transport that knows who opens at which address."""

    def __init__(self, doors: Mapping[str, NodeId]) -> None:
        super().__init__(NodeId(b"m" * 20), MemoryHub(), 0.0)
        self.doors = doors
        self.knocked: list[str] = []

    async def find(self, address: str) -> NodeId:
        self.knocked.append(address)
        if address not in self.doors:
            raise TransportError(f"nothing listens at {address}")
        return self.doors[address]


def test_all_that_are_there_are_found_and_each_once() -> None:
    doors = Doors({"two": A, "three": B, "four": A})
    found = run(find_trackers(doors, ["one", "two", "three", "four"]))
    assert {contact.node for contact in found} == {A, B}
    assert len(found) == 2
    assert Contact(B, "three") in found


def test_the_last_of_many_is_found_and_of_many_a_few() -> None:
    assert run(find_trackers(Doors({"8": A}), [str(at) for at in range(9)])) == [Contact(A, "8")]
    many = Doors({str(at): NodeId(bytes([at]) * 20) for at in range(9)})
    assert len(run(find_trackers(many, list(many.doors)))) == MAX_FOUND


def test_if_nobody_is_there_all_problems_are_told() -> None:
    with pytest.raises(NetworkUnreachable, match=r"listens at one; nothing listens at two"):
        run(find_trackers(Doors({}), ["one", "two"]))
