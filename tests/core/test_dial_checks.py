"""A tracker's checks: when it dials, what it never dials, and what it tells."""

import pytest

from anabranch.core import dial_checks as module
from anabranch.core.dial_checks import (
    CHECK_AGAIN_S,
    EVERY_S,
    FAILED_AFTER_S,
    FORGET_AFTER_S,
    HOST_BURST,
    MAX_UNDER_WAY,
    DialChecks,
    place_at,
)
from anabranch.core.ids import NodeId
from anabranch.core.machine import DialCheck, DialChecked, Effect, Send
from anabranch.core.messages import Seen
from machines import NODES

A, B = NODES[1:3]
HOST, ADDRESS = "93.184.215.7", "ws://93.184.215.7:7700"
HOME = "ws://192.168.1.5:7700"
NOW = 1_000.0


class Desk:
    """Checks with a clock; a test says which dials succeed."""

    def __init__(self, *own: str, proxies: tuple[str, ...] = ()) -> None:
        self.checks = DialChecks(own, proxies.__contains__)
        self.now = NOW

    def come(self, node: NodeId, address: str, host: str = HOST) -> list[Effect]:
        self.checks.link(node, host)
        return self.checks.listening(node, address, self.now)

    def answer(self, node: NodeId, address: str, reached: bool) -> list[Effect]:
        return self.checks.checked(DialChecked(node, address, reached), self.now)

    def wait(self, seconds: float) -> list[Effect]:
        until, effects = self.now + seconds, list[Effect]()
        while (at := self.checks.wakeup_at) is not None and at <= until:
            self.now = max(self.now, at)
            effects += self.checks.wake(self.now)
        self.now = until
        assert all(size <= bound for size, bound in self.checks.sizes().values())
        return effects


def dial(node: NodeId, address: str) -> DialCheck:
    """Return the check of a node that is seen at HOST."""
    return DialCheck(node, address, HOST, True)


def of_dials(effects: list[Effect]) -> list[DialCheck]:
    return [effect for effect in effects if isinstance(effect, DialCheck)]


def told(node: NodeId, address: str, dialable: bool, host: str = HOST) -> Effect:
    return Send(node, Seen(host, address, dialable))


def test_address_that_a_node_names_is_dialled_and_a_success_is_told_at_once() -> None:
    desk = Desk()
    assert desk.come(A, ADDRESS) == [dial(A, ADDRESS)]
    assert desk.answer(A, ADDRESS, True) == [told(A, ADDRESS, True)]
    assert desk.wait(CHECK_AGAIN_S - 1) == []
    assert desk.wait(1) == [dial(A, ADDRESS)]


def test_failures_are_told_after_the_same_time_however_fast_they_were() -> None:
    for took_s in (0.0, 0.5, 5.0):
        desk = Desk()
        desk.come(A, ADDRESS)
        desk.wait(took_s)
        assert desk.answer(A, ADDRESS, False) == []
        assert desk.wait(FAILED_AFTER_S - took_s - 0.01) == []
        assert desk.wait(0.01) == [told(A, ADDRESS, False)]


def test_node_is_dialled_once_a_minute_whatever_it_names_and_however_often_it_returns() -> None:
    desk = Desk()
    dials: list[Effect] = []
    for second in range(int(5 * EVERY_S)):
        if second % 3 == 0:
            desk.checks.gone(A)
        dials += [e for e in desk.come(A, f"{ADDRESS}/{second}") if type(e) is DialCheck]
        desk.checks.doubt(A, desk.now)
        dials += [e for e in desk.wait(1) if type(e) is DialCheck]
        for dial in dials[-1:]:
            desk.answer(A, dial.address, False)  # type: ignore[attr-defined]
    assert len(dials) <= 6


def test_nodes_of_one_host_are_dialled_at_a_bounded_rate() -> None:
    desk, dialled = Desk(), 0
    for number in range(400):
        node = NodeId(number.to_bytes(20))
        for effect in desk.come(node, ADDRESS):
            if type(effect) is DialCheck:
                dialled += 1
                desk.answer(effect.peer, effect.address, False)
    assert dialled == HOST_BURST
    other = desk.come(NodeId(b"x" * 20), ADDRESS, host="9.9.9.9")
    assert [type(effect) for effect in other] == [DialCheck]


def test_dials_under_way_are_bounded_and_a_lost_answer_does_not_block_them() -> None:
    desk = Desk()
    nodes = [NodeId(number.to_bytes(20)) for number in range(MAX_UNDER_WAY + 1)]
    begun = [effect for node in nodes for effect in desk.come(node, ADDRESS)]
    assert len(begun) == MAX_UNDER_WAY
    assert desk.wait(FORGET_AFTER_S - 2) == []
    assert dial(nodes[-1], ADDRESS) in desk.wait(4)


def test_failed_dial_of_another_node_lets_a_node_be_checked_again() -> None:
    desk = Desk()
    desk.come(A, ADDRESS)
    desk.answer(A, ADDRESS, True)
    desk.wait(EVERY_S + 1)
    desk.checks.doubt(A, desk.now)
    assert desk.wait(0) == [dial(A, ADDRESS)]
    desk.checks.doubt(A, desk.now)
    assert desk.answer(A, ADDRESS, False) == []
    assert desk.wait(FAILED_AFTER_S) == [told(A, ADDRESS, False)]
    assert desk.checks.has_failed(A)


