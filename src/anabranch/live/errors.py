"""What can go wrong for a user of the network: one type for each thing to do about it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType


class AnabranchError(Exception):
    """Base of all errors of the live network; the text says what to do."""


class NetworkUnreachable(AnabranchError):
    """No tracker of the network answered, or none answered in time."""


class NoSuchStream(AnabranchError):
    """The registry knows no stream of this name."""


class StreamExists(AnabranchError):
    """A stream of this name is there already."""


class NotPermitted(AnabranchError):
    """The registry does not permit this key to do that."""


class NotPublished(AnabranchError):
    """A message was given up: no neighbour has it."""


class NotStored(AnabranchError):
    """Too few storage nodes have signed that they hold messages, which were published all the same.

    `messages` says how many, and `streams` of which streams, where the connection was closed. Or
    a stream's past is asked for that no storage node keeps.
    """

    def __init__(
        self, text: str, messages: int = 0, streams: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        super().__init__(text)
        self.messages = messages
        self.streams = dict(streams)


class HistoryLost(AnabranchError):
    """Not all of the history that was asked for could be had.

    `partitions` has the offsets that are damaged at every storage node, as (first, end) without the
    end, by partition; `lost` has those of all partitions, one after another.
    """

    def __init__(
        self, text: str, lost: Mapping[int, Iterable[tuple[int, int]]] | None = None
    ) -> None:
        super().__init__(text)
        self.partitions = {partition: tuple(each) for partition, each in (lost or {}).items()}
        self.lost = tuple(span for spans in self.partitions.values() for span in spans)


class TooLarge(AnabranchError):
    """A message is larger than a frame may be."""


class Closed(AnabranchError):
    """The connection to the network was closed."""
