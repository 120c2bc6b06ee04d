"""A reader of the registry with trackers that answer it: all alike, or each with its own story."""

import random
from typing import Any

from anabranch.core.changes import SetTrackers
from anabranch.core.machine import Effect, Follow, Hold, Release, Send
from anabranch.core.messages import Contact, ReadChain
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_reader import RegistryReader
from chains import FOUND, NET, Writer, page_of
from machines import KEYS, START

MAX_EFFECTS = 100_000


class Reading:
    """A reader, the trackers it may reach, what each of them has, and a clock."""

    def __init__(self, found: Contact = FOUND, seed: int = 1, **options: Any) -> None:
        self.reader: Any = RegistryReader(NET, KEYS.verify, found, random.Random(seed), **options)
        self.now = START
        self.writers = {NETWORK: Writer(NETWORK)}  # what all trackers have
        self.stories: dict[bytes, dict[str, Writer]] = {}  # what one has in its stead
        self.reachable: set[bytes] = {found.node}
        self.deaf: set[bytes] = set()  # trackers that do not answer
        self.held: dict[bytes, None] = {}
        self.links: set[bytes] = set()

    def start(self, *entries: Any, reach: bool = True) -> list[Effect]:
        """Begin, with a network of these trackers, and reach those who can be reached."""
        if entries:
            self.writers[NETWORK].add(SetTrackers(entries))
            if reach:
                self.reachable |= {entry.node for entry in entries}
        return self.run(self.reader.start(self.now))

    def follow(self, writer: Writer) -> list[Effect]:
        """Follow a chain that all trackers have."""
        self.writers[writer.chain] = writer
        return self.run(self.reader.tell(Follow(writer.chain), self.now))

    def tell(self, event: Any) -> list[Effect]:
        """Let the application say something, and nobody answer yet."""
        return self.reader.tell(event, self.now)

    def hear(self, sender: bytes, message: Any) -> list[Effect]:
        """Let a tracker say something, and nobody answer yet."""
        return self.reader.receive(sender, message, self.now)

    def up(self, tracker: bytes) -> list[Effect]:
        """Let a tracker be reachable from now on, and reach it if it is held."""
        self.reachable.add(tracker)
        return self.run(self._link(tracker, True)) if tracker in self.held else []

    def down(self, tracker: bytes) -> list[Effect]:
        """Let a tracker be gone."""
        self.reachable.discard(tracker)
        return self.run(self._link(tracker, False))

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, and everything be answered meanwhile; return what happened."""
        until, effects = self.now + seconds, list[Effect]()
        while (at := self.reader.wakeup_at) is not None and at <= until:
            self.now = max(self.now, at)
            effects += self.run(self.reader.wake(self.now))
            assert self.reader.wakeup_at is None or self.reader.wakeup_at > self.now
        self.now = until
        return effects

    def run(self, effects: list[Effect]) -> list[Effect]:
        """Do what the reader wants, and what it wants because of that; return everything."""
        done: list[Effect] = []
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            done.append(effect)
            assert len(done) < MAX_EFFECTS, "the reader never rests"
            waiting += self._perform(effect)
        return done

    def answers(self, tracker: bytes, chain: str) -> Writer:
        """Return what a tracker has of a chain."""
        own = self.stories.get(tracker, {})
        return own.get(chain) or self.writers.get(chain) or Writer(chain)

    def _perform(self, effect: Effect) -> list[Effect]:
        if type(effect) is Hold:
            assert effect.peer not in self.held
            self.held[effect.peer] = None
            return self._link(effect.peer, effect.peer in self.reachable)
        if type(effect) is Release:
            del self.held[effect.peer]
            return self._link(effect.peer, False)
        if type(effect) is Send and type(effect.message) is ReadChain:
            asked = effect.message
            if effect.to in self.links - self.deaf:
                return self.hear(effect.to, page_of(asked, self.answers(effect.to, asked.chain)))
        return []

    def _link(self, peer: bytes, up: bool) -> list[Effect]:
        was_up = peer in self.links
        (self.links.add if up else self.links.discard)(peer)
        if up is was_up and up:
            return []
        return self.reader.link(peer, up, "" if up else "reset", self.now)
