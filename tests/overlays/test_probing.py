"""The node side of probes: dial or wait, measure, tell, let go."""

from anabranch.core.machine import Hold, Release, Send
from anabranch.core.messages import Contact, Probe, Probed
from anabranch.overlays.probing import ECHO_S, MAX_PROBES, PROBE_S, Probing
from machines import NODES, OTHER, PART, Member, of

TRACKER = Contact(NODES[0], "tracker:1")
A, B, C = NODES[2:5]


def member() -> Member:
    node = Member(Probing, 1, [TRACKER])
    node.join()
    node.up(TRACKER.node)
    return node


def ask(*peers: bytes) -> Probe:
    return Probe(PART, tuple(Contact(peer, f"{peer.hex()}:1") for peer in peers))


def answer(peer: bytes, rtt_us: int) -> Send:
    return Send(TRACKER.node, Probed(PART, peer, rtt_us))


def test_who_is_to_dial_dials_waits_for_the_echo_tells_and_lets_go() -> None:
    node = member()
    assert node.hear(TRACKER.node, ask(A)) == [Hold(A, f"{A.hex()}:1")]
    assert node.overlay.rtt(A, 0.09, node.now) == []  # the handshake's, with its signatures
    assert node.up(A) == []
    assert node.overlay.rtt(A, 0.02, node.now) == [answer(A, 20_000), Release(A)]
    assert node.overlay.rtt(A, 0.03, node.now) == []
    assert node.overlay.sizes()["probes"] == (0, MAX_PROBES)


def test_who_is_dialled_measures_as_well() -> None:
    node = member()
    assert node.hear(TRACKER.node, Probe(PART, (), (B,))) == [Hold(B, "", dial=False)]
    node.up(B)
    assert node.overlay.rtt(B, 0.5, node.now) == [answer(B, 500_000), Release(B)]


def test_without_an_echo_the_handshake_has_to_do() -> None:
    node = member()
    node.hear(TRACKER.node, ask(A))
    node.overlay.rtt(A, 0.04, node.now)
    node.up(A)
    told = node.wait(ECHO_S)
    assert answer(A, 40_000) in told
    assert of(Release, told) == [Release(A)]


def test_who_cannot_be_reached_is_told_and_let_go() -> None:
    node = member()
    node.hear(TRACKER.node, ask(A))
    assert node.down(A) == [answer(A, 0), Release(A)]
    node.hear(TRACKER.node, ask(B))
    told = node.wait(PROBE_S)
    assert answer(B, 0) in told
    assert Release(B) in told


def test_what_is_known_is_told_at_once_and_nothing_is_measured_twice() -> None:
    node = member()
    node.up(A)
    node.overlay.rtt(A, 0.01, node.now)
    assert node.hear(TRACKER.node, ask(A)) == [answer(A, 10_000)]
    assert len(node.hear(TRACKER.node, ask(B, B))) == 1
    assert node.hear(TRACKER.node, ask(B)) == []
    assert node.hear(TRACKER.node, ask(node.overlay.me.node)) == []


def test_only_its_tracker_may_ask_and_only_for_so_many() -> None:
    node = member()
    assert node.hear(A, ask(B)) == []
    strangers = [bytes([200, i]) * 10 for i in range(MAX_PROBES + 1)]
    for peer in strangers[:-1]:
        assert of(Hold, node.hear(TRACKER.node, ask(peer)))
    assert node.hear(TRACKER.node, ask(strangers[-1])) == [answer(strangers[-1], 0)]


def test_who_leaves_lets_go_of_what_it_was_measuring() -> None:
    node = member()
    node.join(OTHER)
    node.hear(TRACKER.node, ask(A))
    assert Release(A) in node.overlay.leave(PART, node.now)
    assert node.overlay.sizes()["probes"] == (0, MAX_PROBES)
