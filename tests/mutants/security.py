"""The attacks of docs/security.md: each row of its table is an entry with its mutant.

To add a row, add an entry where its attacker stands: who tries what, what comes of it, the rule that
prevents it as a mutant, and the test that fails without the rule. Then run `make docs`.
"""

from mutants.mutation import Mutant, Row

SOMEBODY_WITHOUT_RIGHTS = "Somebody without rights"
SOMEBODY_ON_THE_PATH = "Somebody on the path of a link"
SOMEBODY_WHOSE_RIGHT_HAS_ENDED = "Somebody whose right has ended"
A_NEIGHBOUR = "A neighbour"
A_TRACKER = "A tracker"
A_STORAGE_NODE = "A storage node"
A_STORAGE_NEIGHBOUR = "A neighbour of a storage node"
WHO_ASKS_A_STORAGE_NODE = "Who asks a storage node"
ATTACKERS = (  # in the order of the page
    *(SOMEBODY_WITHOUT_RIGHTS, SOMEBODY_ON_THE_PATH, SOMEBODY_WHOSE_RIGHT_HAS_ENDED, A_NEIGHBOUR),
    *(A_TRACKER, A_STORAGE_NODE, WHO_ASKS_A_STORAGE_NODE, A_STORAGE_NEIGHBOUR),
)

