"""A driver between a scripted machine and links that the test holds in its hands.

Time is the loop's and passes at once: a loop that has nothing to do moves its clock to the next
timer, so that the tests of timers neither wait nor depend on how fast this computer is.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

from anabranch.core.ids import NodeId
from anabranch.core.machine import DialCheck, Effect, Event, Outcome, Sizes, Wakeup
from anabranch.live.driver import Driver
from anabranch.live.observer import Observer
from anabranch.live.transports import LinkOwner
from machines import NODES, PART

ME, A, B, C = NODES[:4]
START = 1024.0


class Timeless(asyncio.SelectorEventLoop):
    """A loop whose time passes when there is nothing else to do."""

    def __init__(self) -> None:
        self.now = START
        self.timers: list[asyncio.TimerHandle] = []
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, *args: Any, **more: Any) -> asyncio.TimerHandle:
        handle = super().call_at(when, *args, **more)
        self.timers.append(handle)
        return handle

    def armed(self) -> list[float]:
        """Return when timers will ring."""
        return [t.when() for t in self.timers if not t.cancelled() and t.when() > self.now]


class _Skipping(selectors.SelectSelector):
    def __init__(self, loop: Timeless) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "the loop would wait for ever"
        self._loop.now += timeout
        return super().select(0)


class Script:
    """A machine that answers events with prepared effects, and writes down what happens."""

    def __init__(self, log: list[Any]) -> None:
        self.wakeup_at: float | None = None
        self.answers: dict[type, Callable[[Any], list[Effect]]] = {}
        self.log = log
        self.times: list[float] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.log.append(event)
        self.times.append(now)
        answer = self.answers.get(type(event))
        return answer(event) if answer else []

    def sizes(self) -> Sizes:
        return {}

    def on(self, kind: type[Any], answer: Callable[[Any], list[Effect]]) -> None:
        """Answer events of this kind so."""
        self.answers[kind] = answer

    def wake_once(self) -> None:
        """Want no more wakeups after the next."""

        def answer(_: Wakeup) -> list[Effect]:
            self.wakeup_at = None
            return []

        self.on(Wakeup, answer)


class Wire:
    """A link that writes down what is done with it."""

    def __init__(self, peer: NodeId, log: list[Any]) -> None:
        self.peer = peer
        self.rtt_s: float | None = 0.5
        self.host = ""
        self.sent: list[bytes] = []
        self.closed: list[str] = []
        self.withdrawn: list[bytes] = []
        self.on_send: Callable[[], None] | None = None
        self._log = log

    def send(self, *packets: bytes) -> None:
        self.sent += packets
        self._log.append(("sent", self.peer))
        if self.on_send is not None:
            self.on_send()

    def withdraw(self, names: list[bytes]) -> int:
        self.withdrawn += names
        return 0

    def close(self, reason: str) -> None:
        self.closed.append(reason)
        self._log.append(("closed", self.peer))


class Wires:
    """A transport that only writes down who is dialled, and when something is in a hurry."""

    address = ""
    is_address_given = False

    def __init__(self, log: list[Any]) -> None:
        self.dialled: list[tuple[NodeId, str]] = []
        self.checks: list[tuple[NodeId, str, Callable[[bool], None]]] = []
        self._log = log

    async def start(self, owner: LinkOwner) -> None: ...

    def dial(self, peer: NodeId, address: str) -> None:
        self.dialled.append((peer, address))

    def check(self, check: DialCheck, done: Callable[[bool], None]) -> None:
        self.checks.append((check.peer, check.address, done))

    def hasten(self) -> None:
        self._log.append("hastened")

    async def find(self, address: str) -> NodeId:
        raise AssertionError("the driver finds nobody by itself")

    async def stop(self) -> None: ...


class Bench:
    """A driver, its machine, its links, and what happened, in order."""

    def __init__(self, loop: Timeless) -> None:
        self.loop = loop
        self.log: list[Any] = []
        self.machine = Script(self.log)
        self.transport = Wires(self.log)
        self.observer = Observer(ME)
        self.observer.name_part(PART)
        handlers = {Outcome: self.log.append}
        common = (self.transport, handlers, self.observer, loop.time)
        self.driver = Driver(*common, deliver=lambda effect, _: self.log.append(effect))
        self.driver.rounding_s = 0.0  # this loop does not round

    def link(self, *peers: NodeId) -> list[Wire]:
        """Let links stand; what the machine makes of that is not written down."""
        wires = [Wire(peer, self.log) for peer in peers]
        for wire in wires:
            self.driver.link_up(wire)
        self.log.clear()
        return wires

    def counted(self) -> Any:
        return self.observer.snapshot()["parts"].get(str(PART), {})


def run(main: Callable[[Bench], Awaitable[None]], attach: bool = True) -> None:
    """Run a test's coroutine on a loop whose time is its own."""
    with asyncio.Runner(loop_factory=Timeless) as runner:

        async def prepared() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Timeless)
            bench = Bench(loop)
            if attach:
                bench.driver.attach(bench.machine)
            await main(bench)

        runner.run(prepared())
