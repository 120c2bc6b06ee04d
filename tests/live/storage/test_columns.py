"""Frames as columns: held to what frames.py reads, one message at a time."""

import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import frames
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.ids import number_of
from anabranch.core.message_key import split_key
from anabranch.core.messages.data import KEYED
from anabranch.core.messages.storage import LATE
from anabranch.core.store import Placed
from anabranch.live.message import names_of
from anabranch.live.storage.columns import (
    FORMS,
    FRAMES,
    MAX_ROWS,
    Columns,
    EncryptedError,
    HoleError,
    Wanted,
    arrow,
)
from live.storage.shelf import BEGAN_MS, EPOCH, Writer, place
from machines import PART

ENCODE = msgspec.msgpack.encode


def rows(placed: list[Placed], wanted: Wanted) -> list[dict[str, Any]]:
    columns = Columns(wanted)
    return [row for batch in columns.add(placed) for row in batch.to_pylist()]


def plain_rows(placed: list[Placed], wanted: Wanted) -> list[dict[str, Any]]:
    """Say the same, slowly."""
    found = []
    for row in placed:
        assert row.offset is not None
        head = frames.peek(row.entry.frame)
        try:
            opened = frames.messages(row.entry.frame)
        except RemoteError:
            continue
        for offset, message in enumerate(opened, row.offset):
            if wanted.start <= offset < wanted.end and wanted.after < message.number <= wanted.upto:
                publisher, chain = names_of(head)
                key, value, content_type = split_key(message.content, message.content_type)
                found.append(
                    {
                        "offset": offset,
                        "timestamp_ms": message.timestamp_ms,
                        "sequence": message.sequence,
                        "publisher": publisher,
                        "chain": chain,
                        "late": row.entry.mark == LATE,
                        "content_type": content_type,
                        "key": key,
                        "value": value,
                    }
                )
    return found


def in_ms(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {("timestamp_ms" if k == "timestamp" else k): milliseconds(v) for k, v in row.items()}
        for row in found
    ]


def milliseconds(value: Any) -> Any:
    return round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value


def bodies() -> st.SearchStrategy[bytes]:
    """Draw bodies of one to three messages, most of them wrong in some way."""
    types = st.sampled_from([0, 2, KEYED, KEYED + 1, 255, 256])
    content = st.one_of(st.binary(max_size=4), st.sampled_from([b"\0\0", b"\0\1k", b"\0\1kv"]))
    item = st.tuples(st.integers(0, 3), types, content)
    items = st.one_of(st.lists(item, max_size=4).map(ENCODE), st.binary(max_size=5))
    locks = st.sampled_from([(0, b""), (0, b"", b"next"), ()])
    return st.one_of(
        st.tuples(items, locks).map(lambda drawn: ENCODE((drawn[0], *drawn[1]))),
        st.binary(min_size=1, max_size=8),
    )


@given(st.data())
def test_rows_are_the_messages_that_frames_hold(data: st.DataObject) -> None:
    writers = [Writer(20, 1), Writer(20, 2), Writer(21, 1)]
    made = []
    for _ in range(data.draw(st.integers(1, 6))):
        writer = data.draw(st.sampled_from(writers))
        if data.draw(st.booleans()):
            contents = data.draw(st.lists(st.binary(max_size=5), min_size=1, max_size=4))
            made.append(writer.frame(*contents, apart_ms=data.draw(st.integers(0, 2))))
        else:
            made.append(writer.sealed(data.draw(bodies()), data.draw(st.integers(1, 3))))
    marks = st.lists(st.sampled_from((0, 0, LATE, 5)), min_size=len(made), max_size=len(made))
    placed = place(made, 100, data.draw(marks))
    assert placed[-1].offset is not None
    end = placed[-1].offset + frames.peek(made[-1]).count
    start = data.draw(st.integers(100, 100 + frames.peek(made[0]).count - 1))
    times = st.sampled_from([0, *(number_of(BEGAN_MS + n, 0) for n in range(4))])
    after, upto = data.draw(times), data.draw(times) or (1 << 63) - 1
    wanted = Wanted(PART, start, data.draw(st.integers(start, end)), after=after, upto=upto)
    assert in_ms(rows(placed, wanted)) == plain_rows(placed, wanted)


@pytest.mark.parametrize(
    ("aheads", "is_right"),
    [
        *(((0, 1, 3), True), ((0, 2, 3), True)),
        *(((1, 2, 3), False), ((0, 0, 3), False), ((0, 3, 3), False), ((0, 1, 2), False)),
        *(((3, 1, 0), False), ((0, 4, 3), False), ((0, 3), False), ((0, 1, 2, 3), False)),
        ((), False),
    ],
)
def test_a_frame_that_contradicts_its_head_has_no_rows(
    aheads: tuple[int, ...], is_right: bool
) -> None:
    """The head says that there are three messages, and four numbers from the first to the last."""
    writer = Writer()
    items = ENCODE([(ahead, 0, b"x") for ahead in aheads])
    made = writer.sealed(ENCODE((items, 0, b"")), 3, span=3)
    placed = place([made, writer.frame(b"next")])
    found = in_ms(rows(placed, Wanted(PART, 0, 4)))
    assert found == plain_rows(placed, Wanted(PART, 0, 4))
    assert len(found) == (4 if is_right else 1)


