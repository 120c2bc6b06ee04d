"""Group keys: who gets them, who may give them, and when they are replaced."""

from mutants.mutation import Mutant

KEYS = (
    Mutant(
        "key requests stay in their network",
        "anabranch.core.key_records:read_request",
        "if question.network != network:",
        "if not question.network:",
        (
            "tests/core/test_key_answering.py::test_what_is_wrong_with_a_request_is_not_the_fault_of_who_carried_it",
        ),
    ),
    Mutant(
        "keys are sealed to the key of the user",
        "anabranch.core.key_records:read_request",
        "if curve.address(question.public) != question.user:",
        "if not question.public:",
        (
            "tests/core/test_key_answering.py::test_what_is_wrong_with_a_request_is_not_the_fault_of_who_carried_it",
        ),
    ),
    Mutant(
        "key answers are signed",
        "anabranch.core.key_records:read_answer",
        "if not verify(reply.by, _answer_digest(network, request, body), signature):",
        "if not body:",
        (
            "tests/core/test_key_asking.py::test_an_answer_that_was_spoiled_is_asked_for_by_another_way_at_once",
        ),
    ),
    Mutant(
        "key answers belong to one request",
        "anabranch.core.key_records:_answer_digest",
        "return hashlib.sha256(_ANSWER_DOMAIN + network + asked + body).digest()",
        "return hashlib.sha256(_ANSWER_DOMAIN + network + asked[:0] + body).digest()",
        ("tests/core/test_key_records.py::test_an_answer_is_to_one_request_in_one_network",),
    ),
    Mutant(
        "a group key fits its id",
        "anabranch.core.encryption:GroupKey.fits",
        "return len(self.secret) == KEY_BYTES and key_id(self.secret) == self.id",
        "return len(self.secret) == KEY_BYTES",
        (
            "tests/core/test_key_asking.py::test_a_publisher_that_gives_a_key_which_does_not_fit_its_id_has_refused",
        ),
    ),
    Mutant(
        "learned keys are checked against their id",
        "anabranch.core.group_keys:KeyRing.learn",
        "if not key.fits or self.find(stream, publisher, key.id) is not None:",
        "if self.find(stream, publisher, key.id) is not None:",
        ("tests/core/test_group_keys.py::test_a_key_that_does_not_fit_its_id_is_not_learned",),
    ),
    Mutant(
        "a ciphertext opens in its own frame only",
        "anabranch.core.encryption:_place",
        "return domain + head.part + head.chain + head.first.to_bytes(8) + head.last.to_bytes(8)",
        "return domain + head.part",
        ("tests/core/test_encryption.py::test_items_open_in_their_own_place_only",),
    ),
    Mutant(
        "keys are given after the registry was asked anew",
        "anabranch.core.key_answering:Answering.judge",
        "confirmed = self._registry.confirmed_at(stream) >= pending.came_at",
        "confirmed = self._registry.confirmed_at(stream) >= 0",
        (
            "tests/core/test_key_answering.py::test_nobody_is_answered_before_the_registry_has_confirmed_it",
        ),
    ),
    Mutant(
        "a holder gives keys while it may read",
        "anabranch.core.key_answering:Answering._answered",
        "permitted = permitted and may(stream, self._signer.node, Right.SUBSCRIBE, now)",
        "permitted = permitted and bool(stream)",
        (
            "tests/core/test_key_answering_others.py::test_who_does_not_read_or_may_not_gives_no_keys",
        ),
    ),
    Mutant(
        "key requests are recent",
        "anabranch.core.key_answering:Answering._read",
        "return question if recent else None",
        "return question",
        (
            "tests/core/test_key_answering.py::test_what_is_wrong_with_a_request_is_not_the_fault_of_who_carried_it",
        ),
    ),
    Mutant(
        "key requests count once",
        "anabranch.core.key_answering:Answering._wait",
        "if hashed in self._taken or not self._has_room(sender):",
        "if not self._has_room(sender):",
        ("tests/core/test_key_answering.py::test_a_request_is_answered_once_whoever_repeats_it",),
    ),
    Mutant(
        "pending key requests of a peer are bounded",
        "anabranch.core.key_answering:Answering._has_room",
        "return len(self._pending) < MAX_PENDING and pending < MAX_PENDING_PER_PEER",
        "return len(self._pending) < MAX_PENDING",
        ("tests/core/test_key_answering.py::test_what_waits_is_bounded_in_all_and_for_each_peer",),
    ),
    Mutant(
        "pending key requests are bounded",
        "anabranch.core.key_answering:Answering._has_room",
        "return len(self._pending) < MAX_PENDING and pending < MAX_PENDING_PER_PEER",
        "return pending < MAX_PENDING_PER_PEER",
        ("tests/core/test_key_answering.py::test_what_waits_is_bounded_in_all_and_for_each_peer",),
    ),
    Mutant(
        "answers come from who may have the keys",
        "anabranch.core.key_asking:Asking._check_other",
        "if not any(may(stream, reply.by, right, now) for right in (SUBSCRIBE, PUBLISH)):",
        "if not any(stream for right in (SUBSCRIBE, PUBLISH)):",
        ("tests/core/test_key_asking_others.py::test_a_faithless_holder_only_delays",),
    ),
    Mutant(
        "a key answer comes from who was asked",
        "anabranch.core.key_asking:Asking.answer",
        "if ask.sent_to != sender:",
        "if not sender:",
        ("tests/core/test_key_asking.py::test_only_who_was_asked_is_believed",),
    ),
    Mutant(
        "keys of who could never publish are none",
        "anabranch.core.key_asking:Asking._take",
        "if not problem and not self._registry.wrote(stream, publisher):",
        "if not problem and not stream:",
        ("tests/core/test_key_asking.py::test_the_keys_of_who_never_could_publish_are_not_taken",),
    ),
    Mutant(
        "a lapse begins a new key",
        "anabranch.core.group_keys:Locks._look",
        "elif state is not None and state.lapsed(current.looked_at, now):",
        "elif state is not None and not stream:",
        ("tests/core/test_group_keys.py::test_who_came_and_went_unseen_is_counted_as_a_reader",),
    ),
    Mutant(
        "who was given a key counts as a reader",
        "anabranch.core.group_keys:Locks.gave",
        "current.readers |= {user}",
        "current.readers |= set()",
        (
            "tests/core/test_group_keys.py::test_who_was_let_in_given_the_key_and_removed_between_two_frames_cannot_use_it",
        ),
    ),
    Mutant(
        "keys are rotated with time",
        "anabranch.core.group_keys:Locks.next",
        "if current.frames >= ROTATE_FRAMES or now - current.since >= ROTATE_S:",
        "if current.frames >= ROTATE_FRAMES:",
        ("tests/core/test_group_keys.py::test_after_an_hour_a_frame_carries_the_next_key",),
    ),
    Mutant(
        "keys are rotated with use",
        "anabranch.core.group_keys:Locks.next",
        "if current.frames >= ROTATE_FRAMES or now - current.since >= ROTATE_S:",
        "if now - current.since >= ROTATE_S:",
        ("tests/core/test_group_keys.py::test_after_many_frames_a_frame_carries_the_next_key",),
    ),
    Mutant(
        "a stream is private unless the registry says otherwise",
        "anabranch.core.group_keys:Locks._look",
        "readers = frozenset[NodeId]() if state is None else state.readers(now)",
        "readers = frozenset([PUBLIC]) if state is None else state.readers(now)",
        ("tests/core/test_group_keys.py::test_what_the_registry_does_not_know_is_kept_secret",),
    ),
    Mutant(
        "keys of others are bounded for each publisher",
        "anabranch.core.group_keys:KeyRing.learn",
        "if len(learned) > MAX_KEYS_EACH:",
        "if len(learned) < 0:",
        (
            "tests/core/test_group_keys.py::test_of_a_publishers_keys_the_ring_keeps_those_used_last",
        ),
    ),
)
