"""How people name things, and what they are told if they cannot be named so."""

import pytest

from anabranch.core.errors import LocalError
from anabranch.live.terms import check_move
from machines import NODES

A, B, C, D = NODES[:4]


def test_storage_nodes_are_added_and_removed_one_at_a_time() -> None:
    check_move((), (A, B, C))
    check_move((A,), (A, B))
    check_move((A, B), (B,))
    check_move((A, B), (B, A))
    check_move((A, B), ())
    with pytest.raises(LocalError, match="would leave history behind"):
        check_move((A, B, C), (A, B, D))
    with pytest.raises(LocalError, match="would leave history behind"):
        check_move((A,), (A, B, C))
    with pytest.raises(LocalError, match="twice"):
        check_move((), (A, A))
