"""Frames on their way: signatures, rights, age, and what is kept back."""

from mutants.mutation import Mutant

FRAMES = (
    Mutant(
        "a right is looked up again after a second",
        "anabranch.core.permission:Permission.allows_chain",
        "self._trusted[key, chain] = now + TRUST_FOR_S",
        "self._trusted[key, chain] = now + 3600 * TRUST_FOR_S",
        ("tests/core/test_permission.py::test_a_permission_is_looked_up_once_a_second",),
    ),
    Mutant(
        "a revocation counts at once",
        "anabranch.core.permission:Permission.renew",
        "self._trusted.clear()",
        "assert self._permits is not None",
        ("tests/core/test_permission.py::test_without_a_registry_everyone_may_publish",),
    ),
    Mutant(
        "the doubtful frames of a peer are bounded",
        "anabranch.core.permission:Permission.keep_back",
        "self._per_peer.get(sender, 0) >= MAX_DOUBTFUL_PER_PEER",
        "self._per_peer.get(sender, 0) < 0",
        ("tests/core/test_permission.py::test_no_neighbour_fills_all_the_room",),
    ),
    Mutant(
        "doubtful frames are bounded in bytes",
        "anabranch.core.permission:Permission.keep_back",
        "or self._bytes + len(data) > MAX_DOUBTFUL_BYTES",
        "or len(data) > MAX_DOUBTFUL_BYTES",
        ("tests/core/test_permission.py::test_what_waits_is_bounded_in_bytes",),
    ),
    Mutant(
        "doubt ends",
        "anabranch.core.permission:Permission.expire",
        "while self._doubtful and self._doubtful[0].until <= now:",
        "while self._doubtful and self._doubtful[0].until <= 0:",
        (
            "tests/core/test_permission.py::test_what_may_pass_is_handed_over_in_its_order_and_the_rest_waits_on",
        ),
    ),
    Mutant(
        "frames of the future are dropped",
        "anabranch.core.incoming:Incoming._look",
        "elif head.last >> SEQUENCE_BITS > (now + MAX_SKEW_S) * 1000:",
        "elif head.last < 0:",
        ("tests/core/test_peer_data.py::test_what_is_refused_is_not_said_to_be_got",),
    ),
    Mutant(
        "old frames are dropped",
        "anabranch.core.incoming:Incoming._look",
        "elif head.first >> SEQUENCE_BITS < (now - MAX_SKEW_S) * 1000:",
        "elif head.first < 0:",
        ("tests/core/test_incoming.py::test_a_frame_that_was_kept_back_for_too_long_is_refused",),
    ),
    Mutant(
        "frames come from neighbours",
        "anabranch.core.incoming:Incoming._look",
        "if state is None or not state.overlay.accepts(state.part, sender):",
        "if state is None:",
        ("tests/core/test_peer_data.py::test_what_is_refused_is_not_said_to_be_got",),
    ),
    Mutant(
        "useless packets strain a link",
        "anabranch.core.incoming:Incoming._look",
        "self._links.strain(sender, now)",
        "self._links.is_up(sender)",
        ("tests/core/test_peer_data.py::test_too_many_useless_packets_cost_the_link",),
    ),
)
