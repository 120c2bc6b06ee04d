"""A node in a process: the Peer behind a driver, with futures for what the application awaits.

Whoever awaits something here is told within a bounded time: every publication has its outcome,
every question to the registry its answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from types import MappingProxyType

from anabranch.core.changes import Right
from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    Answered,
    Draft,
    Event,
    Follow,
    ForgetFrames,
    HistoryEnded,
    KeepFrame,
    KeepKey,
    Learned,
    Missed,
    Notice,
    OfferUnstored,
    Outcome,
    PageEnded,
    Publish,
    Published,
    Receipt,
    Retire,
)
from anabranch.core.messages import Control
from anabranch.core.messages.registry import NETWORK
from anabranch.core.overlay import PartSettings
from anabranch.core.peer import Peer
from anabranch.core.publishing import STRANDED_FOR_S
from anabranch.core.registry import StreamState
from anabranch.core.registry_reader import RegistryReader
from anabranch.core.unstored import MAX_UNSTORED_BYTES, Unstored, UnstoredFrames
from anabranch.live.assembly import Keeps, assemble, find_trackers
from anabranch.live.data_folder import DataFolder
from anabranch.live.driver import Driver, Handlers
from anabranch.live.errors import (
    AnabranchError,
    Closed,
    NoSuchStream,
    NotPermitted,
)
from anabranch.live.key_store import KeyStore
from anabranch.live.leaving import close_wait_s, note_wait
from anabranch.live.observer import Observer
from anabranch.live.publications import Publication, Publications
from anabranch.live.questions import Questions
from anabranch.live.reports import EVERY_S, Turns
from anabranch.live.subscription import Subscription
from anabranch.live.subscriptions import Subscriptions
from anabranch.live.transports import Transport

LOOK_EVERY_S = 0.1  # whether others still need us
FOLDER_RETRY_S = 5.0  # until a data folder that failed is written again

DATA_FOLDER = "data-folder"  # kind of notices


class Node:
    """One node of a network, in this process."""

    def __init__(
        self,
        identity: Identity,
        transport: Transport,
        node: NodeId,
        network: bytes,
        observer: Observer,
        key_store: KeyStore,
        patience_s: float = STRANDED_FOR_S,
        keeps: Keeps | None = None,
        handlers: Handlers = MappingProxyType({}),
        unstored_bytes: int = MAX_UNSTORED_BYTES,
        folder: DataFolder | None = None,
        confirm_within_s: float = inf,
    ) -> None:
        """`keeps` makes what stores streams, if this is a storage node; `handlers` are its.

        At most `unstored_bytes` of frames wait until they are stored; `folder` keeps them. Rights
        count only if a tracker has confirmed them within `confirm_within_s`.
        """
        self.identity = identity
        self.node = node
        self.network = network
        self.observer = observer
        self._transport = transport
        self._key_store = key_store
        self._patience_s = patience_s
        self._keeps = keeps
        self._unstored_bytes = unstored_bytes
        self._confirm_within_s = confirm_within_s
        self._folder = folder
        self._folder_retry_at: float | None = None  # None: it can be written
        self._all_stored: asyncio.Future[None] | None = None  # while we wait for it
        self.left_unstored: dict[StreamPart, Unstored] = {}  # when we left
        self._watchers: list[Callable[[Notice], None]] = []
        self._started = False
        self._closing = False  # nothing new may begin
        self._closed = False  # nothing may go on
        self._left = asyncio.Event()
        self.failed = asyncio.Event()  # by a mistake of ours
        self._reporting: asyncio.TimerHandle | None = None
        self._turns = Turns()
        self.publications = Publications(self._feed, observer.name_part, self._feed_at_once)
        self._subscriptions = Subscriptions(self._feed, observer.name_part, self._unread)
        observer.on_unreadable = self._subscriptions.unreadable
        self.driver = self._drive(handlers)
        self.driver.on_failure(self._failed)
        self.registry: RegistryReader
        self.peer: Peer
        self._questions: Questions

    def _drive(self, handlers: Handlers) -> Driver:
        """Make the driver, which hands each kind of effect to the part that acts on it."""
        return Driver(
            self._transport,
            {
                Missed: self._subscriptions.missed,
                PageEnded: self._subscriptions.page_ended,
                HistoryEnded: self._subscriptions.history_ended,
                Outcome: self.publications.outcome,
                Published: self.publications.published,
                Receipt: self.publications.receipt,
                Learned: self._learned,
                Answered: self._answered,
                KeepKey: self._keep_key,
                KeepFrame: self._keep_frame,
                ForgetFrames: self._forget_frames,
                Notice: self._notice,
                **handlers,
            },
            self.observer,
            deliver=self._subscriptions.deliver,
            at_rest=self._rest,
        )

    def _feed(self, event: Event) -> None:
        self.driver.feed(event)

    def _feed_at_once(self, event: Publish) -> None:
        self.driver.feed_at_once(event)

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
        try:
            if self._folder is not None:
                self._folder.open(self.network, self.identity.node)
            await self._transport.start(self.driver)
        except BaseException:
            self._closing = self._closed = True
            self._left.set()
            self._close_folder()
            raise
        try:
            found = await find_trackers(self._transport, urls)
            self.registry, self.peer = assemble(
                self.identity,
                self.node,
                self.network,
                found,
                self._transport.address,
                self._key_store.load(),
                self._patience_s,
                self._keeps,
                self._unstored_bytes,
                None if self._folder is None else self._folder.load(),
                self._transport.is_address_given,
                self._confirm_within_s,
            )
            self.observer.unstored = self.unstored
            self.observer.registry_age_s = self.registry_age_s
            self._count_damaged()
            self._questions = Questions(self.registry, self.driver.feed, self._streams)
            self.driver.attach(self.peer)
            await self.follow(NETWORK)
            for stream in self._unstored.streams():
                self.driver.feed(Follow(stream))
        except BaseException:
            self._closing = self._closed = True
            self._left.set()
            self.driver.detach()
            self._key_store.close()
            self._close_folder()
            await self._transport.stop()
            raise
        self._report()

    async def stop(self, drain_s: float, linger_s: float = 0.0, close_wait_s: float = 0.0) -> None:
        """Leave in good order: wait for outcomes that are due, say goodbye, send what is queued.

        What is published is waited for until it is stored, for at most `close_wait_s`.
        """
        await asyncio.sleep(0)  # tasks that were made just before, to publish, have their turn
        if not self._started:
            return
        if self._closing:
            await self._left.wait()
            return
        self._closing = True
        try:
            await self.publications.drain(self.driver.now() + drain_s, self.driver.now)
            await self._wait_stored(close_wait_s)
            await self.linger(self.driver.now() + linger_s)
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
        for part in list(self.publications.parts):
            self.driver.feed(Retire(part))
        self.left_unstored = self.unstored()
        self._subscriptions.close()
        self.driver.detach()
        self._key_store.close()
        self._close_folder()
        self.publications.make_room()

    def unstored(self) -> dict[StreamPart, Unstored]:
        """Return how many messages of each part are not stored, as far as is known."""
        return self._unstored.all_unstored()

    @property
    def _unstored(self) -> UnstoredFrames:
        assert self.peer.unstored is not None
        return self.peer.unstored

    async def _wait_stored(self, wait_s: float) -> None:
        """Wait until everything that was published is stored, or for long enough."""
        unstored = self._unstored
        if not unstored.messages and unstored.stored:
            note_wait(self.network, True, unstored.is_linked)
        if not unstored.messages or wait_s <= 0:
            return
        self._all_stored = stored = asyncio.get_running_loop().create_future()
        self.driver.feed(OfferUnstored())
        waited_s = 0.0
        while not stored.done():  # a short wait becomes a full one if storage nodes return
            left_s = close_wait_s(self.network, wait_s, unstored.is_linked) - waited_s
            if left_s <= 0:
                break
            await asyncio.wait([stored], timeout=left_s)
            waited_s += left_s
        if not unstored.messages or not stored.done():
            note_wait(self.network, not unstored.messages, unstored.is_linked)

    def wait_no_longer(self) -> None:
        """Leave although not everything is stored."""
        if self._all_stored is not None and not self._all_stored.done():
            self._all_stored.set_result(None)

    def _rest(self) -> None:
        """Do what is due when the machine has done everything."""
        self._subscriptions.wake()
        if self._folder is not None:
            self._folder.commit()
            if self._folder.problem:
                self._retry_folder(self._folder)
        if self._all_stored is not None and not self._unstored.messages:
            self.wait_no_longer()

    def _close_folder(self) -> None:
        if self._folder is not None:
            self._folder.close()

    def _keep_frame(self, effect: KeepFrame) -> None:
        if self._folder is not None:
            self._folder.keep(effect)

    def _forget_frames(self, effect: ForgetFrames) -> None:
        if self._folder is not None:
            self._folder.forget(effect)

    def _retry_folder(self, folder: DataFolder) -> None:
        """Say that the folder cannot be written, and try it again: memory holds the frames."""
        now = self.driver.now()
        if self._folder_retry_at is None:
            self._notice(Notice(None, DATA_FOLDER, folder.problem))
        elif now < self._folder_retry_at:
            return
        elif folder.write_anew(self._unstored.lasting()):
            self._folder_retry_at = None
            self._notice(Notice(None, DATA_FOLDER, f"{folder.path} is written again"))
            return
        self._folder_retry_at = now + FOLDER_RETRY_S

    def _count_damaged(self) -> None:
        """Count the messages that were damaged in the folder as given up."""
        for part, count in self._folder.damaged.items() if self._folder is not None else ():
            self._unstored.count_lost(part, count)

    async def linger(self, until: float) -> None:
        """Stay while others are likely to ask for the key of what we have just published."""
        while any(self.peer.neighbours(part) for part in self.publications.parts):
            left = min(until, self.peer.lingers_until) - self.driver.now()
            if left <= 0:
                return
            await asyncio.sleep(min(left, LOOK_EVERY_S))

    def _failed(self, error: BaseException) -> None:
        self._closed = True
        self.failed.set()
        self.wait_no_longer()
        failure = AnabranchError(f"this node failed by a mistake of its own: {error!r}; report it")
        self._give_up(failure)
        self.publications.make_room()
        self._subscriptions.fail(self._subscriptions, failure)

    def _give_up(self, error: AnabranchError) -> None:
        """Tell everybody who awaits something that it will not come."""
        self.publications.give_up(error)
        self._questions.give_up(error)

    def check_open(self) -> None:
        """Refuse what begins before we have come, or when we leave already."""
        if not self._started:
            raise LocalError("join the network first: async with connect(...) as network")
        if self._closing or self._closed:
            raise Closed("the connection to the network is closed: connect again")

    # --- Publishing -----------------------------------------------------------------------

    def publish(
        self,
        part: StreamPart,
        content: bytes,
        content_type: int,
        settled: Callable[[], None],
        copies: int = 0,
    ) -> Publication:
        """Hand over a message, and ask for the word of so many storage nodes that they hold it."""
        if self._closed:  # not sooner: it may have been begun, and waited for room, before
            self.check_open()
        return self.publications.publish(part, content, content_type, settled, copies)

    def publish_numbered(
        self,
        part: StreamPart,
        chain: int,
        previous: int,
        drafts: Sequence[tuple[int, Draft]],
        settled: Callable[[], None],
        copies: int,
    ) -> Publication:
        """Hand over messages that have their numbers, as one frame."""
        if self._closed:
            self.check_open()
        numbered = (chain, previous, drafts)
        return self.publications.publish_numbered(part, *numbered, settled, copies)

    # --- Subscribing ----------------------------------------------------------------------

    def enter(self, subscription: Subscription) -> None:
        """Begin to deliver to a subscription."""
        self.check_open()
        self._subscriptions.enter(subscription)

    def leave(self, subscription: Subscription) -> None:
        """Deliver to it no more."""
        self._subscriptions.leave(subscription)

    def _unread(self, part: StreamPart) -> None:
        if part not in self.publications.parts:
            self.observer.forget_part(part)

    def watch(self, call: Callable[[Notice], None]) -> None:
        """Call this with everything that the node has to say to its operator."""
        self._watchers.append(call)

    def _notice(self, effect: Notice) -> None:
        for watcher in self._watchers:
            watcher(effect)
        part, error = effect.part, AnabranchError(f"{effect.part}: {effect.detail}")
        if part is not None and effect.kind == "refused":  # perhaps since our right has expired
            self._check_rights(part.stream)
        if part is None or effect.kind not in ("deleted", "no-such-stream", "too-many-parts"):
            return
        if effect.kind != "too-many-parts":
            error = NoSuchStream(f"{part}: there is no such stream (any more)")
        self.publications.parts.pop(part, None)
        self._subscriptions.fail([part], error)
        self.observer.forget_part(part)

    # --- The registry ---------------------------------------------------------------------

    async def follow(self, chain: str) -> None:
        """Wait until the registry's word on a chain is known; it is kept up to date after that."""
        self.check_open()
        await self._questions.follow(chain)

    async def reach(self, chain: str, reached: Callable[[], bool], wait_s: float) -> bool:
        """Wait for news of a chain until something is so; tell whether it came about in time."""
        return await self._questions.reach(chain, reached, wait_s)

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
        self._check_rights(effect.chain)

    def _check_rights(self, stream: str) -> None:
        """End our subscriptions to a stream that we may not read, or carry, any more."""
        state = self.registry.stream(stream)
        if state is None or state.created is None:  # which has its own word
            return
        now, me = self.driver.now(), self.identity.node
        if state.may(me, Right.SUBSCRIBE, now):
            return
        error = NotPermitted(f"you may no longer subscribe to {stream}")
        for part in [part for part in self._subscriptions if part.stream == stream]:
            for subscription in self._subscriptions.of(part):
                has_place = state.may(me, Right.PUBLISH, now) or me in state.created.storage
                if subscription.reads or not has_place:
                    subscription.fail(error)

    def _answered(self, effect: Answered) -> None:
        self._questions.answered(effect)

    def _keep_key(self, effect: KeepKey) -> None:
        try:
            self._key_store.keep(effect)
        except LocalError as error:  # we have the key all the same, until this process ends
            self._notice(Notice(None, "key-store", str(error)))

    # --- What people look at --------------------------------------------------------------

    def members(self) -> list[StreamPart]:
        """Return the parts we are a member of, sorted."""
        return sorted({**self.publications.parts, **dict.fromkeys(self._subscriptions)})

    def _streams(self) -> set[str]:
        return {part.stream for part in self.members()} | set(self._unstored.streams())

    def settings(self, part: StreamPart) -> PartSettings | None:
        """Return what the registry says of a part."""
        return self.registry.directory(part)

    def registry_age_s(self) -> int:
        """Return for how long no tracker has confirmed a ledger that this node follows."""
        return int(self.registry.age_s(self.driver.now()))

    def _report(self) -> None:
        """Tell the trackers how it goes, for people to look at."""
        for part in self._turns.take(self.members()):
            settings = self.settings(part)
            report = self.observer.report(part, self.driver.now())
            for contact in settings.trackers if settings else ():
                if self.driver.say(contact.node, report):
                    break
        self._reporting = asyncio.get_running_loop().call_later(EVERY_S, self._report)
