"""Systems of others: a broker, NATS, and a network without one, Zenoh. Neither signs messages."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from flooding.harness import MEMBERS, PATIENCE_S, free_ports, start_server
from flooding.meshes import Mailbox

SUBJECT = "flood"
MAX_PENDING = 1 << 30  # bytes that a client may have waiting: nothing is to be dropped


class NatsMember:
    """A client of nats-server; its own iterator of messages costs more than a callback."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._mailbox = Mailbox()

    async def listen(self) -> None:
        """Subscribe."""

        async def take(message: Any) -> None:
            self._mailbox.put(message.data)

        await self._client.subscribe(
            SUBJECT, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        await self._client.flush()

    async def publish(self, payload: bytes) -> None:
        """Publish."""
        await self._client.publish(SUBJECT, payload)

    def receive(self) -> AsyncIterator[bytes]:
        """Yield what the server sends."""
        return self._mailbox.read()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


class Nats:
    """nats-server with nats-py."""

    name, signed = "nats", False

    @staticmethod
    def problem() -> str:
        """Return why it cannot be measured."""
        if Nats._program() is None:
            return "nats-server is not installed"
        try:
            import nats  # noqa: F401
        except ImportError:
            return "nats-py is not installed"
        return ""

    @staticmethod
    def _program() -> str | None:
        beside = Path(sys.executable).with_name("nats-server")
        return str(beside) if beside.exists() else shutil.which("nats-server")

    async def start(self) -> str:
        """Start the server."""
        [port] = free_ports(1)
        program = self._program()
        assert program is not None
        self._server = await start_server(port, program, "-a", "127.0.0.1", "-p", str(port))
        return f"nats://127.0.0.1:{port}"

    async def join(self, index: int, where: str) -> NatsMember:
        """Connect."""
        import nats

        client = await nats.connect(where, pending_size=MAX_PENDING, connect_timeout=PATIENCE_S)
        member = NatsMember(client)
        if index:
            await member.listen()
        return member

    async def stop(self) -> None:
        """End the server."""
        self._server.terminate()
        await self._server.wait()

    def helpers(self) -> list[int]:
        """Return the server."""
        return [self._server.pid]


class ZenohMember:
    """A peer; what its threads bring is handed to the loop, as much at once as there is."""

    def __init__(self, session: Any, receives: bool) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox()
        self._came: list[bytes] = []
        self._publisher = None if receives else session.declare_publisher(SUBJECT)
        self._subscriber = session.declare_subscriber(SUBJECT, self._take) if receives else None

    def _take(self, sample: Any) -> None:
        self._came.append(bytes(sample.payload))
        if len(self._came) == 1:
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        came, self._came = self._came, []
        for payload in came:
            self._mailbox.put(payload)

    async def publish(self, payload: bytes) -> None:
        """Publish."""
        assert self._publisher is not None
        self._publisher.put(payload)

    def receive(self) -> AsyncIterator[bytes]:
        """Yield what came."""
        return self._mailbox.read()

    async def close(self) -> None:
        """Leave."""
        await asyncio.to_thread(self._session.close)


class Zenoh:
    """Peers of Eclipse Zenoh, each linked with all others."""

    name, signed = "zenoh", False

    @staticmethod
    def problem() -> str:
        """Return why it cannot be measured."""
        try:
            import zenoh  # noqa: F401
        except ImportError:
            return "eclipse-zenoh is not installed"
        return ""

    async def start(self) -> str:
        """Choose places."""
        return json.dumps([f"tcp/127.0.0.1:{port}" for port in free_ports(MEMBERS)])

    async def join(self, index: int, where: str) -> ZenohMember:
        """Open a session that is linked with all who came before."""
        import zenoh

        places = json.loads(where)
        config = zenoh.Config()
        config.insert_json5("mode", '"peer"')
        config.insert_json5("scouting/multicast/enabled", "false")
        config.insert_json5("listen/endpoints", json.dumps([places[index]]))
        config.insert_json5("connect/endpoints", json.dumps(places[:index]))
        session = await asyncio.to_thread(zenoh.open, config)
        return ZenohMember(session, receives=bool(index))

    async def stop(self) -> None:
        """Nothing runs beside the members."""

    def helpers(self) -> list[int]:
        """Return nobody."""
        return []
