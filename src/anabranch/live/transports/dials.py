"""Our own attempts to reach others, and what to say of those that fail."""

import asyncio
import ssl
from urllib.parse import urlsplit

from picows import WSError, WSInvalidStatusError
from picows.url import WSParsedURL, parse_url

from anabranch.core.ids import NodeId
from anabranch.live.transports.connection import Connection
from anabranch.live.transports.wire import TOO_MANY_REQUESTS, Wire

CROSSED = "crossed"  # the other side's connection to us is the one to keep


class Dial:
    """One attempt; `outcome` is an empty word once a link stands, else why none does."""

    def __init__(self, peer: NodeId | None, address: str, asked: bool) -> None:
        self.peer = peer  # None: whoever is there, until it has proved itself
        self.address = address
        self.asked = asked  # the owner asked for it, and is answered
        self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.connection: Connection | None = None
        self.crossed = False

    def succeed(self) -> None:
        """Settle it: its own connection is the link."""
        self.outcome.set_result("")

    def give_up(self, outcome: str) -> None:
        """Settle it, and stop trying; an empty word if there is another link."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
        if self.connection is not None:
            self.connection.finish(outcome or CROSSED)


async def connect(
    wire: Wire, url: WSParsedURL, tls: ssl.SSLContext | None, ip: str | None = None
) -> str:
    """Connect a wire, to one IP address if it is given, and upgrade it; return "" or why not."""
    loop = asyncio.get_running_loop()
    secure = (tls or ssl.create_default_context()) if url.is_secure else None
    try:
        await loop.create_connection(
            lambda: wire,
            url.host if ip is None else ip,
            url.port,
            ssl=secure,
            server_hostname=url.host if secure else None,
        )
        await wire.wait_until_handshake_complete()
    except WSInvalidStatusError as error:
        busy = error.response is not None and error.response.status == TOO_MANY_REQUESTS
        return "busy" if busy else "not-a-node"
    except WSError:
        return "not-a-node"
    except ssl.SSLError:
        return "tls"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "timeout"
    except (OSError, ValueError):  # a name that does not resolve, or is none
        return "unreachable"
    return "" if wire.listener is not None else "not-a-node"


def read_address(address: str) -> WSParsedURL | None:
    """Read ws://host:port or wss://host:port; None if it is neither.

    No address of a node names a user, and picows fails by an assertion where one does.
    """
    try:
        return None if "@" in urlsplit(address).netloc else parse_url(address)
    except (WSError, ValueError):
        return None


def explain(reason: str, address: str, network: bytes, patience_s: float) -> str:
    """Say in a sentence why an address was not reached, and what to do."""
    sentences = {
        "bad-address": f"{address!r} is not an address: write ws://host:port or wss://host:port",
        "refused": f"nothing listens at {address}: is the tracker running?",
        "timeout": f"no answer from {address} within {patience_s:g} s: check the address, whether "
        "it wants ws:// or wss://, and that no firewall stands between",
        "unreachable": f"{address} cannot be reached: check its name and your connection",
        "tls": f"TLS with {address} failed: give a client_ssl context that trusts its certificate, "
        "or write ws:// if it speaks no TLS",
        "not-a-node": f"no Anabranch node answers at {address}: check host and port, and whether "
        "it wants ws:// or wss://",
        "busy": f"the node at {address} takes no more connections now: try again in a minute",
        "wrong-network": f"this is another network: the node at {address} does not belong to "
        f"{network.hex()}; check the address you were given",
        "protocol-version": f"the node at {address} speaks another version of the protocol: bring "
        "both to the same release",
        "self-dial": f"{address} is this node's own address: give another node's",
        "too-many-dials": "too many dials are under way: try again when some have ended",
    }
    return sentences.get(reason, f"{address} was not reached: {reason}")