def test_a_row_of_a_message() -> None:
    writer = Writer()
    placed = place([writer.frame(b"one", b"two", apart_ms=1)], 7)
    (batch,) = Columns(Wanted(PART, 7, 9)).add(placed)
    assert in_ms(batch.to_pylist())[1] == {
        "offset": 8,
        "timestamp_ms": BEGAN_MS + 1,
        "sequence": 1,
        "publisher": "0x" + writer.signer.node.hex(),
        "chain": "0000000000000007",
        "late": False,
        "content_type": (number_of(BEGAN_MS + 1, 1)) % 3,
        "key": None,
        "value": b"two",
    }
    about = batch.schema.metadata
    assert about[b"stream"] == PART.stream.encode()
    assert (about[b"partition"], about[b"start"], about[b"end"]) == (b"0", b"7", b"9")


def test_a_key_is_a_column_of_its_own_and_the_only_one_that_may_be_null() -> None:
    writer = Writer()
    items = [(0, KEYED + 1, b"\0\3bus{}"), (1, 1, b"\0\3bus{}"), (2, KEYED, b"\0\0")]
    items.append((3, KEYED + 1, b"\0\3bu"))  # it promises a key, and has none
    placed = place([writer.sealed(ENCODE((ENCODE(items), 0, b"")), 4)])
    (batch,) = Columns(Wanted(PART, 0, 4)).add(placed)
    found = [(row["content_type"], row["key"], row["value"]) for row in batch.to_pylist()]
    plain = (1, None, b"\0\3bus{}")
    assert found == [(1, b"bus", b"{}"), plain, (0, b"", b""), (KEYED + 1, None, b"\0\3bu")]
    assert [field.name for field in batch.schema if field.nullable] == ["key"]


def test_what_spark_cannot_read_is_not_there() -> None:
    """Spark reads neither unsigned numbers nor times in other units than microseconds."""
    pa = arrow()
    types = (
        Columns(Wanted(PART, 0, 0)).schema.types + Columns(Wanted(PART, 0, 0, FRAMES)).schema.types
    )
    assert not [t for t in types if pa.types.is_unsigned_integer(t) or pa.types.is_dictionary(t)]
    assert {t.unit for t in types if pa.types.is_timestamp(t)} == {"us"}


def test_rows_of_frames_hold_them_as_they_were_signed() -> None:
    writer = Writer()
    made = [writer.frame(b"one", b"two"), writer.encrypted(3), writer.sealed(b"garbage")]
    found = rows(place(made, 10, (0, LATE, 77)), Wanted(PART, 11, 16, FRAMES))
    assert [row["frame"] for row in found] == made
    assert [(row["late"], row["gap"]) for row in found] == [(False, 0), (True, 0), (False, 77)]
    head = frames.peek(made[1])
    placed_at = found[1].pop("placed")
    assert round(placed_at.timestamp() * 1000) == BEGAN_MS + 5
    assert found[1] == {
        "offset": 12,
        "count": 3,
        "first": head.first,
        "last": head.last,
        "previous": head.previous,
        "chain": bytes(head.chain),
        "late": True,
        "gap": 0,
        "epoch": EPOCH,
        "frame": made[1],
    }


def test_batches_are_of_a_good_size() -> None:
    writer = Writer()
    made = [writer.frame(*[b"x"] * 256) for _ in range(40)]
    columns = Columns(Wanted(PART, 0, 256 * 40))
    batches = columns.add(place(made))
    assert [batch.num_rows for batch in batches] == [MAX_ROWS, MAX_ROWS, 256 * 40 - 2 * MAX_ROWS]
    assert columns.position == 256 * 40
    assert columns.add([]) == []


def test_encrypted_messages_cannot_be_told() -> None:
    writer = Writer()
    placed = place([writer.frame(b"one"), writer.encrypted()], 4)
    with pytest.raises(EncryptedError) as caught:
        Columns(Wanted(PART, 4, 6)).add(placed)
    assert caught.value.offset == 5


def read_all(columns: Columns, placed: list[Placed]) -> None:
    columns.add(placed)
    columns.end()


@pytest.mark.parametrize("form", FORMS)
def test_a_hole_is_seen_wherever_it_is(form: str) -> None:
    writer = Writer()
    placed = place([writer.frame(b"a", b"b"), writer.frame(b"c"), writer.frame(b"d")])
    for lacking, offset in [(0, 0), (1, 2), (2, 3)]:
        columns = Columns(Wanted(PART, 0, 4, form))
        rest = [row for at, row in enumerate(placed) if at != lacking]
        with pytest.raises(HoleError) as caught:
            read_all(columns, rest)
        assert caught.value.offset == offset


def test_who_wants_only_some_may_be_given_only_some() -> None:
    writer = Writer()
    placed = place([writer.frame(b"a"), writer.frame(b"b"), writer.frame(b"c")])
    columns = Columns(Wanted(PART, 0, 3, whose=writer.chain))
    assert len(columns.add(placed[1:2])) == 1
    columns.end()


def test_who_lacks_arrow_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LocalError, match=r"anabranch\[storage\]"):
        arrow()
