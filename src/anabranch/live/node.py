"""A node in a process: the Peer behind a driver, with futures for what the application awaits.

Whoever awaits something here is told within a bounded time: every publication has its outcome,
every question to the registry its answer.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.ids import NodeId, PartKey, StreamPart, part_key
from anabranch.core.machine import (
    Answered,
    Deliver,
    Draft,
    Follow,
    Learned,
    Notice,
    Outcome,
    Publish,
    Published,
    Request,
    Retire,
    Subscribe,
    Unsubscribe,
)
from anabranch.core.messages import Contact, Control
from anabranch.core.messages.registry import NETWORK
from anabranch.core.overlay import PartSettings
from anabranch.core.parts import MAX_PARTS
from anabranch.core.peer import Peer
from anabranch.core.publishing import STRANDED_FOR_S
from anabranch.core.registry import StreamState
from anabranch.core.registry_reader import RegistryReader
from anabranch.live.driver import Driver
from anabranch.live.errors import AnabranchError, Closed, NetworkUnreachable, NoSuchStream
from anabranch.live.message import names_of
from anabranch.live.observer import Observer
from anabranch.live.subscription import Subscription
from anabranch.live.transports import Transport, TransportError
from anabranch.overlays import OVERLAYS

REGISTRY_PATIENCE_S = 12.0
REPORT_EVERY_S = 2.0
MAX_LOOKED_UP = 1_500  # chains that are kept up to date, beside those of streams in use

T = TypeVar("T")


class Node:
    """One node of a network, in this process."""

    def __init__(
        self,
        identity: Identity,
        transport: Transport,
        node: NodeId,
        network: bytes,
        observer: Observer,
        patience_s: float = STRANDED_FOR_S,
    ) -> None:
        self.identity = identity
        self.node = node
        self.network = network
        self.observer = observer
        self._transport = transport
        self._patience_s = patience_s
        self._subscriptions: dict[StreamPart, list[Subscription]] = {}
        self._publishing: dict[StreamPart, None] = {}
        self._chains: dict[PartKey, tuple[str, str]] = {}  # our own: publisher, chain
        self._drafts: dict[StreamPart, list[Draft]] = {}  # of this turn of the loop
        self._outcomes: dict[int, asyncio.Future[Outcome]] = {}
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._looked_up: dict[str, None] = {}  # chains of the registry, the last one last
        self._lessons: dict[str, list[asyncio.Future[None]]] = {}
        self._watchers: list[Callable[[Notice], None]] = []
        self._ticket = 0
        self._started = False
        self._closing = False  # nothing new may begin
        self._closed = False  # nothing may go on
        self._reporting: asyncio.TimerHandle | None = None
        self.driver = Driver(
            transport,
            {
                Deliver: self._deliver,
                Outcome: self._outcome,
                Published: self._published,
                Learned: self._learned,
                Answered: self._answered,
                Notice: self._notice,
            },
            observer,
        )
        self.driver.on_failure(self._failed)
        self.registry: RegistryReader
        self.peer: Peer

    @property
    def address(self) -> str:
        """Where others dial us."""
        return self._transport.address

    # --- Coming and going -----------------------------------------------------------------

    async def start(self, urls: Sequence[str]) -> None:
        """Reach a tracker at one of these addresses and learn the network from it."""
        if self._started:
            raise LocalError("a connection can be entered once: connect again")
        self._started = True
        await self._transport.start(self.driver)
        try:
            found = await self._find(urls)
            verify = KnownKeys().verify
            rng = random.Random(int.from_bytes(os.urandom(16)))
            self.registry = RegistryReader(self.network, verify, found, rng, me=self.node)
            self.peer = Peer(
                self.identity,
                verify,
                self.registry.directory,
                OVERLAYS,
                rng,
                os.urandom,
                self._transport.address,
                node=self.node,
                permits=self.registry,
                services=[self.registry],
                patience_s=self._patience_s,
            )
            self.driver.attach(self.peer)
            await self.follow(NETWORK)
        except BaseException:
            self.driver.detach()
            await self._transport.stop()
            raise
        self._report()

    async def _find(self, urls: Sequence[str]) -> Contact:
        problems: list[str] = []
        for url in urls:
            try:
                return Contact(await self._transport.find(url), url)
            except TransportError as error:
                problems.append(str(error))
        raise NetworkUnreachable("; ".join(problems))

    async def stop(self, drain_s: float) -> None:
        """Leave in good order: wait for outcomes that are due, say goodbye, send what is queued."""
        await asyncio.sleep(0)  # tasks that were made just before, to publish, have their turn
        if self._closing:
            return
        self._closing = True
        await self._drain(drain_s)
        self._closed = True
        self._give_up(Closed("the connection to the network was closed"))
        if self._reporting is not None:
            self._reporting.cancel()
        for part in list(self._publishing):
            self.driver.feed(Retire(part))
        for part, subscriptions in list(self._subscriptions.items()):
            self.driver.feed(Unsubscribe(part))
            for subscription in list(subscriptions):
                subscription.close()
        self.driver.detach()
        await self._transport.stop()

    async def _drain(self, drain_s: float) -> None:
        """Wait for the outcomes of what was published, and of what waits for room to be."""
        until = self.driver.now() + drain_s
        while (left := until - self.driver.now()) > 0:
            pending = [future for future in self._outcomes.values() if not future.done()]
            if not pending:
                break
            await asyncio.wait(pending, timeout=left)

    def _failed(self, error: BaseException) -> None:
        self._closed = True
        failure = AnabranchError(f"this node failed by a mistake of its own: {error!r}; report it")
        self._give_up(failure)
        for subscriptions in list(self._subscriptions.values()):
            for subscription in list(subscriptions):
                subscription.fail(failure)

    def _give_up(self, error: AnabranchError) -> None:
        """Tell everybody who awaits something that it will not come."""
        waiting: list[asyncio.Future[Outcome] | asyncio.Future[Answered] | asyncio.Future[None]]
        waiting = [*self._outcomes.values(), *self._answers.values()]
        waiting += [future for lessons in self._lessons.values() for future in lessons]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be awaiting it any more, which is no mistake

    def check_open(self) -> None:
        """Refuse what begins before we have come, or when we leave already."""
        if not self._started:
            raise LocalError("join the network first: async with connect(...) as network")
        if self._closing or self._closed:
            raise Closed("the connection to the network is closed: connect again")

    # --- Publishing -----------------------------------------------------------------------

    def publish(
        self, part: StreamPart, content: bytes, content_type: int
    ) -> asyncio.Future[Outcome]:
        """Hand over a message; those of one turn of the loop may leave in one frame."""
        if self._closed:  # not sooner: it may have been begun, and waited for room, before
            self.check_open()
        self._ticket += 1
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._outcomes[self._ticket] = future
        drafts = self._drafts.get(part)
        if drafts is None:
            if not self._drafts:
                asyncio.get_running_loop().call_soon(self._flush)
            drafts = self._drafts[part] = []
        drafts.append(Draft(content, content_type, self._ticket))
        return future

    def chain(self, part: StreamPart) -> str:
        """Return the id of our own chain in a part that we have published to."""
        return self._chains[part_key(part)][1]

    def _flush(self) -> None:
        drafts, self._drafts = self._drafts, {}
        for part, of_part in drafts.items():
            self._publishing[part] = None
            self.observer.name_part(part)
            self.driver.feed(Publish(part, of_part))

    def _published(self, effect: Published) -> None:
        if effect.head.part not in self._chains or effect.head.previous == 0:
            self._chains[effect.head.part] = names_of(effect.head)
            if len(self._chains) > 2 * MAX_PARTS:  # of parts that we are in no more
                del self._chains[next(iter(self._chains))]

    def _outcome(self, effect: Outcome) -> None:
        future = self._outcomes.pop(effect.ticket)
        if not future.done():
            future.set_result(effect)

    # --- Subscribing ----------------------------------------------------------------------

    def enter(self, subscription: Subscription) -> None:
        """Begin to deliver to a subscription."""
        self.check_open()
        # All at once and then the events: one that fails at once ends the whole subscription.
        fresh = [part for part in subscription.parts if part not in self._subscriptions]
        for part in subscription.parts:
            self._subscriptions.setdefault(part, []).append(subscription)
        for part in fresh:
            if part in self._subscriptions:
                self.observer.name_part(part)
                self.driver.feed(Subscribe(part))

    def leave(self, subscription: Subscription) -> None:
        """Deliver to it no more."""
        for part in subscription.parts:
            subscriptions = self._subscriptions.get(part, [])
            if subscription in subscriptions:
                subscriptions.remove(subscription)
            if not subscriptions and self._subscriptions.pop(part, None) is not None:
                self.driver.feed(Unsubscribe(part))
                if part not in self._publishing:
                    self.observer.forget_part(part)

    def _deliver(self, effect: Deliver) -> None:
        at = self.driver.now()
        for subscription in self._subscriptions.get(effect.part, ()):
            subscription.put(effect, at)

    def watch(self, call: Callable[[Notice], None]) -> None:
        """Call this with everything that the node has to say to its operator."""
        self._watchers.append(call)

    def _notice(self, effect: Notice) -> None:
        for watcher in self._watchers:
            watcher(effect)
        part, error = effect.part, AnabranchError(f"{effect.part}: {effect.detail}")
        if part is None or effect.kind not in ("deleted", "no-such-stream", "too-many-parts"):
            return
        if effect.kind != "too-many-parts":
            error = NoSuchStream(f"{part}: there is no such stream (any more)")
        self._publishing.pop(part, None)
        for subscription in list(self._subscriptions.get(part, ())):
            subscription.fail(error)
        self.observer.forget_part(part)

    # --- The registry ---------------------------------------------------------------------

    async def follow(self, chain: str) -> None:
        """Wait until the registry's word on a chain is known; it is kept up to date after that."""
        self.check_open()
        self._looked_up.pop(chain, None)
        self._looked_up[chain] = None
        if self.registry.knows(chain):
            return
        self._forget_chains()
        future = self._lesson(chain)
        self.driver.feed(Follow(chain))
        await self._in_time(future, f"no tracker answered about {chain}")

    def _forget_chains(self) -> None:
        """Make room for another chain: those go first that were not looked up for longest."""
        used = {part.stream for part in self.members()}
        idle = [c for c in self._looked_up if c not in used and c != NETWORK]
        for chain in idle[: max(0, len(self._looked_up) - MAX_LOOKED_UP)]:
            del self._looked_up[chain]
            self.registry.forget(chain)

    def _lesson(self, chain: str) -> asyncio.Future[None]:
        """Return what is done when the registry's next word on a chain comes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = [other for other in self._lessons.get(chain, ()) if not other.done()]
        self._lessons[chain] = [*waiting, future]  # without those who gave up waiting
        return future

    async def reach(self, chain: str, height: int) -> None:
        """Wait until a chain that is followed has been read this far."""
        while self.registry.state(chain).height < height:
            future = self._lesson(chain)
            await self._in_time(future, f"no tracker told us of the change of {chain}")

    async def stream(self, name: str) -> StreamState:
        """Return what the registry knows of a stream that exists."""
        await self.follow(name)
        state = self.registry.stream(name)
        if state is None or state.created is None:
            raise NoSuchStream(
                f"there is no stream {name}: create it, or look for it with `anabranch stream list`"
            )
        return state

    async def request(self, message: Control) -> Control:
        """Ask the registry something."""
        self.check_open()
        self._ticket += 1
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._answers[self._ticket] = future
        self.driver.feed(Request(self._ticket, message))
        answer = await self._in_time(future, "no tracker answered")
        if answer.message is None:
            raise NetworkUnreachable(_why_unanswered(answer.problem))
        return answer.message

    async def _in_time(self, future: asyncio.Future[T], problem: str) -> T:
        try:
            return await asyncio.wait_for(future, REGISTRY_PATIENCE_S)
        except TimeoutError:
            raise NetworkUnreachable(
                f"{problem} within {REGISTRY_PATIENCE_S:.0f} s: is the tracker running?"
            ) from None

    def _learned(self, effect: Learned) -> None:
        for future in self._lessons.pop(effect.chain, ()):
            if not future.done():
                future.set_result(None)

    def _answered(self, effect: Answered) -> None:
        future = self._answers.pop(effect.ticket)
        if not future.done():
            future.set_result(effect)

    # --- What people look at --------------------------------------------------------------

    def members(self) -> Iterable[StreamPart]:
        """Return the parts we are a member of, sorted."""
        return sorted({**self._publishing, **dict.fromkeys(self._subscriptions)})

    def settings(self, part: StreamPart) -> PartSettings | None:
        """Return what the registry says of a part."""
        return self.registry.directory(part)

    def _report(self) -> None:
        """Tell the trackers how it goes, for people to look at."""
        for part in self.members():
            settings = self.settings(part)
            report = self.observer.report(part, self.driver.now())
            for contact in settings.trackers if settings else ():
                if self.driver.say(contact.node, report):
                    break
        self._reporting = asyncio.get_running_loop().call_later(REPORT_EVERY_S, self._report)


def _why_unanswered(problem: str) -> str:
    if problem == "registry-unreachable":
        return (
            "the tracker that keeps the registry cannot be reached: streams go on carrying "
            "messages without it, and can be created or changed when it is back"
        )
    return f"the registry did not answer ({problem}): try again"
