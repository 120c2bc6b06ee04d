"""How far another tracker's chains have been read."""

import pytest

from anabranch.core.changes import CreateStream, SetPermission
from anabranch.core.errors import RemoteError
from anabranch.core.messages import ChainPage
from anabranch.core.replica import Read, Replica
from chains import COPIER, NET, SECOND, STREAM, Writer
from machines import NODES

WRITER = Writer().add(CreateStream(), *(SetPermission(node, 1) for node in NODES[:2]))


def page(height: int = 3, head: bytes = WRITER.history.head) -> ChainPage:
    return ChainPage(1, STREAM, 0, height, head)


def test_a_chain_is_read_page_by_page_to_its_head() -> None:
    read, changes = Read(STREAM, 0, NET), tuple(WRITER.changes)
    read.advance(page(), changes[:2])
    assert (read.after, read.head, read.is_over) == (2, WRITER.history.head_at(2), False)
    read.advance(page(), changes[2:])
    assert (read.after, read.head, read.is_over) == (3, WRITER.history.head, True)


@pytest.mark.parametrize(
    ("told", "count", "reason"),
    [
        (page(height=2), 3, "wrong-page"),
        (page(height=1 << 40), 3, "wrong-page"),
        (page(), 0, "wrong-page"),
        (page(head=NET), 3, "contradiction"),
    ],
)
def test_what_does_not_lead_where_it_says(told: ChainPage, count: int, reason: str) -> None:
    with pytest.raises(RemoteError, match=reason):
        Read(STREAM, 0, NET).advance(told, tuple(WRITER.changes[:count]))


def test_a_tracker_is_read_when_its_claims_are_whatever_was_merely_named() -> None:
    replica = Replica(COPIER)
    assert replica.is_read
    replica.reads[SECOND] = Read(SECOND, 0, NET, by_name=True)
    assert (replica.is_read, replica.by_name) == (True, 1)
    replica.claims[STREAM] = (3, WRITER.history.head)
    assert not replica.is_read
    del replica.claims[STREAM]
    replica.reads[STREAM] = Read(STREAM, 0, NET)
    assert (replica.is_read, replica.by_name) == (False, 1)
