"""Attacks of docs/security.md on links, pages, rights without trackers, and neighbours."""

from mutants.mutation import Mutant, Row
from mutants.security import (
    A_NEIGHBOUR,
    A_TRACKER,
    SOMEBODY_ON_THE_PATH,
    SOMEBODY_WHOSE_RIGHT_HAS_ENDED,
    SOMEBODY_WITHOUT_RIGHTS,
)

NETWORK = (
    Mutant(
        "the pages make room for newcomers",
        "anabranch.live.page_server:PageServer.admit",
        "useless = self._useless(place if is_place_full else None)",
        "useless = None",
        (
            "tests/live/test_page_server.py::test_tracker_with_few_descriptors_serves_newcomers_beside_idle_connections",
        ),
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "opens very many connections to the pages of a tracker or storage node, and asks for nothing",
            "the one that has waited longest makes room for a newcomer; links and disks have descriptors of their own",
        ),
    ),
    Mutant(
        "a request has to be complete in time",
        "anabranch.live.page_server:_Gate._too_late",
        'self.end("timed-out")',
        "self.wait(self._server.limits.idle_s)",
        ("tests/live/test_page_server.py::test_request_that_is_never_complete_is_ended",),
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "sends a request byte by byte, or reads no answer",
            "its connection is ended",
        ),
    ),
    Mutant(
        "every message of a link has a tag",
        "anabranch.live.transports.connection:Connection._receive",
        "self._mac.check(covered, message[end:])",
        "assert covered",
        ("tests/scenarios/test_attack_on_path.py::test_a_forged_leave_removes_no_node",),
        row=Row(
            SOMEBODY_ON_THE_PATH,
            "adds a message, such as a `Leave` in a node's name",
            "it has no tag: the link ends with the reason `bad-mac` and is dialled again; the node stays where it is",
        ),
    ),
    Mutant(
        "a tag is checked against the message",
        "anabranch.core.link_mac:LinkMac.check",
        "self._receive(position.to_bytes(NONCE_BYTES), tag, message)",
        "assert len(tag) == MAC_BYTES",
        (
            "tests/live/transports/test_connection_on_path.py::test_any_altered_byte_of_a_control_message_ends_the_link[6]",
        ),
        row=Row(SOMEBODY_ON_THE_PATH, "alters a control message", "the same"),
    ),
    Mutant(
        "a tag covers routes and heads",
        "anabranch.live.transports.batches",
        "COVERED_BYTES = 2_048  # of a data packet",
        "COVERED_BYTES = 8",
        (
            "tests/live/transports/test_connection_on_path.py::test_any_altered_byte_of_a_data_message_ends_the_link[88]",
        ),
        row=Row(
            SOMEBODY_ON_THE_PATH,
            "alters the route or the head of a frame, or exchanges it for another",
            "the same",
        ),
    ),
    Mutant(
        "the keys of a link are of this link alone",
        "anabranch.core.handshake:_EphemeralKey.agree",
        "keys = HKDF(SHA256(), 2 * KEY_BYTES, transcript, _DOMAIN).derive(shared)",
        'keys = HKDF(SHA256(), 2 * KEY_BYTES, b"", _DOMAIN).derive(bytes(len(shared)))',
        (
            "tests/live/transports/test_connection_on_path.py::test_a_message_of_another_link_of_the_same_nodes_ends_the_link",
        ),
        row=Row(
            SOMEBODY_ON_THE_PATH,
            "repeats a message, now or in a later link, or returns it to its sender",
            "the same",
        ),
    ),
    Mutant(
        "a message without its tag ends the link",
        "anabranch.core.link_mac:LinkMac.check",
        'raise RemoteError("bad-mac", f"message {position} of the link") from error',
        "del error",
        (
            "tests/live/transports/test_connection_on_path.py::test_frames_that_changed_places_in_a_message_end_the_link",
        ),
        row=Row(
            SOMEBODY_ON_THE_PATH,
            "changes the order of messages, or of frames in a message",
            "the same",
        ),
    ),
    Mutant(
        "no message of a link is passed over",
        "anabranch.core.link_mac:LinkMac.check",
        "self._receive(position.to_bytes(NONCE_BYTES), tag, message)",
        """try:
    self._receive(position.to_bytes(NONCE_BYTES), tag, message)
except InvalidTag:
    self._received = position + 2
    self._receive((position + 1).to_bytes(NONCE_BYTES), tag, message)""",
        (
            "tests/live/transports/test_connection_on_path.py::test_the_message_after_a_dropped_one_ends_the_link",
        ),
        row=Row(SOMEBODY_ON_THE_PATH, "drops a message", "the next one ends the link"),
    ),
    Mutant(
        "pongs are no sign of life",
        "anabranch.live.transports.connection:Connection.on_ws_frame",
        "pass  # of no ping of ours: it may come unasked",
        "self._silent_ticks = 0",
        (
            "tests/live/transports/test_connection_on_path.py::test_a_link_ends_though_the_attacker_answers_for_the_silent_side",
        ),
        row=Row(
            SOMEBODY_ON_THE_PATH,
            "drops all messages, and answers pings itself",
            "the link ends after 12 s: only an echo with a tag shows that the other side lives",
        ),
    ),
    Mutant(
        "echoes count however late they come",
        "anabranch.live.transports.connection:Connection._measured",
        "if asked not in self._asked:",
        "if asked not in self._asked or asked != self._asked[-1]:",
        (
            "tests/live/transports/test_connection_on_path.py::test_a_delay_on_the_path_shows_in_the_round_trip_however_long_it_is",
        ),
        row=Row(
            SOMEBODY_ON_THE_PATH,
            "delays all messages",
            "the round trip shows it, and cannot be made to look shorter",
        ),
    ),
    Mutant(
        "proofs cover the ephemeral keys",
        "anabranch.core.handshake:digest",
        "both = (hello.network, hello.node, acceptor, hello.nonce, nonce, hello.key, key)",
        "both = (hello.network, hello.node, acceptor, hello.nonce, nonce, key[:0])",
        (
            "tests/core/test_handshake.py::test_an_ephemeral_key_that_was_exchanged_on_the_path_breaks_the_proof",
        ),
        row=Row(
            SOMEBODY_ON_THE_PATH,
            "exchanges the keys while the link opens",
            "the proofs cover them: the link does not open",
        ),
    ),
    Mutant(
        "changes that neighbours show count",
        "anabranch.core.registry_reader:RegistryReader.stream",
        "state = (self.by_neighbours.history(name) or followed.history).state",
        "state = followed.history.state",
        (
            "tests/core/test_neighbour_ledgers.py::test_revocation_shown_by_a_neighbour_counts_at_once",
        ),
        row=Row(
            SOMEBODY_WHOSE_RIGHT_HAS_ENDED,
            "publishes while its neighbours know of the revocation, and no tracker can be reached",
            "the revocation counts at every node as soon as one neighbour shows it",
        ),
    ),
    Mutant(
        "an owner may demand confirmation",
        "anabranch.core.registry_reader:RegistryReader._counts_until",
        "return followed.heard_at + min(self._confirm_within_s, demanded_s or inf)",
        "return followed.heard_at + max(self._confirm_within_s, demanded_s)",
        (
            "tests/core/test_registry_reader.py::test_right_that_has_to_be_confirmed_counts_until_then",
        ),
        row=Row(
            SOMEBODY_WHOSE_RIGHT_HAS_ENDED,
            "publishes to a stream whose owner demands confirmation, where no tracker can be reached",
            "refused when the time is over",
        ),
    ),
    Mutant(
        "a pause is of one link",
        "anabranch.core.slow_links:SlowLinks.slow_down",
        "self._rest(state, now)",
        """if state.publishing is not None:
    self._pause(state, message.pause_ms / 1000, now)""",
        ("tests/sim/test_byzantine.py::test_complaining_neighbour_does_not_slow_a_publisher",),
        row=Row(
            A_NEIGHBOUR,
            "asks for pauses again and again",
            "its own link is paused, no other; a node with fewer than three neighbours gives pauses a tenth of the time at most; a link that is paused for long is cut",
        ),
    ),
    Mutant(
        "pauses of storage nodes are signed",
        "anabranch.core.slow_links:SlowLinks.storage_slow_down",
        "if not self._verify(node, digest, message.signature):",
        "if not digest:",
        ("tests/core/test_peer_slow.py::test_storage_slow_down_that_is_forged_costs_the_link",),
        row=Row(
            A_NEIGHBOUR,
            "passes on a pause in the name of a storage node",
            "the pause is signed, or it costs the link",
        ),
    ),
    Mutant(
        "changes that neighbours show are signed",
        "anabranch.core.neighbour_ledgers:NeighbourLedgers.page",
        "result = shown.take(sender, page, exchange.asked_at, self._verify, now)",
        "result = shown.take(sender, page, exchange.asked_at, lambda *_: True, now)",
        ("tests/core/test_neighbour_ledgers.py::test_forged_change_of_a_neighbour_costs_its_link",),
        row=Row(
            A_NEIGHBOUR,
            "shows forged changes of a stream's ledger",
            "not signed by who may: its link is cut",
        ),
    ),
    Mutant(
        "a node in dispute with many users waits",
        "anabranch.core.disputes:Disputes.judge",
        "self._waiting[node] = max(until, self._waiting.get(node, until))",
        "self._waiting[node] = now",
        (
            "tests/core/test_tracker_lies.py::test_node_that_rejects_all_neighbours_has_none_for_a_while",
        ),
        row=Row(
            A_NEIGHBOUR,
            "reports its far neighbours as unreachable, to be given nearer ones",
            "it gets fewer: a node in dispute with several users is placed last, and its slots stay empty",
        ),
    ),
    Mutant(
        "a dispute counts for both ends",
        "anabranch.core.disputes:Disputes.record",
        "self._count(b[0], a[0], a[1], now)",
        "assert b",
        ("tests/core/test_tracker_lies.py::test_dispute_reported_by_one_end_treats_both_alike",),
        row=Row(
            A_NEIGHBOUR,
            "claims a link and refuses the dial, to the same end",
            "the other end does not report the link, and both are treated alike",
        ),
    ),
    Mutant(
        "slots of a node in dispute stay empty",
        "anabranch.core.tracked:TrackedPart.waits",
        "if not self.disputes.waits(node):",
        "if node in self.nodes:",
        (
            "tests/lab/experiments/test_complaints.py::test_colluders_of_a_quarter_of_an_hour_surround_no_victim",
        ),
        row=Row(
            A_NEIGHBOUR,
            "rejects all others, together with colluders, until they surround a victim",
            "no victim loses its honest neighbours in an hour, with 4 colluders of 50",
        ),
    ),
    Mutant(
        "disputes are counted by users",
        "anabranch.core.disputes:Disputes.record",
        """self._count(a[0], b[0], b[1], now)
self._count(b[0], a[0], a[1], now)""",
        """self._count(a[0], b[0], b[0], now)
self._count(b[0], a[0], a[0], now)""",
        (
            "tests/core/test_tracker_lies.py::test_nodes_of_one_user_in_dispute_with_a_node_do_not_place_it_last",
        ),
        row=Row(
            A_NEIGHBOUR,
            "disputes with a victim under many nodes of one user, to have it placed last",
            "users count, not nodes",
        ),
    ),
    Mutant(
        "internal addresses are not dialled from outside",
        "anabranch.core.dial_checks:DialChecks._may_dial",
        "return not (node.is_outside and is_internal(host))",
        "return True",
        (
            "tests/core/test_dial_checks.py::test_address_that_the_tracker_must_not_dial_is_not_dialled",
        ),
        row=Row(
            A_NEIGHBOUR,
            "names another host's address, to have the tracker dial it",
            "dialled with the handshake at most once a minute and node, at a bounded rate per host; never an internal address from outside, the tracker itself or a proxy; all failures are told after the same time",
        ),
    ),
    Mutant(
        "names are judged by where they lead",
        "anabranch.live.transports.checks:Targets.admits",
        "return not check.is_outside or ip == check.seen or not (is_here or is_internal(ip))",
        "return bool(ip)",
        (
            "tests/live/transports/test_checks.py::test_check_for_a_node_outside_does_not_connect_to_an_internal_host",
        ),
        row=Row(
            A_NEIGHBOUR,
            "names a host name that leads inside the tracker's network",
            "the name is resolved first; what it leads to is judged, and then dialled without resolving it again",
        ),
    ),
    Mutant(
        "an address counts once it was dialled",
        "anabranch.core.reachability:Reachability._decide",
        "if any(seen.dialable for seen in answers) or self._diallers:",
        "if answers or self._diallers:",
        (
            "tests/live/test_node_undialable.py::test_nodes_that_nobody_can_dial_get_every_message_and_are_told",
        ),
        row=Row(
            A_NEIGHBOUR,
            "names an address where it does not listen",
            "others' dials fail; the address counts for nothing once no tracker and no neighbour can dial it",
        ),
    ),
    Mutant(
        "two trackers agree on a host",
        "anabranch.core.reachability:Reachability._seen_elsewhere",
        "needed = min(TRACKERS_THAT_AGREE, len(self._trackers()))",
        "needed = 1",
        (
            "tests/core/test_reachability.py::test_host_that_a_single_tracker_of_two_names_is_never_adopted",
        ),
        row=Row(
            A_TRACKER,
            "tells a node that it is seen at a host of the tracker's choice",
            "not adopted unless a second tracker sees the same host, where there is one, and it has been dialled there",
        ),
    ),
    Mutant(
        "one tracker that reaches a node is enough",
        "anabranch.core.reachability:Reachability._decide",
        "if any(seen.dialable for seen in answers) or self._diallers:",
        "if (answers and all(seen.dialable for seen in answers)) or self._diallers:",
        (
            "tests/core/test_reachability.py::test_one_tracker_that_succeeds_outweighs_others_that_fail",
        ),
        row=Row(
            A_TRACKER,
            "tells a node that it cannot be dialled",
            "another tracker or a neighbour that has dialled it outweighs it; else the node dials the others itself",
        ),
    ),
)
