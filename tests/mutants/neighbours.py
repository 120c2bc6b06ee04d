"""Neighbours that ask for pauses, addresses that are dialled, connections that prove nothing."""

from mutants.mutation import Mutant

NEIGHBOURS = (
    Mutant(
        "pauses among few neighbours are bounded",
        "anabranch.core.congestion:Congestion.pause",
        "is_bounded = neighbours < FEW or pauses.is_spent",
        "is_bounded = pauses.is_spent",
        (
            "tests/core/test_peer_slow.py::test_publisher_whose_one_neighbour_complains_keeps_nine_tenths_of_its_rate",
        ),
    ),
    Mutant(
        "pauses are bounded for who has asked for too many",
        "anabranch.core.congestion:Congestion.pause",
        "is_bounded = neighbours < FEW or pauses.is_spent",
        "is_bounded = neighbours < FEW",
        (
            "tests/core/test_congestion.py::test_pauses_among_few_neighbours_take_a_share_of_the_time",
        ),
    ),
    Mutant(
        "pauses are remembered when a link ends",
        "anabranch.core.congestion:Congestion.gone",
        "self._cut_at.cancel(peer)",
        "self._cut_at.cancel(peer)\nself._pauses.pop(peer, None)",
        (
            "tests/core/test_congestion.py::test_pauses_among_few_neighbours_take_no_more_if_the_link_ends_again_and_again",
        ),
    ),
    Mutant(
        "neighbours that ask for pauses are replaced",
        "anabranch.core.peer:Peer._cut",
        "if reason != LINK_SLOW:",
        "if reason:",
        (
            "tests/core/test_peer_slow.py::test_neighbour_that_was_cut_for_complaining_is_refused_when_it_dials",
        ),
    ),
    Mutant(
        "the only neighbour of a part is kept",
        "anabranch.core.peer:Peer._cut",
        "if any(len(peers) < 2 for peers in shared if peer in peers):",
        "if not shared:",
        (
            "tests/core/test_peer_slow.py::test_publisher_whose_neighbours_all_complain_keeps_one_and_nine_tenths_of_its_rate",
        ),
    ),
    Mutant(
        "only named storage nodes slow publishers",
        "anabranch.core.slow_links:SlowLinks.storage_slow_down",
        "is_known = permits is not None and permits.stores(part.stream, node)",
        "is_known = permits is not None",
        (
            "tests/core/test_peer_slow.py::test_storage_slow_down_of_a_node_that_the_stream_does_not_name_is_ignored",
        ),
    ),
    Mutant(
        "pauses of a storage node do not count again",
        "anabranch.core.slow_links:SlowLinks.storage_slow_down",
        "is_timely = abs(now * 1000 - message.at_ms) <= STORAGE_PAUSE_AGE_S * 1000",
        "is_timely = message.at_ms >= 0",
        ("tests/core/test_peer_slow.py::test_storage_slow_down_of_another_time_is_ignored",),
    ),
    Mutant(
        "a node is dialled once a minute",
        "anabranch.core.dial_checks:DialChecks._check_at",
        "self._due.set(peer, at if dialled is None else max(at, dialled.at + EVERY_S))",
        "self._due.set(peer, at)",
        (
            "tests/core/test_dial_checks.py::test_node_is_dialled_once_a_minute_whatever_it_names_and_however_often_it_returns",
        ),
    ),
    Mutant(
        "dials for the nodes of one host are bounded",
        "anabranch.core.dial_checks:DialChecks._spend",
        "if not _allowance(self._of_host, node.host, now).spend(now):",
        "if node.host is None:",
        ("tests/core/test_dial_checks.py::test_nodes_of_one_host_are_dialled_at_a_bounded_rate",),
    ),
    Mutant(
        "dials to a host elsewhere are bounded",
        "anabranch.core.dial_checks:DialChecks._spend",
        "return _allowance(self._to_host, place[0], now).spend(now)",
        "return True",
        (
            "tests/core/test_dial_checks.py::test_host_that_nodes_elsewhere_name_is_dialled_at_a_bounded_rate_and_serves_its_own",
        ),
    ),
    Mutant(
        "failed dials are told after the same time",
        "anabranch.core.dial_checks:DialChecks.checked",
        "self._to_tell.set(peer, max(now, (dialled.at if dialled else now) + FAILED_AFTER_S))",
        "self._to_tell.set(peer, now)",
        (
            "tests/core/test_dial_checks.py::test_failures_are_told_after_the_same_time_however_fast_they_were",
        ),
    ),
    Mutant(
        "bodies that never come make room",
        "anabranch.live.page_server:PageServer._bounded",
        "gate.begin()",
        "gate.begin()\nself.waiting.pop(gate, None)",
        (
            "tests/live/test_page_server.py::test_connections_whose_bodies_never_come_make_room_for_newcomers",
        ),
    ),
    Mutant(
        "unproved connections make room",
        "anabranch.live.transports.websocket:WebSocketTransport._evict",
        "pending = self._pending.get(place)",
        "pending = None",
        (
            "tests/live/transports/test_websocket.py::test_one_address_may_have_so_many_pending_and_the_oldest_makes_room",
        ),
    ),
    Mutant(
        "the fullest place makes room",
        "anabranch.live.transports.websocket:WebSocketTransport._evict",
        'place = max(self._pending, key=lambda each: len(self._pending[each]), default="")',
        'place = next(iter(self._pending), "")',
        (
            "tests/live/transports/test_websocket.py::test_place_with_most_pending_connections_makes_room_for_another",
        ),
    ),
    Mutant(
        "each direction of a link has its key",
        "anabranch.core.handshake:_EphemeralKey.agree",
        "return keys[:KEY_BYTES], keys[KEY_BYTES:]",
        "return keys[:KEY_BYTES], keys[:KEY_BYTES]",
        ("tests/core/test_handshake.py::test_both_sides_derive_the_same_two_keys",),
    ),
    Mutant(
        "the node's own demand of confirmation counts",
        "anabranch.core.registry_reader:RegistryReader._counts_until",
        "return followed.heard_at + min(self._confirm_within_s, demanded_s or inf)",
        "return followed.heard_at + (demanded_s or inf)",
        (
            "tests/live/test_node_unconfirmed.py::test_node_with_confirm_within_refuses_rights_that_no_tracker_confirms",
        ),
    ),
    Mutant(
        "neighbours of other users come first",
        "anabranch.overlays.regular_graph:RegularGraph._splice_repeats_user",
        "return both_new or self._repeats_user(a, c) or self._repeats_user(b, e)",
        "return both_new",
        (
            "tests/overlays/test_regular_graph_order.py::test_users_that_are_no_neighbours_yet_come_first",
        ),
    ),
    Mutant(
        "a pair in dispute is set apart",
        "anabranch.core.disputes:Disputes.record",
        "self.set_apart(a[0], b[0], now)",
        "assert now",
        (
            "tests/core/test_disputes.py::test_pair_in_dispute_is_apart_in_both_orders_until_its_time_is_over",
        ),
    ),
    Mutant(
        "links and pages leave descriptors in reserve",
        "anabranch.live.descriptors:fit",
        "room = max(LEAST_LINKS, limit - RESERVED - share_of_pages(limit))",
        "room = max(LEAST_LINKS, limit)",
        ("tests/live/test_descriptors.py::test_shares_leave_descriptors_in_reserve",),
    ),
    Mutant(
        "two undialable nodes are no pair",
        "anabranch.core.tracked:TrackedPart.can_connect",
        "return known_a is None or known_b is None or known_a.dialable or known_b.dialable",
        "return True",
        ("tests/core/test_tracked.py::test_two_undialable_nodes_are_never_neighbours",),
    ),
    Mutant(
        "a stricter demand that neighbours show counts",
        "anabranch.core.registry_reader:RegistryReader._counts_until",
        "state = (self.by_neighbours.history(chain.chain) or chain).state",
        "state = chain.state",
        (
            "tests/core/test_neighbour_ledgers.py::test_demand_of_confirmation_shown_by_a_neighbour_counts",
        ),
    ),
    Mutant(
        "an address names no user",
        "anabranch.live.transports.dials:read_address",
        'return None if "@" in urlsplit(address).netloc else parse_url(address)',
        "return parse_url(address)",
        (
            "tests/live/transports/test_websocket.py::test_dial_of_an_address_with_a_user_fails_and_nothing_else",
        ),
    ),
    Mutant(
        "a host name lies within no prefix",
        "anabranch.live.transports.limits:is_within",
        "return False",
        "raise",
        (
            "tests/live/transports/test_limits.py::test_an_address_is_within_a_prefix_and_a_host_name_never",
        ),
    ),
)
