"""The two kinds of failure must not be mistaken for each other."""

import pytest

from anabranch.core.errors import LocalError, RemoteError


@pytest.mark.parametrize(
    ("detail", "text"), [("", "frame-size"), ("9 bytes", "frame-size: 9 bytes")]
)
def test_a_peers_fault_says_what_it_is_counted_by(detail: str, text: str) -> None:
    error = RemoteError("frame-size", detail)
    assert (error.reason, error.detail, str(error)) == ("frame-size", detail, text)


def test_whoever_catches_one_kind_lets_the_other_pass() -> None:
    # Our own is a ValueError, as callers expect; a peer's must not vanish in `except ValueError`.
    assert issubclass(LocalError, ValueError)
    assert not issubclass(RemoteError, ValueError)
    assert not issubclass(LocalError, RemoteError)
