"""Duplicates and order: what is new, what is too old, and in which order it is delivered."""

from mutants.mutation import Mutant

READING = (
    Mutant(
        "resent frames are verified",
        "anabranch.core.resends:Inspector.proves",
        "return self._verify(publisher, *frames.proof(frame))",
        "return bool(frame)",
        ("tests/core/test_resends.py::test_only_who_could_publish_proves_a_frame",),
    ),
    Mutant(
        "a frame seen is not new",
        "anabranch.core.duplicates:Duplicates.check",
        "return SEEN if last <= newest else CONTRADICTION",
        "return NEW if last <= newest else CONTRADICTION",
        ("tests/core/test_duplicates.py::test_script",),
    ),
    Mutant(
        "a frame that overlaps what is settled contradicts it",
        "anabranch.core.duplicates:Duplicates.check",
        "return SEEN if last <= newest else CONTRADICTION",
        "return SEEN",
        ("tests/core/test_duplicates.py::test_script",),
    ),
    Mutant(
        "a frame does not precede itself",
        "anabranch.core.duplicates:Duplicates.check",
        "if not previous < first <= last:",
        "if not previous <= last:",
        ("tests/core/test_duplicates.py::test_script",),
    ),
    Mutant(
        "nothing below the floor is new",
        "anabranch.core.duplicates:Duplicates.check",
        "return NEW if first > self._floor_of(key) else TOO_OLD",
        "return NEW",
        ("tests/core/test_duplicates.py::test_script",),
    ),
    Mutant(
        "a forgotten chain raises the floor",
        "anabranch.core.duplicates:Duplicates._evict",
        "if newest > self._floor_of(key):",
        "if newest < 0:",
        ("tests/core/test_duplicates.py::test_script",),
    ),
    Mutant(
        "chains of a node are bounded",
        "anabranch.core.duplicates:Duplicates._make_room",
        "if self._budget.used >= self._budget.limit:\n    self._budget.evict()\nreturn",
        "return",
        ("tests/core/test_duplicates.py::test_the_budget_evicts_from_the_part_that_knows_most",),
    ),
    Mutant(
        "chains of a publisher are bounded",
        "anabranch.core.duplicates:Duplicates._make_room",
        "if len(siblings) == at_limit - start and siblings[-1].startswith(publisher):",
        "if len(siblings) < 0:",
        ("tests/core/test_duplicates.py::test_script",),
    ),
    Mutant(
        "gaps of a chain are bounded",
        "anabranch.core.duplicates:Duplicates._store",
        "len(edges) // 2 > self._limits.gaps_per_chain or self._gaps >= self._limits.gaps",
        "self._gaps >= self._limits.gaps",
        ("tests/core/test_duplicates.py::test_script",),
    ),
    Mutant(
        "resends come from who was asked",
        "anabranch.core.resends:Resends.receive",
        "if question.to.node != sender:",
        "if not sender:",
        ("tests/core/test_resends.py::test_an_answer_in_somebody_elses_name_costs_its_link",),
    ),
    Mutant(
        "a page leads on",
        "anabranch.core.resends:leads_on",
        "if same != asked or following.start < asked.start:",
        "if not same:",
        ("tests/core/test_resends.py::test_what_follows_is_a_rest_of_what_was_asked_for",),
    ),
    Mutant(
        "pages of history are verified",
        "anabranch.core.replay:Replay._rows",
        "if head is None or not self._inspector.proves(self._open.part, head, frame):",
        "if head is None:",
        ("tests/core/test_replay.py::test_another_storage_node_goes_on_where_one_fails",),
    ),
    Mutant(
        "what waits for a gap is delivered in order",
        "anabranch.core.subscription:Subscription.take",
        "if positions.get(chain) == previous:",
        "if chain in positions:",
        ("tests/core/test_subscription.py::test_a_copy_is_dropped",),
    ),
    Mutant(
        "a subscriber is told of what it misses",
        "anabranch.core.subscription:Subscription._give_up",
        "effects += self._say(missed)",
        "assert missed",
        ("tests/core/test_subscription.py::test_after_so_many_attempts_it_goes_on_and_says_so",),
    ),
)
