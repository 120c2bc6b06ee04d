"""Frames are verified once while they are remembered, and never taken for others."""

from anabranch.core.ids import NodeId
from anabranch.core.verified_frames import MAX_BYTES, VerifiedFrames
from machines import KEYS, SIGNERS, Chain, forged, head


class Counting:
    """Verifies, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def verify(self, publisher: NodeId, digest: bytes, signature: bytes) -> bool:
        self.count += 1
        return KEYS.verify(publisher, digest, signature)


def test_a_frame_is_verified_once_and_a_forgery_each_time() -> None:
    counting = Counting()
    verified, frame = VerifiedFrames(counting.verify), Chain(SIGNERS[1]).frame()
    bad = forged(frame)
    assert verified.check(head(frame), frame)
    assert verified.check(head(frame), frame)
    assert counting.count == 1
    assert not verified.check(head(bad), bad)
    assert not verified.check(head(bad), bad)
    assert counting.count == 3, "a forgery is not remembered"


def test_what_was_verified_elsewhere_is_believed() -> None:
    counting = Counting()
    verified, frame = VerifiedFrames(counting.verify), Chain(SIGNERS[1]).frame()
    assert frame not in verified
    verified.add(frame)
    assert frame in verified
    assert verified.check(head(frame), bytes(bytearray(frame)))
    assert counting.count == 0


def test_the_oldest_are_forgotten_within_the_bound_and_the_newest_are_not() -> None:
    counting, chain = Counting(), Chain(SIGNERS[1])
    verified = VerifiedFrames(counting.verify)
    made = [chain.frame(bytes(500_000)) for _ in range(3 * MAX_BYTES // 500_000)]
    for frame in made:
        verified.add(frame)
        size, bound = verified.sizes()["verified bytes"]
        assert size <= bound
    recent = made[-(MAX_BYTES // 2 // 510_000) :]
    assert all(verified.check(head(frame), frame) for frame in recent)
    assert counting.count == 0
    assert verified.check(head(made[0]), made[0])
    assert counting.count == 1
