"""Random changes, right and wrong, against a deliberately dumb twin of a chain's state."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.changes import (
    PUBLIC,
    Change,
    CreateStream,
    DeleteStream,
    Right,
    SetPermission,
    SetTrackers,
    encode_change,
    hash_change,
)
from anabranch.core.errors import RemoteError
from anabranch.core.history import History
from anabranch.core.registry import StreamState
from chains import ENTRIES, NET, OWNER, STREAM
from machines import KEYS, NODES, SIGNERS, START

PEOPLE = [OWNER, *SIGNERS[1:4]]
NAMED = [*(person.node for person in PEOPLE), PUBLIC]
BASE_MS = int(START * 1000)

ACTIONS = st.one_of(
    st.builds(CreateStream, st.integers(1, 3), public=st.integers(0, 31)),
    st.builds(
        SetPermission,
        st.sampled_from(NAMED),
        st.integers(0, 31),
        st.just(0) | st.integers(BASE_MS, BASE_MS + 40),
    ),
    st.just(DeleteStream()),
    st.just(SetTrackers(ENTRIES)),
)
STEPS = st.tuples(
    ACTIONS,
    st.integers(0, 3),  # who says so
    st.integers(-2, 8),  # how long after the last change, in ms
    st.sampled_from(["right"] * 8 + ["depth", "parents", "chain", "forged", "network"]),
)


class Twin:
    """Replays the whole history for every question."""

    def __init__(self) -> None:
        self.history: list[tuple[Any, Any, int]] = []  # action, author, when

    def rights(self, node: Any, at_ms: int) -> int:
        begin = max(
            (i for i, (a, _, _) in enumerate(self.history) if isinstance(a, CreateStream)),
            default=None,
        )
        if begin is None or isinstance(self.history[-1][0], DeleteStream):
            return 0
        if node == OWNER.node:
            return 31
        total = 0
        for whom in (node, PUBLIC):
            last = self.history[begin][0].public if whom == PUBLIC else 0
            expires = 0
            for action, _, _ in self.history[begin + 1 :]:
                if action.node == whom:
                    last, expires = action.rights, action.expires_ms
            if not expires or at_ms < expires:
                total |= last
        return total

    @property
    def exists(self) -> bool:
        return bool(self.history) and not isinstance(self.history[-1][0], DeleteStream)

    def takes(self, action: Any, author: Any, at_ms: int) -> bool:
        if self.history and at_ms < self.history[-1][2]:
            return False
        if isinstance(action, CreateStream):
            return author == OWNER.node and not self.exists
        if isinstance(action, DeleteStream):
            return bool(self.rights(author, at_ms) & Right.DELETE)
        if isinstance(action, SetPermission):
            return bool(self.rights(author, at_ms) & Right.GRANT)
        return False


def spoil(change: Change, how: str) -> Change:
    """Make a change wrong in one way."""
    if how == "depth":
        return msgspec.structs.replace(change, depth=change.depth + 1)
    if how == "parents":
        return msgspec.structs.replace(change, parents=(hash_change(change.parents[0]),))
    if how == "chain":
        return msgspec.structs.replace(change, chain=STREAM + "x")
    return change


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=30))
def test_a_chain_agrees_with_a_dumb_twin(steps: list[tuple[Any, int, int, str]]) -> None:
    history, twin, at_ms = History(STREAM, NET), Twin(), BASE_MS
    for action, who, later_ms, how in steps:
        author = PEOPLE[who]
        at_ms = max(0, at_ms + later_ms)
        parents, depth = history.next_parents(), history.next_depth()
        change = Change(STREAM, parents, depth, author.node, at_ms, (action,))
        signer = SIGNERS[9] if how == "forged" else author
        network = bytes(32) if how == "network" else NET
        encoded = encode_change(spoil(change, how), network, signer.sign)
        expected = how == "right" and twin.takes(action, author.node, at_ms)
        head, before = history.head, vars(history.state.copy())
        try:
            history.add(encoded, KEYS.verify)
        except RemoteError:
            assert not expected
            assert (history.head, vars(history.state)) == (head, before)
        else:
            assert expected
            twin.history.append((action, author.node, at_ms))
            assert history.tips == (hash_change(encoded),)
        at_ms = max(at_ms, history.at_ms)
    state = history.state
    assert isinstance(state, StreamState)
    assert history.height == len(twin.history)
    assert (state.created is not None) == twin.exists
    for node in (*NAMED, NODES[9]):
        for when in (at_ms, at_ms + 20, at_ms + 60):
            held = sum(right for right in Right if state.may(node, right, when / 1000))
            assert held == twin.rights(node, when)
