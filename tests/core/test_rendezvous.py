"""Every part has its trackers in an order that everybody computes alike, and few parts move."""

from collections import Counter

from anabranch.core.changes import CreateStream, TrackerEntry
from anabranch.core.ids import StreamPart
from anabranch.core.messages import Contact
from anabranch.core.overlay import PartSettings
from anabranch.core.registry import StreamState
from anabranch.core.rendezvous import settings_of, trackers_for
from chains import ENTRIES, NET, STREAM, Writer
from machines import NODES

TRACKERS = [TrackerEntry(node, f"ws://{at}") for at, node in enumerate(NODES[:5])]
PARTS = [StreamPart(f"{STREAM}/{name}", at) for name in range(20) for at in range(100)]


def test_the_order_depends_on_the_part_and_not_on_the_list() -> None:
    for part in PARTS[:100]:
        assert trackers_for(part, TRACKERS) == trackers_for(part, TRACKERS[::-1])
    assert {len(trackers_for(part, TRACKERS)) for part in PARTS} == {5}
    assert len({trackers_for(part, TRACKERS) for part in PARTS}) > 100


def test_parts_are_spread_evenly() -> None:
    first = Counter(trackers_for(part, TRACKERS)[0].node for part in PARTS)
    assert len(first) == 5
    assert all(300 < count < 500 for count in first.values())


def test_when_a_tracker_goes_only_its_own_parts_move_and_to_the_next_in_line() -> None:
    gone = TRACKERS[2]
    rest = [entry for entry in TRACKERS if entry != gone]
    for part in PARTS:
        before = trackers_for(part, TRACKERS)
        assert trackers_for(part, rest) == tuple(c for c in before if c.node != gone.node)


def test_a_stream_may_name_trackers_of_its_own_in_its_own_order() -> None:
    own = (Contact(NODES[9], "ws://nine"), Contact(NODES[8], "ws://eight"))
    assert trackers_for(PARTS[0], TRACKERS, own) == own


def test_the_settings_of_a_part() -> None:
    state = Writer().add(CreateStream(2, "latency-aware", 6)).state
    assert isinstance(state, StreamState)
    part = StreamPart(STREAM, 1)
    expected = PartSettings("latency-aware", 6, trackers_for(part, ENTRIES))
    assert settings_of(part, state, ENTRIES) == expected
    assert settings_of(StreamPart(STREAM, 2), state, ENTRIES) is None
    assert settings_of(part, None, ENTRIES) is None
    assert settings_of(part, StreamState(STREAM, NET), ENTRIES) is None


def test_the_settings_say_whether_a_stream_names_storage_nodes() -> None:
    for storage in ((), (NODES[5],)):
        state = Writer().add(CreateStream(storage=storage)).state
        assert isinstance(state, StreamState)
        found = settings_of(StreamPart(STREAM, 0), state, ENTRIES)
        assert found is not None
        assert found.is_stored is bool(storage)


def test_the_weights_are_what_is_written_down() -> None:
    """Nodes of different releases must agree on them."""
    order = [contact.address[-1] for contact in trackers_for(StreamPart(STREAM, 0), TRACKERS)]
    assert order == ["0", "2", "3", "4", "1"]


def test_trackers_that_were_left_come_last_and_nothing_else_changes() -> None:
    state = Writer().add(CreateStream()).state
    part = StreamPart(STREAM, 0)
    order = trackers_for(part, TRACKERS)
    for contact in order:
        settings = settings_of(part, state, TRACKERS, {contact.node})
        assert settings is not None
        others = tuple(other for other in order if other != contact)
        assert settings.trackers == (*others, contact)
    everybody = {contact.node for contact in order}
    assert settings_of(part, state, TRACKERS, everybody) == settings_of(part, state, TRACKERS)
