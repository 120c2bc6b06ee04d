"""Storage nodes have a place in the overlays of the streams that name them."""

from anabranch.core.messages import Meet
from core.test_company import A, known, learn, meets, neighbours, node
from machines import SIGNERS, sent


def test_a_storage_node_that_the_stream_names_is_welcome_without_a_right() -> None:
    rights = known()
    hand = node(rights, A)
    assert sent(Meet, meets(hand, A, SIGNERS[1])) == []
    rights.storage.append(SIGNERS[1].node)
    learn(hand)
    assert neighbours(hand) == [A]
