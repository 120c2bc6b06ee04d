"""The two kinds of failure: ours, which the caller can mend, and a peer's, which costs its link."""


class LocalError(ValueError):
    """The caller of this library asked for something that cannot be; the text says what to do."""


class RemoteError(Exception):
    """A peer broke the protocol; `reason` is a short stable word that traces count by."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
