"""Spark's exactly-once: numbers that follow from the batch, and storage nodes that may lie."""

from mutants.mutation import Mutant

SPARK = (
    Mutant(
        "a batch has the numbers of its first attempt",
        "anabranch.spark.epochs:Epoch.numbering",
        "return Numbering(last, max(self.began_ms << SEQUENCE_BITS, last + 1))",
        "return Numbering(last, self.began_ms << SEQUENCE_BITS)",
        (
            "tests/spark/test_epochs.py::test_a_batch_goes_on_from_the_one_before_even_if_the_clock_went_back",
        ),
    ),
    Mutant(
        "a chain names one task of one query",
        "anabranch.spark.epochs:Epoch.chain",
        "for text in (self.query, stream):",
        "for text in (stream,):",
        ("tests/spark/test_epochs.py::test_a_chain_belongs_to_a_query_a_task_and_a_part",),
    ),
    Mutant(
        "a chain names one task",
        "anabranch.spark.epochs:Epoch.chain",
        "digest.update(task.to_bytes(4) + bytes([partition]))",
        "digest.update(bytes([partition]))",
        ("tests/spark/test_epochs.py::test_a_chain_belongs_to_a_query_a_task_and_a_part",),
    ),
    Mutant(
        "nothing is begun at the end of a step",
        "anabranch.spark.epochs:Numbering.pause_ms",
        "return left_ms if left_ms <= GUARD_MS and self._late_ms(now_ms) >= 0 else 0",
        "return 0",
        ("tests/spark/test_epochs.py::test_nothing_is_begun_at_the_end_of_a_step",),
    ),
    Mutant(
        "a batch goes on from where chains stood",
        "anabranch.spark.epochs:Checkpoint._stands",
        "earlier = [number for number in self._numbers(NOTES) if number < batch]",
        "earlier = list(self._numbers(NOTES))",
        ("tests/spark/test_epochs.py::test_what_a_batch_notes_is_for_those_after_it",),
    ),
    Mutant(
        "a note is complete or absent",
        "anabranch.spark.epochs:Checkpoint.note",
        'self._files.move(f"{name}.new", name)',
        'self._files.copy_file(f"{name}.new", name)',
        ("tests/spark/test_epochs.py::test_old_notes_go",),
    ),
    Mutant(
        "a storage node that tells of too much is not believed",
        "anabranch.spark.logs:Logs._ask",
        "high = min(furthest.high, settled_at_most(answers, stream.copies))",
        "high = furthest.high",
        (
            "tests/spark/test_logs.py::test_one_that_tells_of_more_than_the_others_hold_is_not_believed",
        ),
    ),
    Mutant(
        "what is settled most storage nodes hold",
        "anabranch.spark.logs:settled_at_most",
        "holders = max(copies // 2 + 1 - silent, 1)",
        "holders = 1",
        (
            "tests/spark/test_logs.py::test_one_that_tells_of_more_than_the_others_hold_is_not_believed",
        ),
    ),
    Mutant(
        "a query refuses to overwrite",
        "anabranch.spark.sink:_refuse_to_overwrite",
        "if overwrite:",
        "if overwrite is None:",
        ("tests/spark/test_sink_errors.py::test_what_is_written_stays",),
    ),
    Mutant(
        "tasks that write are bounded",
        "anabranch.spark.sink:check_task",
        "if task >= MAX_TASKS:",
        "if task < 0:",
        ("tests/spark/test_sink_errors.py::test_more_tasks_than_nodes_can_tell_apart",),
    ),
)
