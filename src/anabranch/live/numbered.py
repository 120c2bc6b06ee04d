"""Publishing under numbers of one's own choice: for those who must be able to say it again.

A job that fails and starts anew may not know what it had published. If it derives the numbers from
its input, it publishes again what it would have published, and who has that knows it for a copy.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import msgspec

from anabranch.core.ids import StreamPart, chain_key
from anabranch.core.machine import Draft, Outcome
from anabranch.core.message_key import join_key
from anabranch.core.messages.data import CONTENT_BYTES
from anabranch.core.messages.storage import Selection
from anabranch.core.publishing import SENT
from anabranch.core.waiting_drafts import BAD_NUMBERS
from anabranch.live.errors import AnabranchError, Closed, NotPublished, NotStored
from anabranch.live.message import Message, message_id
from anabranch.live.permissions import Permissions
from anabranch.live.receipt import Receipt, receipt_of
from anabranch.live.subscription import DEFAULT_BUFFER, Plan, Subscription
from anabranch.live.terms import require_part


class Numbered(msgspec.Struct, frozen=True, gc=False):
    """A message with the number it is to have: (timestamp in ms << 20) + sequence."""

    number: int
    content: bytes
    content_type: int = CONTENT_BYTES
    key: bytes | None = None


class NumberedPublishing(Permissions):
    """What a Stream offers to those who number their messages themselves."""

    async def publish_numbered(
        self,
        chain: int,
        previous: int,
        messages: Sequence[Numbered],
        copies: int = 1,
        *,
        partition: int = 0,
    ) -> Receipt:
        """Publish messages in one frame of a chain; return when storage nodes hold them.

        `chain` is any number of 64 bits that no two writers share, `previous` the number of the
        message before them in it, or 0. Numbers ascend, and their times lie within a few minutes
        of now. Once a frame has a place nothing else can have its numbers; the same frame again,
        of whichever process with the same key, is a copy and gets the same receipt: that of its
        first message. Raises NotPublished or NotStored as `publish_stored` does.
        """
        self._node.check_open()
        self._check_copies(copies)
        require_part(self.id, self.partitions, partition)
        part = StreamPart(self.id, partition)
        drafts = [(each.number, _draft(each)) for each in messages]
        size = sum(len(draft.content) for _, draft in drafts)
        room = self._node.publications.room(self.id)
        await room.enter(size)
        leave = partial(room.leave, size)
        try:
            publication = self._node.publish_numbered(part, chain, previous, drafts, leave, copies)
        except Closed:
            leave()
            raise
        outcome = await publication.outcome
        if outcome.result == BAD_NUMBERS:
            raise NotPublished(
                f"{len(messages)} messages with numbers from {drafts[0][0] if drafts else None} "
                "on, which do not ascend, or are minutes off our clock, or too many for a frame"
            )
        if outcome.result != SENT:
            raise self._unpublished(part, outcome)
        name = message_id(self.id, partition, self._network.me, f"{chain:016x}", drafts[0][0])
        assert publication.receipt is not None
        receipt = await publication.receipt
        if receipt.problem:
            raise NotStored(
                f"{name} was published, and is not known to be stored: {receipt.problem}"
            )
        return receipt_of(name, receipt)

    async def find_numbered(self, chain: int, first: int, *, partition: int = 0) -> list[Message]:
        """Return what storage nodes have of a chain of ours with numbers from `first` on."""
        whose = chain_key(self._node.identity.node, chain)
        wanted = Selection(after=first - 1, whose=whose, by_number=True)
        async with self._read(partition, Plan(False, wanted, live=False), DEFAULT_BUFFER) as found:
            return [message async for message in found]

    @abstractmethod
    def _read(
        self, partitions: int | Sequence[int] | None, plan: Plan, buffer: int
    ) -> Subscription:
        """Read some partitions."""

    @property
    @abstractmethod
    def partitions(self) -> int:
        """How many partitions it has."""

    @abstractmethod
    def _check_copies(self, copies: int) -> None:
        """Refuse to wait for more storage nodes than there are."""

    @abstractmethod
    def _unpublished(self, part: StreamPart, outcome: Outcome) -> AnabranchError:
        """Say why something was not published."""


def _draft(message: Numbered) -> Draft:
    return Draft(*join_key(message.content, message.content_type, message.key))