@pytest.mark.parametrize(
    "address",
    [
        "ws://tracker.example:7700",
        "ws://127.0.0.1:7701",
        "ws://localhost:7701",
        "ws://93.184.215.99:80",
        "ws://10.0.0.3:22",
        "ws://127.0.0.1:22",
        "ws://169.254.169.254:80",
        "ws://[::1]:22",
        "ws://printer.local:80",
        "junk",
        "",
    ],
)
def test_address_that_the_tracker_must_not_dial_is_not_dialled(address: str) -> None:
    desk = Desk("ws://tracker.example:7700", "ws://0.0.0.0:7701", proxies=("93.184.215.99",))
    assert desk.come(A, address) == []
    assert desk.wait(FAILED_AFTER_S) == [told(A, address, False)]
    desk.checks.doubt(A, desk.now)
    assert desk.wait(2 * CHECK_AGAIN_S) == []


@pytest.mark.parametrize("host", ["192.168.1.5", "10.9.9.9", "127.0.0.1", ""])
def test_node_inside_may_name_an_internal_address(host: str) -> None:
    assert Desk().come(A, HOME, host) == [DialCheck(A, HOME, host, False)]


def test_node_behind_a_proxy_may_not_name_an_internal_address() -> None:
    desk = Desk(proxies=("10.0.0.2",))
    assert desk.come(A, HOME, "10.0.0.2") == []
    assert desk.wait(FAILED_AFTER_S) == [told(A, HOME, False, host="")]
    assert desk.come(B, ADDRESS, "10.0.0.2") == [DialCheck(B, ADDRESS, "", True)]


def test_host_that_nodes_elsewhere_name_is_dialled_at_a_bounded_rate_and_serves_its_own() -> None:
    desk, dials = Desk(), list[DialCheck]()
    victim = "203.1.113.80"
    for number in range(4 * int(HOST_BURST)):
        host = f"93.184.{number // 200}.{number % 200}"
        begun = desk.come(NodeId(number.to_bytes(20)), f"ws://{victim}:{number + 1}", host)
        for check in of_dials(begun):
            desk.answer(check.peer, check.address, False)
            dials.append(check)
    assert len(dials) == HOST_BURST
    assert len(of_dials(desk.wait(10))) <= 11
    own = f"ws://{victim}:7700"
    assert of_dials(desk.come(A, own, victim)) == [DialCheck(A, own, victim, True)]


def test_host_of_a_proxy_is_not_told() -> None:
    desk = Desk(proxies=(HOST,))
    other = "ws://9.9.9.9:7700"
    desk.come(A, other)
    assert desk.answer(A, other, True) == [told(A, other, True, host="")]


def test_answer_for_an_address_that_the_node_has_left_is_not_told() -> None:
    desk = Desk()
    desk.come(A, ADDRESS)
    desk.checks.listening(A, HOME.replace("192.168.1.5", HOST), desk.now)
    assert desk.answer(A, "ws://93.184.215.8:1", True) == []
    desk.checks.gone(A)
    assert desk.answer(A, ADDRESS, True) == []
    assert desk.wait(CHECK_AGAIN_S) == []


def test_node_that_repeats_its_address_gets_the_known_answer_without_a_dial() -> None:
    desk = Desk()
    desk.come(A, ADDRESS)
    assert desk.checks.listening(A, ADDRESS, desk.now) == []
    desk.answer(A, ADDRESS, False)
    assert desk.checks.listening(A, ADDRESS, desk.now) == []  # not before its time
    desk.wait(FAILED_AFTER_S)
    assert desk.checks.listening(A, ADDRESS, desk.now) == [told(A, ADDRESS, False)]


def test_node_is_new_until_its_first_check_is_told_and_never_again() -> None:
    desk = Desk()
    assert not desk.checks.is_new(A)
    desk.come(A, ADDRESS)
    assert desk.checks.is_new(A)
    desk.answer(A, ADDRESS, False)
    assert desk.checks.is_new(A)
    desk.wait(FAILED_AFTER_S)
    assert not desk.checks.is_new(A)
    desk.checks.gone(A)
    desk.come(A, f"{ADDRESS}1")
    assert not desk.checks.is_new(A)


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NODES", 5)
    monkeypatch.setattr(module, "MAX_DIALLED", 3)
    monkeypatch.setattr(module, "MAX_HOSTS", 2)
    desk = Desk()
    for number in range(9):
        desk.come(NodeId(number.to_bytes(20)), ADDRESS, host=f"93.184.215.{number}")
    sizes = desk.checks.sizes()
    assert sizes["nodes to dial"] == (5, 5)
    assert sizes["nodes dialled"] == (3, 3)
    assert sizes["hosts of nodes"] == (2, 2)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ws://example.org:7700", ("example.org", 7700)),
        ("wss://example.org/path", ("example.org", 443)),
        ("ws://example.org", ("example.org", 80)),
        ("ws://[2001:db8::1]:9", ("2001:db8::1", 9)),
        ("ws://example.org:99999", None),
        ("ws://[broken", None),
        ("example.org", None),
    ],
)
def test_place_of_an_address(address: str, expected: tuple[str, int] | None) -> None:
    assert place_at(address) == expected
