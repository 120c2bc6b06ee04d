"""A keeper refuses those who ask for too much, and never what another tracker has."""

from typing import Any

import pytest

from anabranch.core import quotas
from anabranch.core.changes import (
    Action,
    Change,
    CreateStream,
    DeleteStream,
    EditStream,
    SetPermission,
    encode_change,
)
from anabranch.core.identity import Signer
from anabranch.core.ids import show
from anabranch.core.machine import Notice, Store
from anabranch.core.messages import ReadChain, Written
from anabranch.core.registry_keeper import MAX_SKEW_MS, RegistryKeeper
from chains import COPIER, ENTRIES, NET, OWNER, STREAM, Disk, Writer, network_rows
from machines import KEYS, NODES, SIGNERS, START, of, sent

ANN = NODES[1]
EVE = SIGNERS[7]
MINE = f"{show(EVE.node)}/mine"


class Author:
    """Writes to a keeper with a disk, as somebody who knows what it knows."""

    def __init__(self, *rows: list[tuple[str, int, bytes]]) -> None:
        every = [*network_rows(*ENTRIES), *(row for some in rows for row in some)]
        self.kept: Any = RegistryKeeper(NET, KEYS.verify, every)
        self.disk = Disk()

    def change(self, chain: str, *actions: Action, signer: Signer = EVE, at: float = START) -> Any:
        writer = Writer(chain).take(*self.kept.history(chain).changes)
        return writer.next(*actions, signer=signer, at=at)

    def write(self, change: bytes, now: float = START) -> str:
        """Ask for a change; return what is wrong with it, if anything."""
        effects = self.kept.write(ANN, 1, change, now)
        done = self.disk.settle(effects, self.kept.stored)
        [[_, answer]] = sent(Written, done)
        return answer.problem

    def ask(self, chain: str, *actions: Action, signer: Signer = EVE) -> str:
        return self.write(self.change(chain, *actions, signer=signer))


def few_writes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(quotas, "WRITES_AT_ONCE", count)


def test_an_author_who_writes_too_fast_is_told_so_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few_writes(monkeypatch, 3)
    author = Author()
    asked = [author.ask(f"{MINE}/{at}", CreateStream()) for at in range(4)]
    assert asked == ["", "", "", "busy: one key may make 10 changes a second: try again soon"]
    assert author.kept.streams() == [f"{MINE}/{at}" for at in range(3)]
    assert author.kept.sizes()["chains"][0] == 1 + 3
    assert author.ask(STREAM, CreateStream(), signer=OWNER) == ""
    later = author.change(f"{MINE}/3", CreateStream(), at=START + 1)
    assert author.write(later, START + 1) == ""


def test_those_who_wait_in_line_are_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    few_writes(monkeypatch, 2)
    author, writer = Author(), Writer(MINE)
    effects = []
    for at, action in enumerate((CreateStream(), *(SetPermission(n, 1) for n in NODES[:2]))):
        change = writer.next(action, signer=EVE)
        writer.take(change)
        effects += author.kept.write(ANN, at, change, START)
    answers = [e.message.problem for e in author.disk.settle(effects, author.kept.stored)]
    assert answers[:2] == ["", ""]
    assert answers[2].startswith("busy: ")


def test_nobody_can_use_up_what_another_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    few_writes(monkeypatch, 3)
    author = Author()
    create = author.change(MINE, CreateStream())
    stale = author.change(MINE, CreateStream(degree=6))
    assert author.write(create) == ""
    for _ in range(10):  # what anybody may have got hold of
        assert author.write(create) == ""
        assert author.write(stale).startswith("stale")
    assert author.ask(MINE, SetPermission(ANN, 1)) == ""
    assert author.ask(MINE, SetPermission(ANN, 0)) == ""
    assert author.ask(MINE, DeleteStream()).startswith("busy: ")


