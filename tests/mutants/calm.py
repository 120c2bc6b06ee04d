"""Mutants that repair would hide: in runs without faults nothing may be lost, or done twice."""

from mutants.mutation import Mutant

RANDOM = ("tests/sim/test_calm_checker.py::test_random_calm_scenarios_repair_nothing",)

CALM = (
    Mutant(
        "readers get every frame when it comes",
        "anabranch.core.incoming:Incoming._pass",
        "            effects += reader.take(state, head, frame, hops, sender, now)",
        "            effects += reader.take(state, head, frame, hops, sender, now) if frame[-1] % 50 else []",
        RANDOM,
        scenario="random-calm",
        seeds=10,
    ),
    Mutant(
        "storage nodes get every frame when it comes",
        "anabranch.core.incoming:Incoming._deliver",
        "            effects += self._storage.take(state, head, frame, now)",
        "            effects += self._storage.take(state, head, frame, now) if frame[-1] % 50 else []",
        RANDOM,
        scenario="random-calm",
        seeds=10,
    ),
    Mutant(
        "every frame is forwarded",
        "anabranch.core.incoming:Incoming._pass",
        "effects.append(onward[0])  # as nearly always",
        "effects += onward if (int.from_bytes(frame[-2:]) + sender[0]) % 1000 else []",
        RANDOM,
        scenario="random-calm",
        seeds=10,
    ),
    Mutant(
        "a storage node verifies a frame once",
        "anabranch.core.incoming:Incoming.settle",
        "if new.frame in known:  # it was in a page of the leader's log",
        "if new.frame in ():",
        (
            "tests/sim/test_calm_checker.py::test_storage_nodes_verify_a_frame_once_whichever_way_it_comes_first",
        ),
        scenario="random-calm",
        seeds=10,
    ),
    Mutant(
        "held frames wait before they are handed on",
        "anabranch.core.log_handing:Handing.add_found",
        "came_at = min(now, row.entry.placed_ms / 1000)",
        "came_at = now - HAND_AFTER_S",
        (
            "tests/core/test_part_log_copying.py::test_held_frame_that_a_walk_finds_just_after_it_came_is_not_handed_on_at_once",
        ),
        scenario="random-calm",
        seeds=10,
    ),
    Mutant(
        "a follower gets an entry once",
        "anabranch.core.log_leading:Leading._is_under_way",
        "return is_asked and since is not None and now < since + AGAIN_S",
        "return is_asked and since is not None and now < 0",
        (
            "tests/core/test_part_log.py::test_idle_question_that_meets_an_entry_on_its_way_does_not_get_it_twice",
        ),
        scenario="random-calm",
        seeds=150,
    ),
    Mutant(
        "no log is read for frames that are on their way",
        "anabranch.core.sweeps:Sweeps._confirm",
        "came = arrivals.came - arrivals.newer",
        "came = 0",
        (
            "tests/core/test_sweeps.py::test_reader_far_away_reads_no_log_for_frames_that_are_on_their_way",
        ),
        scenario="random-calm",
        seeds=50,
    ),
    Mutant(
        "messages published after the log's length was told do not hide a missing one",
        "anabranch.core.sweeps:Sweeps._confirm",
        "came = arrivals.came - arrivals.newer",
        "came = arrivals.came",
        (
            "tests/core/test_sweeps.py::test_the_last_of_a_chain_is_found_although_others_go_on_and_come_late",
        ),
    ),
)