SECURITY = (
    Mutant(
        "publishing takes the right to publish",
        "anabranch.core.incoming:Incoming._pass",
        "if not (permission.everyone or permission.allows_chain(part, head.part, head.chain, now)):",
        "if not (permission.everyone or part):",
        ("tests/scenarios/test_attack_publishing.py::test_publishing_without_permission",),
        scenario="random-trust",
        seeds=30,
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "publishes to a stream",
            "dropped at the first honest node, and counted there; a grant that is on its way is waited for, for 2 s",
        ),
    ),
    Mutant(
        "neighbours of a private stream have rights",
        "anabranch.core.company:Company._unfit",
        "return [p for p, user in users if not user or not self._has_place(part.stream, user, now)]",
        "return [p for p, user in users if not p]",
        ("tests/scenarios/test_attack_reading.py::test_no_neighbours_without_permission",),
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "asks a tracker, or a node, to be its neighbour",
            "refused by both, once the stream is not public",
        ),
    ),
    Mutant(
        "keys go to who may subscribe",
        "anabranch.core.key_answering:Answering._answered",
        "permitted = may(stream, question.user, Right.SUBSCRIBE, now)",
        "permitted = bool(question.user)",
        ("tests/scenarios/test_attack_reading.py::test_no_keys_without_permission",),
        scenario="random-trust",
        seeds=30,
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "asks a publisher for its keys",
            "refused, after the registry was asked anew",
        ),
    ),
    Mutant(
        "a holder gives keys to who may subscribe",
        "anabranch.core.key_answering:Answering._answered",
        "keys = self._others(question) if permitted else []",
        "keys = self._others(question)",
        (
            "tests/core/test_key_answering_others.py::test_who_may_not_read_gets_nothing_and_is_refused_by_nobody",
        ),
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "asks another who reads for the keys of a publisher that is gone",
            "gets no answer: the registry was asked anew there, too",
        ),
    ),
    Mutant(
        "key requests are signed by their user",
        "anabranch.core.key_records:read_request",
        "if not curve.verify(question.user, _request_digest(body), signature):",
        "if not body:",
        ("tests/scenarios/test_attack_reading.py::test_a_key_request_in_somebodys_name",),
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "asks for keys in the name of somebody who may have them",
            "the request is signed by that name or it counts for nothing; the answer opens with that user's key alone",
        ),
    ),
    Mutant(
        "a stream is created by its owner",
        "anabranch.core.registry:StreamState.allow",
        "if author != self.owner:",
        "if not author:",
        ("tests/scenarios/test_attack_publishing.py::test_a_stolen_name_of_a_stream",),
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "creates or changes a stream under another's address",
            "refused by every tracker and every reader",
        ),
    ),
    Mutant(
        "frames are verified",
        "anabranch.core.incoming:Incoming.settle",
        "if not verify(publisher, covered, signature):",
        "if not verify(publisher, covered, signature) and not publisher:",
        ("tests/scenarios/test_attack_publishing.py::test_a_stolen_name_of_a_publisher",),
        scenario="random",
        seeds=50,
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "signs messages in another's name",
            "dropped, and the link that brought them is cut",
        ),
    ),
    Mutant(
        "the acceptor checks the dialler",
        "anabranch.core.handshake:Accepting.admit",
        "if not verify(hello.node, digest(_DIALLER, hello, *self._ours), proof.signature):",
        "if not hello:",
        ("tests/scenarios/test_attack_publishing.py::test_a_stolen_name_of_a_node",),
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS, "opens a link in another node's name", "the link does not open"
        ),
    ),
    Mutant(
        "connections of an address are bounded",
        "anabranch.live.transports.limits:Admission._has_room",
        "return entry.pending < limits.pending_per_address or evict(place)",
        "return bool(evict)",
        ("tests/scenarios/test_attack_nodes.py::test_floods_of_handshakes",),
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "opens very many links, or half of them",
            "limits per address and in all; others still get in",
        ),
    ),
    Mutant(
        "private contents are encrypted",
        "anabranch.core.group_keys:Locks.next",
        "if PUBLIC in current.readers:",
        "if current.readers:",
        (
            "tests/scenarios/test_attack_reading.py::test_private_content_is_never_in_the_clear_on_the_wire",
        ),
        row=Row(
            SOMEBODY_WITHOUT_RIGHTS,
            "listens on the wire",
            "sees who talks to whom, and public contents; private contents never (`wss://` hides the rest)",
        ),
    ),
    Mutant(
        "stored keys are encrypted with the key of their user",
        "anabranch.live.key_store:KeyStore.__init__",
        "self._cipher = AESGCM(hashlib.sha256(_DOMAIN + secret).digest())",
        "self._cipher = AESGCM(hashlib.sha256(_DOMAIN).digest())",
        ("tests/scenarios/test_attack_reading.py::test_a_stolen_key_store_opens_nothing",),
        row=Row(SOMEBODY_WITHOUT_RIGHTS, "steals the key store's file", "opens nothing"),
    ),
    Mutant(
        "permissions expire",
        "anabranch.core.registry:Permission.at",
        "return 0 if self.expires_ms and self.expires_ms <= at_ms else self.rights",
        "return self.rights",
        ("tests/scenarios/test_attack_publishing.py::test_publishing_with_an_expired_permission",),
        row=Row(
            SOMEBODY_WHOSE_RIGHT_HAS_ENDED,
            "publishes after it expired",
            "dropped, at the time of receipt",
        ),
    ),
    Mutant(
        "a revocation takes the permission away",
        "anabranch.core.registry:StreamState.hold",
        "self.permissions.pop(node, None)",
        "self.permissions.get(node)",
        (
            "tests/scenarios/test_attack_publishing.py::test_publishing_after_the_permission_was_revoked",
        ),
        row=Row(
            SOMEBODY_WHOSE_RIGHT_HAS_ENDED,
            "publishes after it was revoked",
            "dropped as soon as the registry's word is there",
        ),
    ),
    Mutant(
        "a removal ends the current key",
        "anabranch.core.group_keys:Locks._look",
        "elif current.readers - readers or removals != current.removals:",
        "elif not readers:",
        ("tests/scenarios/test_attack_reading.py::test_a_removed_subscriber_cannot_read_on",),
        row=Row(
            SOMEBODY_WHOSE_RIGHT_HAS_ENDED,
            "goes on reading after its removal, with all the keys it has, and an accomplice who hands it frames",
            "opens nothing that was published after the publisher heard of it",
        ),
    ),
    Mutant(
        "an expiry ends the current key",
        "anabranch.core.group_keys:Locks._look",
        "until = None if expiry_ms is None else expiry_ms / 1000",
        "until = None",
        ("tests/scenarios/test_attack_reading.py::test_an_expired_subscriber_cannot_read_on",),
        row=Row(
            SOMEBODY_WHOSE_RIGHT_HAS_ENDED,
            "goes on reading after its permission expired",
            "the same, at the time of expiry",
        ),
    ),
    Mutant(
        "a removal ends the key whoever had it",
        "anabranch.core.group_keys:Locks._look",
        "elif current.readers - readers or removals != current.removals:",
        "elif current.readers - readers:",
        (
            "tests/core/test_key_answering_others.py::test_a_removal_rekeys_though_the_publisher_never_knew_who_had_the_key",
        ),
        row=Row(
            SOMEBODY_WHOSE_RIGHT_HAS_ENDED,
            "had the key from another reader, so that its publisher does not know who has it",
            "the key is replaced at every removal, whoever had it",
        ),
    ),
    Mutant(
        "a holder knows of as many removals as the key",
        "anabranch.core.key_answering:Answering._others",
        "if keys[-1].removals > state.removals:",
        "if keys[-1].removals > 1 << 40:",
        (
            "tests/core/test_key_answering_others.py::test_a_holder_that_is_shown_an_old_registry_does_not_give_what_was_made_to_exclude",
        ),
        row=Row(
            SOMEBODY_WHOSE_RIGHT_HAS_ENDED,
            "asks another reader for the new key, whose tracker hides the removal",
            "not given: the key says that there was one more removal",
        ),
    ),
    Mutant(
        "changes of who is removed concurrently come to nothing",
        "anabranch.core.resolution:Rivals.rob",
        "return bool(taken or self.taken_from(PUBLIC) & entry.of_everybody)",
        "return bool(self.taken_from(PUBLIC) & entry.of_everybody)",
        ("tests/core/test_resolution.py::test_who_is_removed_deletes_nothing",),
        row=Row(
            SOMEBODY_WHOSE_RIGHT_HAS_ENDED,
            "was an administrator, and has a tracker for an accomplice: pretends to have granted something, or deleted the stream, before its removal",
            "that comes to nothing, since the removal is concurrent with it; it can take rights from others so, never from the owner",
        ),
    ),
    Mutant(
        "a relay gets no keys",
        "anabranch.core.key_answering:Answering._answered",
        "permitted = may(stream, question.user, Right.SUBSCRIBE, now)",
        "permitted = bool(question.user)",
        ("tests/scenarios/test_attack_reading.py::test_who_only_carries_cannot_read",),
        scenario="random-trust",
        seeds=30,
        row=Row(
            A_NEIGHBOUR, "reads what it carries without the right to subscribe", "it has no key"
        ),
    ),
    Mutant(
        "a signature covers the whole frame",
        "anabranch.core.frames:proof",
        "return _hashed(frame[:-SIGNATURE_BYTES]), frame[-SIGNATURE_BYTES:]",
        "return _hashed(frame[:HEAD_BYTES]), frame[-SIGNATURE_BYTES:]",
        ("tests/scenarios/test_attack_publishing.py::test_an_altered_frame",),
        row=Row(A_NEIGHBOUR, "changes what it carries", "found by the next node; its link is cut"),
    ),
    Mutant(
        "a node that joins takes nothing old",
        "anabranch.core.parts:Parts.join",
        "floor = number_of(max(0, int((now - JOIN_WINDOW_S) * 1000)), 0)",
        "floor = 0",
        ("tests/scenarios/test_attack_publishing.py::test_a_replay_after_a_restart",),
        row=Row(
            A_NEIGHBOUR,
            "plays old messages back to a node that has restarted, or later",
            "older than a minute before the restart, or than 5 minutes: dropped",
        ),
    ),
    Mutant(
        "frames go on to all neighbours",
        "anabranch.overlays.random_regular:RandomRegular.carry",
        "branches = self._members[part].branches(came_from, route)",
        "branches = self._members[part].branches(came_from, route)[:1]",
        ("tests/overlays/test_random_regular.py::test_a_frame_goes_to_all_but_where_it_came_from",),
        row=Row(
            A_NEIGHBOUR, "passes nothing on", "the others do: every node has several neighbours"
        ),
    ),
    Mutant(
        "keys are asked for by another way each time",
        "anabranch.core.key_asking:Asking._ask",
        "ask.sent_to = ways[ask.tries % len(ways)] if ways else None",
        "ask.sent_to = ways[0] if ways else None",
        ("tests/scenarios/test_attack_nodes.py::test_a_relay_that_swallows_or_forges_keys",),
        row=Row(
            A_NEIGHBOUR,
            "swallows or forges the keys that pass through it",
            "forged ones are not signed; swallowed ones are asked for through another neighbour",
        ),
    ),
    Mutant(
        "another than the publisher gives all keys",
        "anabranch.core.key_asking:Asking._check_other",
        "if not given.issuperset(ask.key_ids):",
        "if given is None:",
        ("tests/core/test_key_asking_others.py::test_a_faithless_holder_only_delays",),
        row=Row(
            A_NEIGHBOUR,
            "gives false keys in a publisher's stead, or refuses them in its stead",
            "a key that does not fit its id is none, and to refuse is the publisher's alone: another is asked",
        ),
    ),
    Mutant(
        "a flood of useless packets ends a link",
        "anabranch.core.links:Links.strain",
        "if link.patience < 0:",
        "if link.patience < -1e9:",
        ("tests/scenarios/test_attack_nodes.py::test_floods_of_key_requests",),
        row=Row(
            A_NEIGHBOUR, "asks for keys without end", "bounded per neighbour, then its link is cut"
        ),
    ),
    Mutant(
        "a link counts if both ends report it",
        "anabranch.core.tracked:TrackedPart.is_reported",
        "return b in self.nodes[a].reported and a in self.nodes[b].reported",
        "return b in self.nodes[a].reported",
        (
            "tests/core/test_tracker_lies.py::test_a_link_that_only_one_end_reports_is_not_taken_over",
        ),
        row=Row(
            A_NEIGHBOUR,
            "lies to the tracker about its neighbours, its address or its past",
            "a link counts if both ends report it; complaints, moves and returns count only so often",
        ),
    ),
    Mutant(
        "absurd delays cost the chosen neighbours",
        "anabranch.overlays.latency_aware:LatencyAware",
        "self._doubted[node] = now + DOUBTED_S",
        "self._doubted.pop(node, None)",
        (
            "tests/overlays/test_latency_aware.py::test_who_claims_to_be_far_from_its_fellows_has_random_neighbours",
        ),
        row=Row(
            A_NEIGHBOUR,
            "lies about its delays, to be given other neighbours",
            "of two claims the longer one counts; who claims what the ways around do not bear out has random neighbours",
        ),
    ),
    Mutant(
        "registry reads have a witness",
        "anabranch.core.registry_sources:Sources.readers",
        "return tuple(quick[:MAX_READERS] or up[:1])",
        "return tuple(quick[:1] or up[:1])",
        ("tests/scenarios/test_attack_trackers.py::test_a_tracker_that_hides_a_revocation",),
        row=Row(
            A_TRACKER,
            "serves the registry as it was before a revocation",
            "nodes compare it with another tracker, find it out within some ten seconds of comparing, and leave it; the revocation counts from the moment they read it elsewhere",
        ),
    ),
    Mutant(
        "changes are signed by their author",
        "anabranch.core.history:check_signature",
        "if not verify(change.author, signed_digest(network, body), signature):",
        "if not encoded:",
        ("tests/scenarios/test_attack_trackers.py::test_a_tracker_that_forges_changes",),
        scenario="random-trust",
        seeds=30,
        row=Row(
            A_TRACKER,
            "adds a change of its own, or alters one",
            "not signed by who may: its link is cut",
        ),
    ),
    Mutant(
        "a change is shown to other trackers",
        "anabranch.core.registry_requests:Requests.answer",
        "effects += [Send(other, shown) for other in others]",
        "assert shown",
        ("tests/scenarios/test_attack_trackers.py::test_a_tracker_that_keeps_a_revocation_out",),
        row=Row(
            A_TRACKER,
            "says that it has written a change and has not, or that the change is not allowed",
            "the change is shown to another tracker, too, and written there",
        ),
    ),
    Mutant(
        "a flood of instructions costs the link",
        "anabranch.overlays.random_regular:RandomRegular._instructed",
        "member.count_word(now)",
        "assert member",
        ("tests/scenarios/test_attack_trackers.py::test_a_tracker_that_sends_false_instructions",),
        row=Row(
            A_TRACKER,
            "gives false instructions: wrong counters, too many neighbours, nodes that do not exist",
            "ignored or undone; a flood of them costs it the link",
        ),
    ),
    Mutant(
        "neighbours that a tracker names have rights",
        "anabranch.core.company:Company._unfit",
        "return [p for p, user in users if not user or not self._has_place(part.stream, user, now)]",
        "return [p for p, user in users if not p]",
        ("tests/scenarios/test_attack_trackers.py::test_a_tracker_that_places_colluders",),
        row=Row(
            A_TRACKER,
            "makes colluders the neighbours of a node",
            "those without rights on the stream are not met, and get nothing",
        ),
    ),
    Mutant(
        "revocation wins over a concurrent grant",
        "anabranch.core.resolution:_act_beside",
        "rights = (held.rights | given & ~rivals.taken_from(action.node)) & ~taken",
        "rights = (held.rights | given) & ~taken",
        ("tests/scenarios/test_attack_trackers.py::test_a_grant_and_a_revocation_on_two_trackers",),
        row=Row(
            A_TRACKER,
            "and another one cannot see each other, and take a grant and its revocation",
            "when they meet, both have both, and the revocation holds everywhere",
        ),
    ),
    Mutant(
        "the next tracker takes over",
        "anabranch.core.succession:Succession._writes_at",
        "return max([self._ready_at(now), *(self._gone_at[node] + TAKEOVER_S for node in before)])",
        'return self._ready_at(now) if not before else float("inf")',
        ("tests/scenarios/test_attack_trackers.py::test_takeover_when_the_writer_dies",),
        row=Row(
            A_TRACKER,
            "dies while it writes the registry",
            "the next takes over; what was acknowledged is there",
        ),
    ),
    Mutant(
        "a source that lied is passed over",
        "anabranch.core.gaps:Gaps._ask_next",
        "if source.contact.node not in gap.bad:",
        "if source.contact.node:",
        ("tests/core/test_gaps.py::test_one_that_lied_is_not_asked_again_for_that",),
        row=Row(
            A_STORAGE_NODE,
            "sends forged frames, those of another stream, or none at all when it is asked for what is missing",
            "every frame is checked; another storage node, or a neighbour, is asked",
        ),
    ),
    Mutant(
        "what is good of a forger is taken in the end",
        "anabranch.core.replay:Replay._doubts",
        "return len(self._forgers) < self._keepers and not is_last_round",
        "return True",
        (
            "tests/core/test_replay.py::test_one_that_forges_alone_does_not_keep_what_is_good_from_us",
        ),
        row=Row(
            A_STORAGE_NODE,
            "sends a false past, or one without an end",
            "what is good of it is taken, and the next one goes on",
        ),
    ),
    Mutant(
        "what the past should hold is asked for",
        "anabranch.core.subscription:Subscription._floor_of",
        "return max(self._past[1], self._forgotten)",
        "return max(self._floor, self._forgotten)",
        (
            "tests/core/test_replay.py::test_a_storage_node_that_hides_all_is_found_out_by_what_is_live",
        ),
        row=Row(
            A_STORAGE_NODE,
            "hides the past",
            "found out by the first new message, and asked of another",
        ),
    ),
    Mutant(
        "receipts are signed by the storage node",
        "anabranch.core.receipts:Receipts._acknowledged",
        "check_receipt(self._network, part, self._verify, sender, message)",
        "assert self._verify",
        ("tests/core/test_receipts.py::test_a_false_word_costs_the_link_and_counts_for_nothing",),
        row=Row(
            A_STORAGE_NODE,
            "signs a receipt in another's name, or for another frame",
            "its link is cut, and it counts for nothing",
        ),
    ),
    Mutant(
        "a storage node gets no keys",
        "anabranch.core.group_keys:Locks.next",
        "if PUBLIC in current.readers:",
        "if current.readers:",
        ("tests/scenarios/test_attack_reading.py::test_who_only_carries_cannot_read",),
        row=Row(
            A_STORAGE_NODE,
            "reads a private stream",
            "it keeps what it cannot open: it has no key, and none is given to it",
        ),
    ),
    Mutant(
        "a reader asks others for what one storage node lacks",
        "anabranch.core.replay:Replay._lacks",
        "if all(each.node in self._lackers or self._is_absent(each, now) for each in keepers):",
        "if keepers:",
        (
            "tests/core/test_replay_damage.py::test_a_node_that_claims_damage_where_there_is_none_hides_nothing",
        ),
        row=Row(
            A_STORAGE_NODE,
            "claims that a part of the log is damaged",
            "the others are asked; only what nobody sends is reported as lost",
        ),
    ),
    Mutant(
        "what fills a hole leads to the hash behind it",
        "anabranch.live.storage.holes:fill",
        "is_wrong = end == hole.end and reached != hash_at(database, log, hole.end)",
        "is_wrong = False",
        ("tests/live/storage/test_damage.py::test_wrong_entries_do_not_stay",),
        row=Row(
            A_STORAGE_NODE,
            "sends false entries to one that repairs its log",
            "each frame's signature is checked, and the hash behind the hole proves the places; else all are dropped",
        ),
    ),
    Mutant(
        "a publisher forgets a frame when a majority has signed",
        "anabranch.core.unstored:UnstoredFrames._count",
        "if sum(1 for node in kept.marks if node in state.nodes) >= state.majority:",
        "if kept.marks:",
        (
            "tests/core/test_unstored.py::test_a_false_mark_of_one_storage_node_does_not_end_the_offers_to_the_others",
        ),
        row=Row(
            A_STORAGE_NODE,
            "signs that frames are stored, so that their publisher forgets them",
            "a majority of the storage nodes that the ledger names has to sign",
        ),
    ),
    Mutant(
        "a majority denies a frame with given numbers",
        "anabranch.core.unstored:UnstoredFrames.otherwise",
        "if sum(1 for each in kept.others if each in nodes) <= len(nodes) // 2:",
        "if not nodes:",
        (
            "tests/core/test_receipts_given.py::test_a_given_frame_that_one_storage_node_denies_is_stored_when_a_majority_signs",
        ),
        row=Row(
            A_STORAGE_NODE,
            "signs for another frame with the numbers that a publisher gave",
            "a majority has to sign for the other one, before the publisher believes it",
        ),
    ),
    Mutant(
        "a claim that is not honoured costs the link",
        "anabranch.core.storage_comparison:Comparisons._heard_frames",
        "is_short = not page.frames if page.more else group.came < group.required",
        "is_short = False",
        (
            "tests/core/test_storage_comparison.py::test_a_claim_that_is_not_honoured_costs_the_link",
        ),
        row=Row(
            A_STORAGE_NEIGHBOUR,
            "claims frames that it does not have, in a comparison",
            "a claim changes nothing: only whole frames count, with the signature of a permitted publisher; if the frames do not come, it loses its link",
        ),
    ),
    Mutant(
        "found frames are signed by their publisher",
        "anabranch.core.storage_comparison:Comparisons._is_good",
        "if not self._verified.check(head, frame):",
        "if not frame:",
        ("tests/core/test_storage_comparison.py::test_a_forged_frame_costs_the_link",),
        row=Row(
            A_STORAGE_NEIGHBOUR,
            "hands over forged frames",
            "nothing of that page is taken, and it loses its link",
        ),
    ),
    Mutant(
        "found frames lie in the range that was claimed",
        "anabranch.core.storage_comparison:Comparisons._is_good",
        "if not (is_within and is_next and group.came <= group.claimed):",
        "if not head.count:",
        (
            "tests/core/test_storage_comparison.py::test_frames_that_were_not_asked_for_cost_the_link",
        ),
        row=Row(
            A_STORAGE_NEIGHBOUR,
            "hands over frames that were not asked for",
            "nothing of that page is taken, and it loses its link",
        ),
    ),
    Mutant(
        "a neighbour without an answer is compared with less often",
        "anabranch.core.storage_comparison:Comparisons._end",
        "pair.wait_s = min(MAX_BACK_OFF_S, pair.wait_s * 2)",
        "pair.wait_s = EVERY_S",
        (
            "tests/core/test_storage_comparison.py::test_a_false_digest_alone_makes_few_questions_and_fewer_with_time",
            "tests/core/test_storage_comparison.py::test_a_member_that_does_not_answer_is_asked_less_and_less_often",
        ),
        row=Row(
            A_STORAGE_NEIGHBOUR,
            "claims without an end, sends false digests, or does not answer",
            "one comparison at a time, 16 reports in each, and pauses of up to 5 minutes between those that bring nothing",
        ),
    ),
    Mutant(
        "found frames are of who may publish now",
        "anabranch.core.storage_comparison:Comparisons._problem_with",
        "if not self._registry.permits(log.part, head.publisher, now):",
        "if not log.part:",
        (
            "tests/core/test_storage_comparison.py::test_a_removed_publisher_cannot_add_to_the_past_with_an_accomplice",
        ),
        row=Row(
            A_STORAGE_NEIGHBOUR,
            "hands over frames of a publisher that may not publish, such as backdated frames of a removed one",
            "not taken, whatever time they name",
        ),
    ),
    Mutant(
        "the frames of one publisher that are found are bounded",
        "anabranch.core.storage_comparison:Comparisons._allows",
        "if allowance.left < size:",
        "if size < 0:",
        (
            "tests/core/test_storage_comparison.py::test_of_one_publisher_only_so_many_bytes_are_taken_at_once",
        ),
        row=Row(
            A_STORAGE_NEIGHBOUR,
            "hands over very much of one publisher",
            "16 MiB at once, 1 MiB a second after that; other publishers' frames are taken",
        ),
    ),
    Mutant(
        "marks are signed by their nodes",
        "anabranch.core.log_marks:Notary.check",
        "if not self._verify(mark.node, self._digest(part, mark), mark.signature):",
        "if not mark.signature:",
        (
            "tests/core/test_log_recovery.py::test_forged_mark_costs_the_link_and_changes_nothing",
            "tests/core/test_log_marks.py::test_marks_of_strangers_and_of_other_logs_decide_nothing",
        ),
        row=Row(
            A_STORAGE_NODE,
            "claims that another one has forgotten a part of its log",
            "only what that one has signed itself counts; a forged mark costs the link",
        ),
    ),
    Mutant(
        "a log is replaced only against marks of a majority",
        "anabranch.core.log_marks:Marks._judged",
        "if against >= standing.majority and len(standing.members) > 1:",
        "if against:",
        ("tests/core/test_log_marks.py::test_one_node_that_signs_twice_is_no_majority",),
        row=Row(
            A_STORAGE_NODE,
            "says that a settled part of the log is another one",
            "no log is replaced unless a majority has signed for another; both are reported",
        ),
    ),
    Mutant(
        "the past is read with the right to subscribe",
        "anabranch.core.storage_resends:Resends._problem",
        "if not self._readers.may_read(resend.part.stream, sender, now):",
        "if not sender:",
        (
            "tests/core/test_storage_resends.py::test_who_may_not_subscribe_gets_nothing_and_the_registry_is_asked",
        ),
        row=Row(
            WHO_ASKS_A_STORAGE_NODE,
            "wants the past of a stream that it may not read",
            "refused, over links",
        ),
    ),
    Mutant(
        "a right is looked up for every page",
        "anabranch.live.storage.http:StorageHttp._may",
        "return self._registry.may(part.stream, user, Right.SUBSCRIBE, self._clock())",
        "return bool(user)",
        ("tests/live/storage/test_http.py::test_a_permission_that_ends_takes_effect",),
        row=Row(
            WHO_ASKS_A_STORAGE_NODE,
            "wants it over HTTP, with another's token or an old one",
            "refused; a permission that ends takes effect within a page",
        ),
    ),
    Mutant(
        "handed frames are verified",
        "anabranch.core.storage:Storage._hand",
        "if not self.verified.check(head, frame):",
        "if not frame:",
        ("tests/core/test_storage.py::test_a_forgery_and_a_frame_of_another_part_cost_the_link",),
        row=Row(
            WHO_ASKS_A_STORAGE_NODE,
            "hands over forged frames, or those of others",
            "not taken; forged ones cost the link",
        ),
    ),
    Mutant(
        "only fellows take part in a log",
        "anabranch.core.storage:Storage._from_fellow",
        "if log is None or not log.is_active or sender not in log.standing.members:",
        "if log is None or not log.is_active:",
        ("tests/core/test_storage.py::test_what_a_stranger_says_of_a_log_changes_nothing",),
        row=Row(
            WHO_ASKS_A_STORAGE_NODE,
            "says it is a storage node of the stream, and votes or sends a log",
            "nothing changes",
        ),
    ),
    Mutant(
        "pages of a peer are bounded",
        "anabranch.core.storage_resends:Resends._problem",
        'return BUSY if is_full or self._per_peer.get(sender, 0) >= MAX_PAGES_PER_PEER else ""',
        'return BUSY if is_full else ""',
        (
            "tests/core/test_storage_resends.py::test_one_reader_and_all_together_have_only_so_many_pages_looked_up_at_once",
        ),
        row=Row(
            WHO_ASKS_A_STORAGE_NODE,
            "asks for very much at once",
            "so many pages are looked up for one, and for all",
        ),
    ),
)
