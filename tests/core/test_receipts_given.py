"""Receipts of frames whose numbers were given, which may have been published before."""

from anabranch.core.receipts import OTHERWISE
from machines import PART, head
from receipt_desk import KEEPERS, Desk, said


def given(desk: Desk, frame: bytes, *wanted: tuple[int, int]) -> None:
    desk.done(desk.receipts.published(PART, head(frame), frame, wanted, desk.now, True))


def test_a_frame_that_is_published_again_has_a_receipt_for_everybody_who_wants_one() -> None:
    desk = Desk()
    frame = desk.chain.frame(b"same")
    given(desk, frame, (1, 1))
    given(desk, frame, (2, 2))
    desk.link(*KEEPERS)
    desk.say(1, frame)
    assert (said(desk.receipt(1)), desk.receipt(2)) == ([1], None)
    desk.say(2, frame)
    assert said(desk.receipt(2)) == [1, 2]
    assert leftovers_of(desk) == {}
    given(desk, frame, (3, 1))  # it is stored already
    desk.wait(1)
    desk.say(3, frame)
    assert said(desk.receipt(3)) == [3]


def test_if_something_else_is_stored_under_these_numbers_that_is_said_and_costs_no_link() -> None:
    desk = Desk()
    frame = desk.chain.frame(b"mine")
    given(desk, frame, (1, 1), (2, 2))
    desk.link(*KEEPERS)
    desk.say(1, frame, digest=bytes(32))
    desk.say(1, frame, digest=bytes(32))
    assert (desk.receipt(1), desk.receipt(2)) == (None, None), "one of them could sign falsely"
    assert desk.receipts.unstored.messages == 1
    desk.say(3, frame, digest=bytes(32))
    assert desk.receipts.unstored.messages == 0
    receipts = [desk.receipt(1), desk.receipt(2)]
    assert [receipt and receipt.problem for receipt in receipts] == [OTHERWISE, OTHERWISE]
    assert leftovers_of(desk) == {}
    desk.say(2, frame)  # nobody waits for this word any more


def test_a_given_frame_that_one_storage_node_denies_is_stored_when_a_majority_signs() -> None:
    desk = Desk()
    frame = desk.chain.frame(b"mine")
    given(desk, frame, (1, 2))
    desk.link(*KEEPERS)
    desk.say(1, frame, digest=bytes(32))
    desk.say(2, frame)
    assert desk.receipts.unstored.messages == 1
    desk.say(3, frame)
    assert said(desk.receipt(1)) == [2, 3]
    assert (desk.receipts.unstored.messages, desk.receipts.unstored.stored) == (0, 1)


def leftovers_of(desk: Desk) -> dict[str, int]:
    sizes = desk.receipts.sizes().items()
    return {name: size for name, (size, _) in sizes if size and name.endswith("without receipts")}
