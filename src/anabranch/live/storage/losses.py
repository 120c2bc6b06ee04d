"""Losses that an operator accepts: the request reaches the node by a file in its folder.

Whoever may write to the folder of a storage node may decide that.
"""

from pathlib import Path

from anabranch.core.store import LogState, Loss, StoreError
from anabranch.live.storage.sqlite import load_states

REQUEST = "accept-loss-request"
MAX_REQUEST_BYTES = 1 << 20


def request_loss(folder: Path, stream: str) -> None:
    """Ask the node that runs in a folder to go on without what its disk has forgotten."""
    with (folder / REQUEST).open("a") as file:
        file.write(f"{stream}\n")


def taken_requests(folder: Path) -> list[str]:
    """Return the streams of which losses are accepted, once."""
    path = folder / REQUEST
    if not path.exists():
        return []
    taken = path.with_name(f"{REQUEST}-taken")
    try:
        path.replace(taken)
        text = taken.read_bytes()[:MAX_REQUEST_BYTES].decode(errors="replace")
        taken.unlink(missing_ok=True)
    except OSError:
        return []
    return list(dict.fromkeys(text.split()))


def forgotten(folder: Path, stream: str) -> list[LogState]:
    """Return the logs of a stream that a disk has forgotten a part of, as the files say."""
    states = [state for state in _states(folder) if state.part.stream == stream]
    return [state for state in states if state.is_restored or state.rank < state.owed]


def accepted(folder: Path, stream: str) -> list[tuple[LogState, Loss]]:
    """Return the losses of a stream that were accepted."""
    states = [state for state in _states(folder) if state.part.stream == stream]
    return [(state, loss) for state in states for loss in state.losses]


def _states(folder: Path) -> list[LogState]:
    path = folder / "logs.sqlite"
    if not path.exists():
        raise StoreError(f"{folder} is not the folder of a storage node: it has no {path.name}")
    return load_states(path)
