"""What anybody may add to the registry: at once, a second, and in all."""

from typing import Any

import pytest

from anabranch.core import quotas
from anabranch.core.changes import (
    CreateStream,
    DeleteStream,
    EditStream,
    SetPermission,
    SetTrackers,
)
from anabranch.core.errors import RemoteError
from anabranch.core.heads import Heads
from anabranch.core.history import History, make_change
from anabranch.core.identity import Signer
from anabranch.core.ids import show
from anabranch.core.messages.registry import NETWORK
from anabranch.core.quotas import WRITES_AT_ONCE, WRITES_PER_S, Allowance, Quotas
from chains import ENTRIES, NET, OWNER, Writer
from machines import NODES, SIGNERS, START

EVE, BOB = SIGNERS[7], SIGNERS[8]
MINE = f"{show(EVE.node)}/mine"


def ask(kept: Quotas, history: History, *actions: Any, signer: Signer = EVE, at: float = 0) -> str:
    """Ask for a change; return what is wrong with that, if anything."""
    change = make_change(signer, history, actions, START)
    try:
        kept.charge(history, change, OWNER.node, START + at)
    except RemoteError as error:
        return str(error)
    return ""


def created(chain: str = MINE, signer: Signer = EVE, *actions: Any) -> History:
    writer = Writer(chain)
    writer.add(CreateStream(), *actions, signer=signer)
    return writer.history


def test_an_allowance_is_used_up_and_grows_again() -> None:
    left = Allowance(3, 2, START)
    assert [left.spend(START) for _ in range(4)] == [True, True, True, False]
    assert [left.spend(START + 1) for _ in range(3)] == [True, True, False]
    assert not left.spend(START)  # a time that has passed changes nothing
    assert [left.spend(START + 1.5) for _ in range(2)] == [True, False]
    assert [left.spend(START + 100) for _ in range(4)] == [True, True, True, False]


def test_an_author_may_write_so_much_and_takes_nothing_from_others() -> None:
    kept, history = Quotas(Heads()), created(MINE, EVE, SetPermission(BOB.node, 31))
    edit = EditStream(degree=6)
    asked = [ask(kept, history, edit) for _ in range(int(WRITES_AT_ONCE) + 1)]
    assert set(asked[:-1]) == {""}
    assert asked[-1].startswith("busy: ")
    assert ask(kept, history, edit, signer=BOB) == ""
    assert [ask(kept, history, edit, at=1) for _ in range(int(WRITES_PER_S))] == [""] * 10
    assert ask(kept, history, edit, at=1).startswith("busy: ")


def test_only_those_who_wrote_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_AUTHORS", 2)
    monkeypatch.setattr(quotas, "WRITES_AT_ONCE", 1)
    kept, authors = Quotas(Heads()), SIGNERS[7:10]
    histories = {s.node: History(f"{show(s.node)}/own", NET) for s in authors}

    def busy(signer: Signer) -> bool:
        return bool(ask(kept, histories[signer.node], CreateStream(), signer=signer))

    one, two, three = authors
    assert [busy(one), busy(two), busy(one), busy(three)] == [False, False, True, False]
    assert kept.sizes()["authors"] == (2, 2)
    assert [busy(one), busy(three), busy(two)] == [True, True, False]


def test_an_owner_has_so_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_STREAMS_OF_OWNER", 2)
    heads = Heads()
    kept, third = Quotas(heads), History(f"{show(EVE.node)}/third", NET)
    heads.set(NETWORK, NET)
    for owner in sorted(NODES):  # before hers and after hers
        heads.set(f"{show(owner)}/first", NET)
    assert ask(kept, third, CreateStream()) == ""
    heads.set(f"{show(EVE.node)}/second", NET)
    problem = ask(kept, third, CreateStream())
    assert problem.startswith("full: 2 streams")
    assert "another key" in problem
    assert ask(kept, created(f"{show(EVE.node)}/first"), EditStream(degree=6)) == ""
    other = History(f"{show(BOB.node)}/second", NET)
    assert ask(kept, other, CreateStream(), signer=BOB) == ""


def test_a_full_registry_takes_only_what_its_owner_adds_and_what_takes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "MAX_REGISTRY_BYTES", 1_000)
    kept, history = Quotas(Heads()), created(MINE, EVE, SetPermission(BOB.node, 31))
    kept.count(NETWORK, b"x" * 5_000)  # the network's own chain is its owner's matter
    assert ask(kept, history, EditStream(degree=6)) == ""
    kept.count(MINE, b"x" * 900)
    assert kept.sizes()["registry bytes"] == (900, 1_000)
    grant, revoke = SetPermission(NODES[20], 1), SetPermission(BOB.node, 0)
    for refused in (
        [EditStream(degree=6)],
        [grant],
        [SetPermission(BOB.node, 1)],
        [SetPermission(NODES[20], 0)],  # who has no rights: that can be said without end
        [revoke, grant],
        [DeleteStream(), CreateStream()],
    ):
        assert ask(kept, history, *refused).startswith("full: ")
    assert ask(kept, history, revoke) == ""
    assert ask(kept, history, DeleteStream()) == ""
    owners = f"{show(OWNER.node)}/more"
    assert ask(kept, History(owners, NET), CreateStream(), signer=OWNER) == ""
    assert ask(kept, Writer(NETWORK).history, SetTrackers(ENTRIES), signer=OWNER) == ""
