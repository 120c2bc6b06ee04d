"""The registry: signatures and rights of changes, concurrency, quotas, and lying trackers."""

from mutants.mutation import Mutant

REGISTRY = (
    Mutant(
        "changes are signed for one network",
        "anabranch.core.changes:signed_digest",
        "return hashlib.sha256(_SIGNED_DOMAIN + network + len(body).to_bytes(4) + body).digest()",
        "return hashlib.sha256(_SIGNED_DOMAIN + len(body).to_bytes(4) + body).digest()",
        ("tests/core/test_changes.py::test_a_change_of_another_network_is_not_valid_here",),
    ),
    Mutant(
        "the genesis record is what the network is named after",
        "anabranch.core.registry:NetworkState.begin",
        "if network_name(encoded) != self.network:",
        "if not encoded:",
        ("tests/core/test_registry.py::test_the_network_begins_with_the_record_that_names_it",),
    ),
    Mutant(
        "only partitions that exist are published to",
        "anabranch.core.registry_reader:RegistryReader.permits",
        "if not state or not state.created or part.partition >= state.created.partitions:",
        "if not state or not state.created:",
        (
            "tests/core/test_registry_reader.py::test_the_directory_and_permissions_come_from_the_chain",
        ),
    ),
    Mutant(
        "what no tracker confirms does not count",
        "anabranch.core.registry_reader:RegistryReader._counting",
        "return self.stream(stream) if followed and now < self._counts_until(followed) else None",
        "return self.stream(stream) if followed else None",
        (
            "tests/core/test_registry_reader.py::test_right_that_has_to_be_confirmed_counts_until_then",
        ),
    ),
    Mutant(
        "changes need the right",
        "anabranch.core.registry:StreamState.allow",
        "if not self.held(author, at_ms) & needed:",
        "if not needed:",
        ("tests/core/test_registry.py::test_rights_are_needed_and_are_enough",),
    ),
    Mutant(
        "only the owner changes the network",
        "anabranch.core.registry:NetworkState.allow",
        "if self.genesis is None or author != self.genesis.owner:",
        "if self.genesis is None:",
        ("tests/core/test_registry.py::test_the_networks_owner_names_its_trackers",),
    ),
    Mutant(
        "what a reduced change takes away stays away",
        "anabranch.core.resolution:_reduced",
        "state.hold(node, Permission(held.rights & ~taken, held.expires_ms))",
        "state.hold(node, held)",
        ("tests/core/test_resolution.py::test_who_is_removed_takes_away_all_the_same",),
    ),
    Mutant(
        "a deletion wins over concurrent changes",
        "anabranch.core.resolution:Rivals.disarm",
        "return is_deleted or self.rob(entry)",
        "return self.rob(entry)",
        (
            "tests/core/test_resolution.py::test_stream_deleted_and_created_beside_another_deletion_stays_deleted",
        ),
    ),
    Mutant(
        "streams of an owner are bounded",
        "anabranch.core.quotas:Quotas._check_streams",
        "if len(names) == MAX_STREAMS_OF_OWNER and names[-1].startswith(owner):",
        "if len(names) < 0:",
        ("tests/core/test_quotas.py::test_an_owner_has_so_many_streams",),
    ),
    Mutant(
        "changes of an author come at a rate",
        "anabranch.core.quotas:Quotas.charge",
        "if not self._allowance(change.author, now).spend(now):",
        "if not change.author:",
        (
            "tests/core/test_quotas.py::test_an_author_may_write_so_much_and_takes_nothing_from_others",
        ),
    ),
    Mutant(
        "a full registry takes revocations only",
        "anabranch.core.quotas:Quotas.charge",
        "if is_full and change.author != owner and not _only_removes(history.state, change):",
        "if is_full and not change.author:",
        (
            "tests/core/test_quotas.py::test_a_full_registry_takes_only_what_its_owner_adds_and_what_takes_away",
        ),
    ),
    Mutant(
        "a full registry still takes revocations",
        "anabranch.core.quotas:Quotas.charge",
        "if is_full and change.author != owner and not _only_removes(history.state, change):",
        "if is_full and change.author != owner:",
        (
            "tests/core/test_quotas.py::test_a_full_registry_takes_only_what_its_owner_adds_and_what_takes_away",
        ),
    ),
    Mutant(
        "a chain of changes is bounded for others",
        "anabranch.core.history:History._check_room",
        "if not is_owner and self.height >= MAX_CHANGES:",
        "if self.height < 0:",
        ("tests/core/test_history.py::test_a_chain_has_an_end_and_the_owner_comes_last",),
    ),
    Mutant(
        "changes name those before them",
        "anabranch.core.history:History._check_place",
        "elif any(parent not in self._entries for parent in change.parents):",
        "elif not change.parents:",
        ("tests/core/test_history.py::test_a_change_stands_where_it_says",),
    ),
    Mutant(
        "a change is no older than those before it",
        "anabranch.core.history:History._check_place",
        "if any(change.at_ms < entry.at_ms for entry in named):",
        "if any(change.at_ms < 0 for entry in named):",
        ("tests/core/test_history.py::test_a_change_stands_where_it_says",),
    ),
    Mutant(
        "a change is as deep as it lies",
        "anabranch.core.history:History._check_place",
        "if change.depth != 1 + max((entry.depth for entry in named), default=0):",
        "if change.depth < 0:",
        ("tests/core/test_history.py::test_a_change_stands_where_it_says",),
    ),
    Mutant(
        "a change belongs to its chain",
        "anabranch.core.history:History._check_place",
        "if change.chain != self.chain:",
        "if not change.chain:",
        ("tests/core/test_history.py::test_a_change_stands_where_it_says",),
    ),
    Mutant(
        "a page of changes agrees with its head",
        "anabranch.core.followed_chain:FollowedChain.take",
        "if head != page.head or (is_all and head != history.head):",
        "if not head:",
        (
            "tests/core/test_followed_chain.py::test_a_sequence_that_is_not_in_the_canonical_order_is_found_out",
        ),
    ),
    Mutant(
        "a tracker that hides a change is left",
        "anabranch.core.registry_reader:RegistryReader._suspect",
        'return [Notice(None, "stale-tracker", detail), *self._sources.leave(tracker, now)]',
        'return [Notice(None, "stale-tracker", detail)]',
        (
            "tests/core/test_registry_reader_hiding.py::test_a_hidden_revocation_counts_when_the_honest_tracker_is_read",
        ),
    ),
    Mutant(
        "a silent writer is passed over",
        "anabranch.core.succession:Succession.wake",
        "entry.silent.append(entry.to)",
        "assert entry.to",
        (
            "tests/core/test_succession.py::test_a_first_tracker_that_says_nothing_keeps_nothing_out_of_the_registry",
        ),
    ),
    Mutant(
        "a tracker that refuses what is right is doubted",
        "anabranch.core.succession:Succession.written",
        "if message.problem and fits and self._me in self._order:",
        "if message.problem and fits and not self._order:",
        (
            "tests/core/test_succession.py::test_what_it_refuses_without_reason_is_written_by_the_next",
        ),
    ),
    Mutant(
        "a tracker writes after those before it are gone",
        "anabranch.core.succession:Succession._writes_at",
        "if self._me not in self._order or any(node in self._links for node in before):",
        "if self._me not in self._order:",
        (
            "tests/core/test_succession.py::test_the_first_of_the_list_writes_and_the_others_pass_on_what_they_are_asked",
        ),
    ),
)
