"""Losses that an operator accepts: the request reaches the node by a file in its folder.

Whoever may write to the folder of a storage node may decide that.
"""

import secrets
from pathlib import Path

from anabranch.core.store import LogState, Loss, StoreError
from anabranch.live.storage.sqlite import load_states

REQUEST = "accept-loss-request"
MAX_REQUEST_BYTES = 4_096
MAX_REQUESTS = 100  # that are taken at a time


def request_loss(folder: Path, stream: str) -> None:
    """Ask the node that runs in a folder to go on without what its disk has forgotten.

    The request appears under its name as a whole, since the node may look at any moment.
    """
    name = f"{REQUEST}-{secrets.token_hex(8)}"
    written = folder / f".{name}"
    written.write_text(f"{stream}\n")
    written.replace(folder / name)


def taken_requests(folder: Path) -> list[str]:
    """Return the streams of which losses are accepted, once."""
    streams: dict[str, None] = {}
    for path in sorted(folder.glob(f"{REQUEST}-*"))[:MAX_REQUESTS]:
        try:
            with path.open("rb") as file:
                text = file.read(MAX_REQUEST_BYTES).decode(errors="replace")
            path.unlink()
        except OSError:
            continue
        streams |= dict.fromkeys(text.split())
    return list(streams)


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
