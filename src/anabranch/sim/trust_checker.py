"""Watches a run with a registry: who reads, who publishes, and what everybody believes.

Safety, held against each node's own view of the registry at that moment: nobody delivers private
content whose user may not subscribe; nobody delivers what one published who may not; what is
private is never sent in the clear; and no user holds a key that opens what an honest publisher
made after it knew that this user may not read, unless he may by what somebody else knows who had
heard of as many removals: whoever has a key may give it away for its publisher. Liveness: once the
faults stop, all honest nodes and trackers have the same heads, neighbours are who may be, and every
permitted subscriber gets and opens every message of every permitted publisher.
"""

from collections import Counter

import msgspec

from anabranch.core import frames
from anabranch.core.changes import Right
from anabranch.core.encryption import GroupKey, unwrap
from anabranch.core.errors import RemoteError
from anabranch.core.ids import FrameHead, NodeId, PartKey, StreamPart, part_key, show
from anabranch.core.key_exchange import READABLE_FOR_S
from anabranch.core.machine import Answered, Deliver, Learned, Notice
from anabranch.core.messages.registry import NETWORK
from anabranch.core.permission import TRUST_FOR_S
from anabranch.sim.checkers import Checker
from anabranch.sim.network import SimNode
from anabranch.sim.trusted_cluster import BOTH, TrustedCluster

TELLING_BYTES = 12  # content of this length does not appear in a frame by chance


class _Sealed(msgspec.Struct, gc=False):
    """An encrypted frame of an honest publisher, and who may not open it."""

    head: FrameHead
    frame: bytes
    lock: frames.Lock
    barred: dict[NodeId, None]
    removals: int  # of readers, that its publisher knew of


