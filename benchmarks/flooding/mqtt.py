"""A broker again: mosquitto, with gmqtt, whose messages are QoS 0. It does not sign them."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from flooding.harness import PATIENCE_S, free_ports, start_server
from flooding.meshes import Mailbox

TOPIC = "flood"
# Nothing is to be dropped, whatever waits for a client.
CONFIG = """
listener {port} 127.0.0.1
allow_anonymous true
max_queued_messages 0
max_inflight_messages 0
"""


class MqttMember:
    """A client of mosquitto."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._mailbox = Mailbox()
        self._subscribed = asyncio.Event()

    async def listen(self) -> None:
        """Subscribe."""

        def take(client: Any, topic: str, payload: bytes, qos: int, properties: Any) -> int:
            self._mailbox.put(payload)
            return 0

        self._client.on_message = take
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.subscribe(TOPIC, qos=0)
        await asyncio.wait_for(self._subscribed.wait(), PATIENCE_S)

    async def publish(self, payload: bytes) -> None:
        """Publish."""
        self._client.publish(TOPIC, payload, qos=0)

    def receive(self) -> AsyncIterator[bytes]:
        """Yield what the broker sends."""
        return self._mailbox.read()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.disconnect()


class Mosquitto:
    """mosquitto with gmqtt."""

    name, signed = "mosquitto", False

    @staticmethod
    def problem() -> str:
        """Return why it cannot be measured."""
        if Mosquitto._program() is None:
            return "mosquitto is not installed"
        try:
            import gmqtt  # noqa: F401
        except ImportError:
            return "gmqtt is not installed"
        return ""

    @staticmethod
    def _program() -> str | None:
        return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")

    async def start(self) -> str:
        """Start the broker."""
        [port] = free_ports(1)
        program = self._program()
        assert program is not None
        self._folder = tempfile.TemporaryDirectory(prefix="anabranch-flood-")
        config = Path(self._folder.name) / "mosquitto.conf"
        config.write_text(CONFIG.format(port=port))
        self._broker = await start_server(port, program, "-c", str(config))
        return str(port)

    async def join(self, index: int, where: str) -> MqttMember:
        """Connect."""
        import gmqtt

        client = gmqtt.Client(f"member-{index}")
        await client.connect("127.0.0.1", int(where))
        member = MqttMember(client)
        if index:
            await member.listen()
        return member

    async def stop(self) -> None:
        """End the broker."""
        self._broker.terminate()
        await self._broker.wait()
        self._folder.cleanup()

    def helpers(self) -> list[int]:
        """Return the broker."""
        return [self._broker.pid]
