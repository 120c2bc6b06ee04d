"""What can go wrong for a user of the network: one type for each thing to do about it."""


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


class TooLarge(AnabranchError):
    """A message is larger than a frame may be."""


class Closed(AnabranchError):
    """The connection to the network was closed."""
