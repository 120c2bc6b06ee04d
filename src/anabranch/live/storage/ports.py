"""Where a storage node listened last: the network knows it by that place."""

from pathlib import Path

import msgspec

FILE = "ports.json"


class Ports(msgspec.Struct, frozen=True):
    """For nodes, and for those who ask over HTTP; 0: any that is free."""

    port: int = 0
    http_port: int = 0


def remembered(folder: Path) -> Ports:
    """Return where it listened last; nowhere, if it never did."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Ports)
    except (OSError, msgspec.DecodeError):
        return Ports()


def remember(folder: Path, ports: Ports) -> None:
    """Keep where it listens."""
    (folder / FILE).write_bytes(msgspec.json.encode(ports))
