"""Changes of streams that neighbours show: a revocation counts even if no tracker can be reached.

Every change is signed, and every node checks it, so it does not matter which node shows it. A node
that learns of a change announces it to its neighbours in the stream (`ChainChanged`); a neighbour
that lacks it reads the chain from that node (`ReadChain`). The changes so found are kept apart from
those of the trackers: a tracker is not at fault if it lacks them, and they confirm nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from anabranch.core.changes import pack_page
from anabranch.core.followed_chain import MORE, FollowedChain
from anabranch.core.history import History
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Learned, Send, Sizes
from anabranch.core.messages import ChainChanged, ChainPage, ReadChain

WINDOW_S = 5.0  # in which the following are counted, per chain and neighbour:
MAX_READS = 8  # times that it is read from there
ANSWER_S = 10.0  # how long a page may take
MAX_PAGES = 64  # pages that are sent there
TOLD_FOR_S = 25.0  # until the same is announced again in return
MAX_EXCHANGES = 1_024  # pairs of a neighbour and a chain
MAX_SHOWN = 2_000  # chains of which neighbours showed more; as many as a node follows
MAX_ANNOUNCED = 64  # neighbours that are told of one change

Neighbours = Callable[[str], Sequence[NodeId]]  # in any part of a stream


class _Exchange(msgspec.Struct):
    """Reads and announcements of one chain with one neighbour."""

    since: float = 0.0  # when the window began
    reads: int = 0
    pages: int = 0
    ticket: int = 0  # of the question under way; 0: there is none
    asked_at: float = 0.0
    told: bytes = b""  # head that was announced last
    told_at: float = 0.0

    def advance(self, now: float) -> None:
        """Begin a new window if it is time."""
        if now >= self.since + WINDOW_S:
            self.since, self.reads, self.pages = now, 0, 0


class NeighbourLedgers:
    """Reads chains from neighbours, and lets neighbours read them."""

    def __init__(self, verify: Verify) -> None:
        self.neighbours: Neighbours = lambda stream: ()
        self._verify = verify
        self._shown: OrderedDict[str, FollowedChain] = OrderedDict()
        self._exchanges: OrderedDict[tuple[NodeId, str], _Exchange] = OrderedDict()
        self._ticket = 0

    def history(self, chain: str) -> History | None:
        """Return all changes of a chain if neighbours showed more than the trackers."""
        shown = self._shown.get(chain)
        return shown.history if shown is not None else None

    def update(self, history: History) -> None:
        """Add what the trackers show; forget a chain of which they now show everything."""
        shown = self._shown.get(history.chain)
        if shown is None:
            return
        for encoded in history.changes:
            if not shown.history.has(encoded):
                shown.history.add(encoded, self._verify)
        if shown.history.height == history.height:
            del self._shown[history.chain]

    def forget(self, chain: str) -> None:
        """Forget a chain that is not followed any more."""
        self._shown.pop(chain, None)
        for key in [key for key in self._exchanges if key[1] == chain]:
            del self._exchanges[key]

    def gone(self, peer: NodeId) -> None:
        """Forget a neighbour whose link has ended."""
        for key in [key for key in self._exchanges if key[0] == peer]:
            del self._exchanges[key]
        for shown in self._shown.values():
            shown.forget(peer)

    # --- Announcements --------------------------------------------------------------------

    def announce(self, history: History, but: Iterable[NodeId] = ()) -> list[Effect]:
        """Tell the neighbours in a stream which changes there are."""
        known = self.history(history.chain) or history
        word = ChainChanged(history.chain, known.height, known.head)
        others = [peer for peer in self.neighbours(history.chain) if peer not in but]
        return [Send(peer, word) for peer in others[:MAX_ANNOUNCED]]

    def announced(
        self, sender: NodeId, word: ChainChanged, history: History, now: float
    ) -> list[Effect]:
        """Read a chain from a neighbour that has other changes, and announce ours in return."""
        chain = history.chain
        known = self.history(chain) or history
        if word.head == known.head or sender not in self.neighbours(chain):
            return []
        exchange, effects = self._exchange(sender, chain), list[Effect]()
        exchange.advance(now)
        if exchange.told != known.head or now >= exchange.told_at + TOLD_FOR_S:
            exchange.told, exchange.told_at = known.head, now
            effects.append(Send(sender, ChainChanged(chain, known.height, known.head)))
        if exchange.reads < MAX_READS:
            exchange.reads += 1
            effects += self._ask(sender, chain, history, now)
        return effects

    def _exchange(self, peer: NodeId, chain: str) -> _Exchange:
        key = (peer, chain)
        exchange = self._exchanges.setdefault(key, _Exchange())
        self._exchanges.move_to_end(key)
        if len(self._exchanges) > MAX_EXCHANGES:
            self._exchanges.popitem(last=False)
        return exchange

    # --- Reading --------------------------------------------------------------------------

    def _ask(self, peer: NodeId, chain: str, history: History, now: float) -> list[Effect]:
        shown = self._shown.get(chain)
        if shown is None:
            shown = self._shown[chain] = FollowedChain(chain, history.network, now)
            shown.history = history.copy()
            if len(self._shown) > MAX_SHOWN:
                self._shown.popitem(last=False)
        self._ticket += 1
        exchange, view = self._exchange(peer, chain), shown.view(peer)
        exchange.ticket, exchange.asked_at = self._ticket, now
        return [Send(peer, ReadChain(self._ticket, chain, view.after, view.head))]

    def page(
        self, sender: NodeId, page: ChainPage, history: History | None, now: float
    ) -> list[Effect]:
        """Take a page from a neighbour; RemoteError if it does not hold."""
        exchange = self._exchanges.get((sender, page.chain))
        shown = self._shown.get(page.chain)
        if exchange is None or shown is None or history is None:
            return []
        if not exchange.ticket or page.ticket != exchange.ticket:
            return []
        exchange.ticket = 0
        if now > exchange.asked_at + ANSWER_S:
            return []
        before = shown.history.height
        result = shown.take(sender, page, exchange.asked_at, self._verify, now)
        after = shown.history.height
        effects: list[Effect] = []
        if after > before:
            effects.append(Learned(page.chain, after))
        if result == MORE:
            return effects + self._ask(sender, page.chain, history, now)
        if after > history.height:
            effects += self.announce(history, but=(sender,)) if after > before else []
        else:
            del self._shown[page.chain]
        return effects

    # --- Answering ------------------------------------------------------------------------

    def asked(
        self, sender: NodeId, question: ReadChain, history: History, now: float
    ) -> list[Effect]:
        """Send a neighbour a page of what there is."""
        chain, after = question.chain, question.after
        if sender not in self.neighbours(chain):
            return []
        exchange = self._exchange(sender, chain)
        exchange.advance(now)
        exchange.pages += 1
        if exchange.pages > MAX_PAGES:
            return []
        known = self.history(chain) or history
        if after and known.head_at(after) != question.head:
            after = 0  # it has other changes, or in another order
        packed = pack_page(known.changes, after)
        page = ChainPage(question.ticket, chain, after, known.height, known.head, packed)
        return [Send(sender, page)]

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "chains that neighbours showed": (len(self._shown), MAX_SHOWN),
            "exchanges with neighbours": (len(self._exchanges), MAX_EXCHANGES),
        }
