"""Packets that come together do what they would do one by one."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import codec
from anabranch.core.machine import (
    Copies,
    Deliver,
    Disconnect,
    Dropped,
    Effect,
    Forward,
    ReceivedBatch,
    Subscribe,
)
from anabranch.core.messages import Bye, Got
from anabranch.core.messages.links import MAX_GOT
from anabranch.core.packets import Packets
from anabranch.core.peer import Peer
from machines import (
    KEYS,
    NODES,
    OTHER,
    PART,
    SIGNERS,
    Chain,
    Hand,
    copies,
    data,
    forged,
    head,
    of,
    packet,
    peer,
    plain_settings,
    sent,
)

A, B, C, STRANGER = NODES[1:5]
ONE, TWO = (Chain(signer) for signer in SIGNERS[8:10])
FRAMES = [chain.frame(bytes([at])) for at in range(4) for chain in (ONE, TWO)]
FOREIGN = Chain(SIGNERS[8], OTHER).frame()
CONTRARY = Chain(SIGNERS[8])  # numbers its frames otherwise
CONTRARY.newest = 0
CONTRARY_FRAME = CONTRARY.frame(b"a", b"b", b"c")
SEND = st.sampled_from(
    [
        *(packet(frame) for frame in FRAMES),
        *(packet(frame, route=b"\1") for frame in FRAMES[:3]),
        packet(forged(FRAMES[5])),
        packet(FOREIGN),
        packet(FRAMES[5], overlay=99),
        packet(FRAMES[6])[:-1],
        codec.encode(Bye(PART)),
        codec.encode(Bye(OTHER)),
        b"garbage",
        b"",
    ]
)


def subscriber() -> Hand:
    hand = peer({PART: plain_settings(A, B, C)})
    hand(Subscribe(PART))
    hand.link(A, B, C, STRANGER)
    return hand


def one_by_one(hand: Hand, sender: bytes, packets: list[bytes]) -> list[Effect]:
    """Hand packets over as a driver does: none after the link has been ended."""
    effects: list[Effect] = []
    for each in packets:
        effects += hand(ReceivedBatch(sender, Packets.of([each])))
        if any(effect.peer == sender for effect in of(Disconnect, effects)):
            break
    return effects


def summary(effects: list[Effect]) -> tuple[object, ...]:
    """Tell what was done, whatever was put together."""
    copied: Counter[tuple[bytes, bytes]] = Counter()
    for each in of(Copies, effects):
        copied[each.part, each.peer] += len(each.names)
    got = {(to, m.chain, number) for to, m in sent(Got, effects) for number in m.numbers}
    rest = [e for e in effects if not isinstance(e, Copies) and e not in of(Deliver, effects)]
    others = sorted(repr(e) for e in rest if "Got(" not in repr(e))
    if of(Disconnect, effects):  # what ends after a forgery may be seen before it is
        copied.clear()
        got.clear()
        others = [each for each in others if not each.startswith("Dropped")]
    return copied, got, [each.frame for each in of(Deliver, effects)], others


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from([A, B, STRANGER]), st.lists(SEND, max_size=12))))
def test_together_they_do_what_they_do_one_by_one(came: list[tuple[bytes, list[bytes]]]) -> None:
    together, apart = subscriber(), subscriber()
    gone: set[bytes] = set()
    for sender, packets in came:
        if sender in gone or not packets:
            continue
        effects = together(ReceivedBatch(sender, Packets.of(packets)))
        assert summary(effects) == summary(one_by_one(apart, sender, packets))
        gone |= {each.peer for each in of(Disconnect, effects)}
        assert together.machine.wakeup_at == apart.machine.wakeup_at
    sizes = (together.machine.sizes(), apart.machine.sizes())
    assert sizes[0] == sizes[1]


def test_a_frame_that_comes_twice_at_once_is_verified_once() -> None:
    checked = []

    def verify(publisher: bytes, digest: bytes, signature: bytes) -> bool:
        checked.append(digest)
        return KEYS.verify(publisher, digest, signature)

    hand = subscriber()
    machine = hand.machine
    assert isinstance(machine, Peer)
    machine._incoming._verify = verify
    twice = Packets.of([packet(FRAMES[0])] * 5)
    effects = hand(ReceivedBatch(A, twice))
    assert len(checked) == 1
    assert [each.frame for each in of(Deliver, effects)] == [FRAMES[0]]
    assert of(Copies, effects) == [copies(A, *[FRAMES[0]] * 4)]


def test_what_came_before_a_forgery_counts_and_nothing_after_it() -> None:
    hand = subscriber()
    effects = hand(
        ReceivedBatch(A, Packets.of(list(map(packet, (FRAMES[0], forged(FRAMES[1]), FRAMES[2])))))
    )
    assert [each.frame for each in of(Deliver, effects)] == [FRAMES[0]]
    assert of(Disconnect, effects) == [Disconnect(A, "forged")]
    assert [each.frame for each in of(Deliver, hand(data(B, FRAMES[1])))] == [FRAMES[1]]


def test_frames_that_contradict_each_other_are_not_both_taken() -> None:
    effects = subscriber()(
        ReceivedBatch(A, Packets.of([packet(FRAMES[0]), packet(CONTRARY_FRAME)]))
    )
    assert len(of(Deliver, effects)) == 1
    assert of(Dropped, effects) == [Dropped(head(CONTRARY_FRAME), "contradiction", A)]


@pytest.mark.parametrize("count", [1, MAX_GOT, MAX_GOT + 1])
def test_who_made_them_hears_of_all_in_few_words(count: int) -> None:
    chain = Chain(SIGNERS[9])
    made = [chain.frame() for _ in range(count)]
    packets = Packets.of([packet(frame, route=b"\1") for frame in made])
    effects = subscriber()(ReceivedBatch(A, packets))
    words = sent(Got, effects)
    assert [to for to, _ in words] == [A] * -(-count // MAX_GOT)
    assert [n for _, word in words for n in word.numbers] == [head(frame).last for frame in made]
    assert len(of(Forward, effects)) == count
