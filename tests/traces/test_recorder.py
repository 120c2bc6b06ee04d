"""The recorder names things as people do."""

from anabranch.core.ids import FrameHead, NodeId, chain_key, part_key, stream_part
from anabranch.traces import schema
from anabranch.traces.recorder import Recorder

A, B = NodeId(b"a" * 20), NodeId(b"b" * 20)
PART = stream_part("0x" + "1" * 40 + "/city/cars", 7)
HEAD = FrameHead(part_key(PART), chain_key(A, 255), 0, 5, 9, 3)


def recorded() -> tuple[Recorder, list[schema.Record]]:
    records: list[schema.Record] = []
    return Recorder(records.append), records


def test_frames_are_named_by_part_publisher_chain_and_number() -> None:
    recorder, records = recorded()
    recorder.name_part(PART)
    recorder.sent(1.0, A, [B], HEAD, 400)
    names = (str(PART), "0x" + "61" * 20, "00000000000000ff", 9)
    assert records == [schema.Sent(1.0, "0x" + "61" * 20, *names, "0x" + "62" * 20, 400)]


def test_a_part_without_a_name_is_shown_by_its_hash() -> None:
    recorder, records = recorded()
    recorder.published(1.0, A, HEAD, 400)
    assert records[0].part == part_key(PART).hex()  # type: ignore[union-attr]


def test_a_duplicate_is_not_a_drop() -> None:
    recorder, records = recorded()
    recorder.duplicate(1.0, B, A, HEAD)
    recorder.dropped(1.0, B, None, HEAD, "link-full")
    assert [type(record) for record in records] == [schema.Duplicate, schema.Dropped]
    assert records[1].peer == ""  # type: ignore[union-attr]


def test_a_node_publishes_in_the_name_of_a_user() -> None:
    recorder, records = recorded()
    recorder.published(1.0, B, HEAD, 400)
    (record,) = records
    assert isinstance(record, schema.Published)
    assert (record.node, record.publisher) == ("0x" + "62" * 20, "0x" + "61" * 20)


def test_wishes_and_ends_and_straight_ways() -> None:
    recorder, records = recorded()
    recorder.subscribed(1.0, A, PART, True)
    recorder.subscribed(2.0, A, PART, False)
    recorder.stopped(3.0, A)
    recorder.unicast(4.0, A, B, 0.0125)
    a, b = "0x" + "61" * 20, "0x" + "62" * 20
    assert records == [
        schema.Subscribed(1.0, a, str(PART)),
        schema.Unsubscribed(2.0, a, str(PART)),
        schema.Stopped(3.0, a),
        schema.Unicast(4.0, a, b, 12.5),
    ]
