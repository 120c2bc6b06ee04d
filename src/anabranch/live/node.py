"""A node in a process: the Peer behind a driver, with futures for what the application awaits.

Whoever awaits something here is told within a bounded time: every publication has its outcome,
every question to the registry its answer.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterable, Sequence

from anabranch.core.changes import Right
from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.ids import NodeId, PartKey, StreamPart, part_key
from anabranch.core.machine import (
    Answered,
    Deliver,
    Draft,
    Learned,
    Notice,
    Outcome,
    Publish,
    Published,
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
from anabranch.live.errors import (
    AnabranchError,
    Closed,
    NetworkUnreachable,
    NoSuchStream,
    NotPermitted,
)
from anabranch.live.message import names_of
from anabranch.live.observer import Observer
from anabranch.live.questions import Questions, fail
from anabranch.live.room import Room
from anabranch.live.subscription import Subscription
from anabranch.live.transports import Transport, TransportError
from anabranch.overlays import OVERLAYS

REPORT_EVERY_S = 2.0


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
        self._outcomes: dict[int, tuple[asyncio.Future[Outcome], Callable[[], None]]] = {}
        self._rooms: dict[str, Room] = {}  # by stream
        self._watchers: list[Callable[[Notice], None]] = []
        self._ticket = 0
        self._started = False
        self._closing = False  # nothing new may begin
        self._closed = False  # nothing may go on
        self._left = asyncio.Event()
        self.failed = asyncio.Event()  # by a mistake of ours
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
        self._questions: Questions

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
            self._questions = Questions(self.registry, self.driver.feed, self._streams)
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
            self._closing = self._closed = True
            self._left.set()
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
        if not self._started:
            return
        if self._closing:
            await self._left.wait()
            return
        self._closing = True
        try:
            await self._drain(drain_s)
        finally:  # whoever is tired of waiting still leaves
            self._leave_everything()
            try:
                await self._transport.stop()
            finally:
                self._left.set()

    def _leave_everything(self) -> None:
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
        self._make_room()

    async def _drain(self, drain_s: float) -> None:
        """Wait for the outcomes of what was published, and of what waits for room to be."""
        until = self.driver.now() + drain_s
        while (left := until - self.driver.now()) > 0:
            pending = [future for future, _ in self._outcomes.values() if not future.done()]
            if not pending:
                break
            await asyncio.wait(pending, timeout=left)

    def _failed(self, error: BaseException) -> None:
        self._closed = True
        self.failed.set()
        failure = AnabranchError(f"this node failed by a mistake of its own: {error!r}; report it")
        self._give_up(failure)
        self._make_room()
        for subscriptions in list(self._subscriptions.values()):
            for subscription in list(subscriptions):
                subscription.fail(failure)

    def _give_up(self, error: AnabranchError) -> None:
        """Tell everybody who awaits something that it will not come."""
        fail((future for future, _ in self._outcomes.values()), error)
        self._questions.give_up(error)

    def _make_room(self) -> None:
        """Let those who wait for room go on, to hear that there is nothing to wait for."""
        while self._outcomes:
            self._outcomes.popitem()[1][1]()

    def check_open(self) -> None:
        """Refuse what begins before we have come, or when we leave already."""
        if not self._started:
            raise LocalError("join the network first: async with connect(...) as network")
        if self._closing or self._closed:
            raise Closed("the connection to the network is closed: connect again")

    # --- Publishing -----------------------------------------------------------------------

    def publish(
        self, part: StreamPart, content: bytes, content_type: int, settled: Callable[[], None]
    ) -> asyncio.Future[Outcome]:
        """Hand over a message; those of one turn of the loop may leave in one frame.

        `settled` is called when its outcome is there, even if nobody awaits that any more.
        """
        if self._closed:  # not sooner: it may have been begun, and waited for room, before
            self.check_open()
        self._ticket += 1
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._outcomes[self._ticket] = (future, settled)
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
        future, settled = self._outcomes.pop(effect.ticket)
        if not future.done():
            future.set_result(effect)
        settled()

    def room(self, stream: str) -> Room:
        """Return the room that all who publish to a stream from here share."""
        room = self._rooms.get(stream)
        if room is None:
            if len(self._rooms) >= MAX_PARTS:  # of streams that nothing of is under way
                self._rooms = {name: r for name, r in self._rooms.items() if r.messages}
            room = self._rooms[stream] = Room()
        return room

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
        await self._questions.follow(chain)

    async def reach(self, chain: str, height: int) -> None:
        """Wait until a chain that is followed has been read this far."""
        await self._questions.reach(chain, height)

    async def request(self, message: Control) -> Control:
        """Ask the registry something."""
        self.check_open()
        return await self._questions.ask(message)

    async def stream(self, name: str) -> StreamState:
        """Return what the registry knows of a stream that exists."""
        await self.follow(name)
        state = self.registry.stream(name)
        if state is None or state.created is None:
            raise NoSuchStream(
                f"there is no stream {name}: create it, or look for it with `anabranch stream list`"
            )
        return state

    def _learned(self, effect: Learned) -> None:
        self._questions.learned(effect)
        state = self.registry.stream(effect.chain)
        if state is None or state.created is None:  # which has its own word
            return
        if state.may(self.identity.node, Right.SUBSCRIBE, self.driver.now()):
            return
        for part in [part for part in self._subscriptions if part.stream == effect.chain]:
            for subscription in list(self._subscriptions.get(part, ())):
                subscription.fail(NotPermitted(f"you may no longer subscribe to {effect.chain}"))

    def _answered(self, effect: Answered) -> None:
        self._questions.answered(effect)

    # --- What people look at --------------------------------------------------------------

    def members(self) -> Iterable[StreamPart]:
        """Return the parts we are a member of, sorted."""
        return sorted({**self._publishing, **dict.fromkeys(self._subscriptions)})

    def _streams(self) -> set[str]:
        return {part.stream for part in self.members()}

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