class TrustChecker(Checker):
    """Keeps the books of a run with a registry."""

    def __init__(self, cluster: TrustedCluster, overlay: str) -> None:
        super().__init__(cluster, overlay)
        self._trusted = cluster
        self._part = {part_key(part): part for part in cluster.parts}
        self._users = list(dict.fromkeys(map(cluster.user, cluster.peers)))
        self._sealed: dict[NodeId, list[_Sealed]] = {}  # by the node that made them
        # Whom any node ever knew to be a reader of a stream, and the most removals it then knew of;
        # and whom each node ever did.
        self._let: dict[tuple[str, NodeId], int] = {}
        self._heard: dict[tuple[NodeId, str, NodeId], None] = {}
        self.accused: Counter[str] = Counter()  # by honest nodes, of hiding changes
        self._key = b""  # that opens the frame which is just being delivered

    @property
    def sealed(self) -> int:
        """How many encrypted frames honest nodes made."""
        return sum(map(len, self._sealed.values()))

    def figures(self) -> dict[str, int]:
        """Return what is counted beside what every run counts."""
        return {
            "frames_encrypted": self.sealed,
            "lying_trackers_accused": self.accused["lying"],
            "honest_trackers_accused": self.accused["honest"],
        }

    # --- What the simulator shows ---------------------------------------------------------

    def published(self, node: SimNode, head: FrameHead, frame: bytes, now: float) -> None:
        """Enter a frame into the books; what is private must be encrypted."""
        super().published(node, head, frame, now)
        if node.id in self._cluster.disguised:
            return
        state = self._trusted.view(node, self._part[head.part].stream)
        public = state is not None and state.is_public(Right.SUBSCRIBE, now)
        lock = frames.lock_of(frame)
        if not lock.encryption:
            if not public:
                self.complain(f"{show(node.id)} publishes private content in the clear")
            return
        others = [user for user in self._users if user != head.publisher]
        barred = [user for user in others if not self._may_open(node, head, user, now)]
        removals = state.removals if state is not None else 0
        made = self._sealed.setdefault(node.id, [])
        made.append(_Sealed(head, frame, lock, dict.fromkeys(barred), removals))

    def _may_open(self, node: SimNode, head: FrameHead, user: NodeId, now: float) -> bool:
        """Tell whether a user may have the key of a frame that a node makes now."""
        stream = self._part[head.part].stream
        mine = self._trusted.view(node, stream)
        removals = mine.removals if mine is not None else 0
        views = (self._trusted.view(each, stream) for each in self._cluster.peers)
        knowing = [view for view in views if view is not None and view.removals >= removals]
        if any(view.may(user, Right.SUBSCRIBE, now) for view in knowing):
            return True
        # Somebody may have given him the key of whom the publisher never heard that he could read.
        unheard_of = (node.id, stream, user) not in self._heard
        return unheard_of and self._let.get((stream, user), -1) >= removals

    def handed(self, node: SimNode, deliver: Deliver, now: float) -> None:
        """Hold a delivery against what the node itself knows of the registry."""
        self._key = deliver.key
        publisher, user = deliver.head.publisher, self._trusted.user(node)
        if node.id in self._cluster.disguised or publisher == user:
            return
        state = self._trusted.view(node, deliver.part.stream)
        may = state.may if state is not None else _nobody_may
        # A permission that has run out is noticed within a second.
        if not any(may(publisher, Right.PUBLISH, at) for at in (now, now - TRUST_FOR_S)):
            self.complain(f"{show(node.id)} delivered what {show(publisher)} may not publish")
        if not frames.lock_of(deliver.frame).encryption:
            return
        if not any(may(user, Right.SUBSCRIBE, at) for at in (now, now - READABLE_FOR_S)):
            self.complain(f"{show(node.id)} delivered private content that it may not read")

    def told(self, node: SimNode, word: Learned | Answered, now: float) -> None:
        """Whoever may read is given the keys, also to what was made before, by whoever has them."""
        if type(word) is not Learned:
            return
        state = self._trusted.view(node, word.chain) if word.chain != NETWORK else None
        if state is None:
            return
        for user in self._users:
            if state.may(user, Right.SUBSCRIBE, now):
                self._heard[node.id, word.chain, user] = None
                name = (word.chain, user)
                self._let[name] = max(self._let.get(name, 0), state.removals)
                self._pardon(user, word.chain, state.removals)

    def _pardon(self, user: NodeId, stream: str, removals: int) -> None:
        for made in self._sealed.values():
            for sealed in made:
                of_it = self._part[sealed.head.part].stream == stream
                if of_it and sealed.removals <= removals:
                    sealed.barred.pop(user, None)

    def noticed(self, node: SimNode, notice: Notice, now: float) -> None:
        """Count who is accused: one that is honest may be behind for long, through no fault."""
        if notice.kind == "stale-tracker" and node.id not in self._cluster.disguised:
            liars = [show(liar) for liar in self._trusted.liars]
            lying = any(liar in notice.detail for liar in liars)
            self.accused["lying" if lying else "honest"] += 1

    def _publishes(self, node: SimNode, part: StreamPart) -> bool:
        return self._trusted.may(node, part, Right.PUBLISH)

    def _expects(self, node: NodeId, part: PartKey) -> bool:
        may = self._trusted.may(self._trusted.sim.nodes[node], self._part[part], Right.SUBSCRIBE)
        return may and super()._expects(node, part)

    def _open(self, frame: bytes) -> list[frames.Message]:
        opened = frames.messages(frame, self._key)
        if frames.lock_of(frame).encryption:
            for message in opened:
                if len(message.content) >= TELLING_BYTES and message.content in frame:
                    self.complain("private content can be read in its frame")
        return opened

    # --- What is asked at every step, and at the end --------------------------------------

    def bounds(self) -> None:
        """Hold tables against their bounds, and keys against those who may not have them."""
        super().bounds()
        for user in self._users:
            held = self._keys_of(user)
            for made in self._sealed.values():
                for sealed in made:
                    if user in sealed.barred and sealed.lock.key_id in held:
                        self.complain(f"{show(user)} has a key to what it may not read")
                        return

    def ended(self) -> None:
        """Let every user try all keys that it ever had on all frames that there ever were."""
        for user in self._users:
            keys = self._keys_of(user)
            for made in self._sealed.values():
                _unwrap_all(keys, made)
            for made in self._sealed.values():
                for sealed in made:
                    if user in sealed.barred and _opens(keys, sealed.frame):
                        self.complain(f"{show(user)} opens what it may not read")

    def settled(self) -> None:
        """All honest nodes and trackers believe the same, and act upon it."""
        self._heads()
        for part in self._cluster.parts:
            self._company(part, self._cluster.members(part))

    def _heads(self) -> None:
        cluster = self._trusted
        for chain in [NETWORK, *cluster.streams]:
            first, *others = cluster.honest_trackers
            head = cluster.history(first, chain).head
            for node in [*others, *cluster.honest]:
                history = cluster.history(node, chain)
                if history.head != head:
                    height = cluster.history(first, chain).height
                    self.complain(
                        f"{show(node.id)} has {history.height} changes of {chain} and another "
                        f"head than {show(first.id)}, who has {height}"
                    )

    def _company(self, part: StreamPart, members: list[SimNode]) -> None:
        """No neighbour of an honest member is one who may neither publish nor subscribe."""
        cluster = self._trusted
        for node in members:
            state = cluster.view(node, part.stream)
            for peer in cluster.neighbours(node, part):
                user = cluster.users[peer].node
                if state is None or not state.held(user, int(cluster.sim.now * 1000)) & BOTH:
                    self.complain(f"{show(node.id)} has a neighbour without rights")

    def _keys_of(self, user: NodeId) -> dict[bytes, bytes]:
        """Return all keys that nodes which act for a user have ever kept."""
        keys: dict[bytes, bytes] = {}
        for node in self._cluster.peers:
            if self._trusted.user(node) == user:
                keys |= {key.key_id: key.secret for key in node.disk.keys.values()}
        return keys


def _nobody_may(user: NodeId, right: Right, now: float) -> bool:
    return False


def _unwrap_all(keys: dict[bytes, bytes], made: list[_Sealed]) -> None:
    """Take out of frames, in their order, the keys that are given with keys one has."""
    for sealed in made:
        secret = keys.get(sealed.lock.key_id)
        if secret is not None and sealed.lock.next_key:
            key = unwrap(GroupKey(sealed.lock.key_id, secret), sealed.lock.next_key, sealed.head)
            keys[key.id] = key.secret


def _opens(keys: dict[bytes, bytes], frame: bytes) -> bool:
    for secret in keys.values():
        try:
            frames.messages(frame, secret)
        except RemoteError:
            continue
        return True
    return False
