"""A node decides from its trackers' answers and its neighbours' dials what it advertises."""

from anabranch.core.ids import NodeId
from anabranch.core.machine import Advertise, Effect, Notice, Send
from anabranch.core.messages import Listening, Seen
from anabranch.core.reachability import Reachability, at_host
from machines import NODES, of

FIRST, SECOND, THIRD, NEIGHBOUR, LIAR = NODES[1:6]
HOME, OUTSIDE, ELSEWHERE = "ws://192.168.1.5:7700", "198.51.100.7", "203.0.113.66"
OUTER = "ws://198.51.100.7:7700"
NOW = 1_000.0


class Node:
    """A node's reachability, and the trackers of its network."""

    def __init__(self, *trackers: NodeId, is_given: bool = False, address: str = HOME) -> None:
        self.trackers = list(trackers)
        self.service = Reachability(address, is_given, lambda: self.trackers)

    def up(self, peer: NodeId) -> list[Effect]:
        return self.service.link(peer, True, "", NOW)

    def down(self, peer: NodeId) -> list[Effect]:
        return self.service.link(peer, False, "reset", NOW)

    def hear(
        self, tracker: NodeId, dialable: bool, host: str = "", address: str = HOME
    ) -> list[Effect]:
        return self.service.receive(tracker, Seen(host, address, dialable), NOW)


def advertised(effects: list[Effect]) -> list[Advertise]:
    return of(Advertise, effects)


def test_address_is_named_to_every_tracker_and_to_nobody_else() -> None:
    node = Node(FIRST, SECOND)
    assert node.up(FIRST) == [Send(FIRST, Listening(HOME))]
    assert node.up(SECOND) == [Send(SECOND, Listening(HOME))]
    assert node.up(NEIGHBOUR) == []


def test_node_that_its_tracker_cannot_dial_advertises_no_address_and_says_so_once() -> None:
    node = Node(FIRST)
    node.up(FIRST)
    effects = node.hear(FIRST, False)
    assert advertised(effects) == [Advertise("", False)]
    (notice,) = of(Notice, effects)
    assert notice.kind == "undialable"
    assert "--advertise" in notice.detail
    assert node.hear(FIRST, False) == []
    effects = node.hear(FIRST, True)
    assert advertised(effects) == [Advertise(HOME, True)]
    assert [each.kind for each in of(Notice, effects)] == ["dialable"]


def test_one_tracker_that_succeeds_outweighs_others_that_fail() -> None:
    node = Node(FIRST, SECOND, THIRD)
    assert advertised(node.hear(FIRST, False)) == [Advertise("", False)]
    assert advertised(node.hear(SECOND, True)) == [Advertise(HOME, True)]
    assert node.hear(THIRD, False) == []
    assert node.hear(FIRST, False) == []


def test_neighbour_that_has_dialled_outweighs_trackers_as_long_as_it_stays() -> None:
    node = Node(FIRST)
    assert advertised(node.hear(FIRST, False)) == [Advertise("", False)]
    assert advertised(node.service.accepted(NEIGHBOUR, NOW)) == [Advertise(HOME, True)]
    assert node.hear(FIRST, False) == []
    node.down(NEIGHBOUR)
    assert advertised(node.hear(FIRST, False)) == [Advertise("", False)]


def test_link_that_a_tracker_dialled_is_no_sign_of_a_neighbour() -> None:
    node = Node(FIRST, SECOND)
    node.hear(FIRST, False)
    assert node.service.accepted(SECOND, NOW) == []


def test_answers_of_others_than_trackers_count_for_nothing() -> None:
    node = Node(FIRST)
    assert node.hear(LIAR, False, ELSEWHERE) == []
    node.trackers = [SECOND]
    assert node.hear(FIRST, False) == []


def test_host_that_two_trackers_see_is_tried_and_advertised_once_it_was_dialled() -> None:
    node = Node(FIRST, SECOND)
    node.up(FIRST)
    node.up(SECOND)
    assert advertised(node.hear(FIRST, False, OUTSIDE)) == [Advertise("", False)]
    tried = node.hear(SECOND, False, OUTSIDE)
    assert tried == [Send(FIRST, Listening(OUTER)), Send(SECOND, Listening(OUTER))]
    assert advertised(node.hear(FIRST, True, OUTSIDE, OUTER)) == [Advertise(OUTER, True)]


def test_host_that_a_single_tracker_of_two_names_is_never_adopted() -> None:
    node = Node(FIRST, SECOND)
    node.up(FIRST)
    for _ in range(3):
        effects = node.hear(FIRST, False, ELSEWHERE)
        assert of(Send, effects) == []
    effects = node.hear(SECOND, False, OUTSIDE)
    assert of(Send, effects) == []
    assert node.service.address == HOME


def test_host_that_the_only_tracker_sees_is_tried() -> None:
    node = Node(FIRST)
    node.up(FIRST)
    assert Send(FIRST, Listening(OUTER)) in node.hear(FIRST, False, OUTSIDE)
    assert node.hear(FIRST, False, OUTSIDE, OUTER) == []


def test_address_that_the_operator_named_is_kept_as_given() -> None:
    node = Node(FIRST, is_given=True)
    node.up(FIRST)
    effects = node.hear(FIRST, False, OUTSIDE)
    assert advertised(effects) == [Advertise("", False)]
    assert of(Send, effects) == []


def test_node_that_does_not_listen_cannot_be_dialled_and_asks_nobody() -> None:
    node = Node(FIRST, address="")
    assert not node.service.dialable
    assert node.up(FIRST) == []


def test_answer_for_another_address_decides_nothing() -> None:
    node = Node(FIRST)
    assert node.hear(FIRST, False, "", "ws://192.168.1.5:1") == []


def test_tables_are_bounded() -> None:
    node = Node(*(NodeId(number.to_bytes(20)) for number in range(100)))
    for tracker in node.trackers:
        node.hear(tracker, True)
    for number in range(2_000):
        node.service.accepted(NodeId((1_000 + number).to_bytes(20)), NOW)
    assert all(size <= bound for size, bound in node.service.sizes().values())


def test_address_at_another_host() -> None:
    assert at_host(HOME, OUTSIDE) == OUTER
    assert at_host("wss://[::1]:7/path", "2001:db8::7") == "wss://[2001:db8::7]:7/path"
    assert at_host("ws://example.org", OUTSIDE) is None
    assert at_host("memory:aa", OUTSIDE) is None