def test_an_owner_of_too_many_streams_can_change_those_he_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "MAX_STREAMS_OF_OWNER", 2)
    author = Author(Writer(f"{MINE}/0").add(CreateStream(), signer=EVE).rows())
    assert author.ask(f"{MINE}/1", CreateStream()) == ""
    assert author.ask(f"{MINE}/2", CreateStream()).startswith("full: 2 streams")
    assert author.ask(f"{MINE}/0", DeleteStream()) == ""
    assert author.ask(f"{MINE}/2", CreateStream()).startswith("full: 2 streams")
    assert author.ask(f"{MINE}/0", CreateStream()) == ""
    assert author.ask(STREAM, CreateStream(), signer=OWNER) == ""


def test_what_was_on_the_disk_and_what_was_copied_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Writer(MINE).add(CreateStream(), SetPermission(ANN, 1), signer=EVE)
    size = sum(map(len, mine.changes))
    monkeypatch.setattr(quotas, "MAX_REGISTRY_BYTES", size + 10)
    loaded, copied = Author(mine.rows()), Author()
    for change in mine.changes:
        effects = copied.kept.copy(COPIER, MINE, change)
        copied.disk.settle(effects, copied.kept.stored)
    for author in (loaded, copied):
        assert author.kept.sizes()["registry bytes"] == (size, size + 10)
        problem = author.ask(MINE, EditStream(metadata="more"))
        assert problem.startswith("full: this registry")
        assert author.ask(MINE, SetPermission(ANN, 0)) == ""  # a revocation, at any time
        assert author.ask(STREAM, CreateStream(), signer=OWNER) == ""


def test_what_another_tracker_has_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Writer(MINE).add(CreateStream(), SetPermission(ANN, 1), signer=EVE)
    monkeypatch.setattr(quotas, "MAX_REGISTRY_BYTES", 1)
    monkeypatch.setattr(quotas, "MAX_STREAMS_OF_OWNER", 1)
    few_writes(monkeypatch, 0)
    author = Author(Writer(f"{MINE}/0").add(CreateStream(), signer=EVE).rows())
    effects = [e for c in mine.changes for e in author.kept.copy(COPIER, MINE, c)]
    assert [type(effect) for effect in effects] == [Store]
    assert of(Notice, author.disk.settle(effects, author.kept.stored)) == []
    assert author.kept.history(MINE).head == mine.history.head


def test_a_chain_that_is_dated_in_the_future_can_be_written() -> None:
    ahead = START + 10 * MAX_SKEW_MS / 1000
    author = Author(Writer(MINE).add(CreateStream(), signer=EVE, at=ahead).rows())
    history = author.kept.history(MINE)

    def dated(at_ms: int) -> bytes:
        revoke = (SetPermission(ANN, 0),)
        change = Change(MINE, history.tips, history.next_depth(), EVE.node, at_ms, revoke)
        return encode_change(change, NET, EVE.sign)

    assert author.write(dated(history.at_ms + 1)).startswith("clock: ")
    assert author.write(dated(history.at_ms)) == ""


def test_the_past_is_over_even_if_a_chain_has_stood_still_since() -> None:
    author = Author(Writer(MINE).add(CreateStream(), signer=EVE).rows())
    change = author.change(MINE, SetPermission(ANN, 31))  # as old as the chain's newest one
    later = START + MAX_SKEW_MS / 1000 + 1
    assert author.write(change, later).startswith("clock: ")


def test_who_reads_chains_that_do_not_exist_is_told_of_a_few() -> None:
    author = Author()
    author.kept.receive(ANN, ReadChain(1, STREAM))
    assert author.kept.sizes()["absent chains a node watches"][0] == 1
    author.ask(STREAM, CreateStream(), signer=OWNER)
    author.kept.receive(ANN, ReadChain(1, STREAM))
    assert author.kept.sizes()["absent chains a node watches"][0] == 0
    assert author.kept.sizes()["watches"][0] == 1
