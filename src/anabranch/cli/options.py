"""The options that many commands share, and how they become a connection."""

import ssl
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.core.errors import LocalError
from anabranch.live.client import Network, connect
from anabranch.live.descriptors import raise_limit, warning
from anabranch.live.profiles import default_key_file, find_profile
from anabranch.live.transports.limits import Prefix, parse_prefix

Profile = Annotated[str | None, typer.Option(help="The network to use, by its profile's name.")]
Address = Annotated[
    str | None, typer.Option(help="The network to use: anabranch://GENESIS@host:port.")
]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="The key to use; by default the profile's.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Data = Annotated[
    Path | None,
    typer.Option(
        help="A folder for the node's own key and for messages that are not stored yet; one "
        "process may use it at a time."
    ),
]
CloseWait = Annotated[
    float, typer.Option(help="Seconds to wait, at the end, until what was published is stored.")
]
WithParent = Annotated[
    bool, typer.Option("--with-parent", hidden=True, help="End when standard input closes.")
]
TlsCert = Annotated[
    Path | None, typer.Option(help="A certificate: listen at a wss:// address with it.")
]
TlsKey = Annotated[Path | None, typer.Option(help="The certificate's key.")]

TrustedProxy = Annotated[
    list[str] | None,
    typer.Option(help="A proxy in front: no bounds per address there. Such as 10.0.0.0/8."),
]


def prefixes_of(texts: list[str] | None) -> tuple[Prefix, ...]:
    """Read the addresses of trusted proxies."""
    return tuple(map(parse_prefix, texts or ()))


def warn_of_few_descriptors() -> None:
    """Say on standard error if this process may have too few files and sockets open."""
    if text := warning(raise_limit()):
        typer.echo(f"warning: {text}", err=True)


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what a listener needs for TLS, if a certificate was given."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise LocalError("TLS needs both: --tls-cert FILE and --tls-key FILE")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise LocalError(f"no certificate can be read from {cert} and {key}: {error}") from error
    return context


def network_of(profile: str | None, address: str | None, key: Path | None, **more: Any) -> Network:
    """Name the network that the options mean."""
    if address is None:
        return connect(profile=profile, key=key, **more)
    if key is None:
        found = find_profile(profile)
        key = default_key_file() if found is None else found.key_file
    return connect(address, key=key, **more)
