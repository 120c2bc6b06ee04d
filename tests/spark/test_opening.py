"""Frames that executors open themselves: decrypted, checked, and made rows of."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.core import held_frames
from anabranch.core.encryption import AES_256_GCM, GroupKey, encrypt, new_key, wrap
from anabranch.core.frames import Locking, build
from anabranch.core.identity import Identity
from anabranch.core.ids import FrameHead, StreamPart, chain_key, number_of, part_key, show
from anabranch.core.machine import Draft, KeepKey
from anabranch.core.messages.data import Body
from anabranch.live.errors import HistoryLost
from anabranch.live.key_store import KeyStore
from anabranch.live.keys import load_key, save_key
from anabranch.live.keys import new_key as new_identity
from anabranch.live.storage.columnar import read_batches
from anabranch.live.storage.columns import Wanted
from anabranch.spark.access import Access, StoredStream, look_up, parse_access, token
from anabranch.spark.opening import FalseFrameError, KeyRing, Opener
from spark.network import RunningNetwork, running_network

PUBLISHER, SECRET = new_identity()
PART = StreamPart(show(PUBLISHER.node) + "/diary", 0)
NETWORK = b"n" * 32
EACH = 3


def locked(key: GroupKey, following: GroupKey | None = None) -> Locking:
    def lock(head: FrameHead, items: bytes) -> Body:
        sealed = encrypt(key, head, items, os.urandom(12))
        next_key = b"" if following is None else wrap(key, following, head, os.urandom(12))
        return Body(sealed, AES_256_GCM, key.id, next_key)

    return lock


def frame(place: int, lock: Locking | None = None, signer: Identity = PUBLISHER) -> bytes:
    """Make the frame of three messages that follows on others."""
    first = number_of(1_000 + place, 0)
    drafts = [(first + n, Draft(b"%d" % (place * EACH + n), 0)) for n in range(EACH)]
    chain = chain_key(PUBLISHER.node, 1)
    return build(part_key(PART), chain, 0, drafts, signer.sign, lock)


class Reader:
    """Somebody with a key store."""

    def __init__(self, folder: Path) -> None:
        save_key(folder / "reader.key", new_identity()[1])
        self.access = Access("", str(folder / "reader.key"), str(folder / "keys.sqlite"))
        self.identity = load_key(folder / "reader.key")

    def keep(self, key: GroupKey) -> None:
        store = KeyStore(Path(self.access.key_store), NETWORK, self.identity)
        store.keep(KeepKey(PART.stream, PUBLISHER.node, key.id, key.secret))
        store.close()

    def open(
        self, frames: Sequence[bytes], verify: bool = False, start: int = 0, whose: bytes = b""
    ) -> list[bytes]:
        wanted = Wanted(PART, start, len(frames) * EACH, whose=whose)
        ring = KeyRing(self.access, StoredStream(PART.stream, 1, NETWORK, (), False))
        offsets = [place * EACH for place in range(len(frames))]
        late = [place % 2 == 1 for place in range(len(frames))]
        batch = pa.record_batch({"offset": offsets, "frame": frames, "late": late})
        opened = Opener(wanted, ring, verify).open(batch)
        for row in [row for batch in opened for row in batch.to_pylist()]:
            assert row["late"] == (row["offset"] // EACH % 2 == 1)
        return [value.as_py() for batch in opened for value in batch.column("value")]


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def values(*places: int) -> list[bytes]:
    return [b"%d" % (place * EACH + n) for place in places for n in range(EACH)]


@pytest.mark.parametrize("verify", [False, True])
def test_what_is_encrypted_is_decrypted_beside_what_is_not(reader: Reader, verify: bool) -> None:
    first, second = new_key(os.urandom), new_key(os.urandom)
    reader.keep(first)  # the second comes in a frame
    frames = [frame(0), frame(1, locked(first)), frame(2, locked(first, second))]
    frames += [frame(3, locked(second)), frame(4)]
    assert reader.open(frames, verify) == values(0, 1, 2, 3, 4)
    assert reader.open(frames, verify, start=2) == values(0, 1, 2, 3, 4)[2:]


def test_a_publisher_who_makes_nonsense_has_no_rows(reader: Reader) -> None:
    right, wrong = new_key(os.urandom), new_key(os.urandom)
    reader.keep(right)

    def nonsense(head: FrameHead, items: bytes) -> Body:
        return Body(encrypt(wrong, head, items, os.urandom(12)), AES_256_GCM, right.id)

    def unknown(head: FrameHead, items: bytes) -> Body:
        return Body(items, 77, right.id)

    frames = [frame(0, locked(right)), frame(1, nonsense), frame(2, unknown), frame(3)]
    assert reader.open(frames) == values(0, 3)


def test_who_spoils_a_ciphertext_is_not_taken_for_its_publisher(reader: Reader) -> None:
    key = new_key(os.urandom)
    reader.keep(key)
    true = frame(1, locked(key))
    spoiled = true[:100] + bytes([true[100] ^ 1]) + true[101:]
    with pytest.raises(FalseFrameError, match=r"diary#0@3 was not signed by 0x"):
        reader.open([frame(0), spoiled])


@pytest.mark.parametrize(
    ("false", "words"),
    [
        (frame(1, signer=new_identity()[0]), "@3 was not signed by 0x"),
        (frame(1)[:-1], "@3 is no frame"),
        (frame(1)[:20], "@3 is no frame"),
        (frame(1)[:1] + b"x" * 16 + frame(1)[17:], "@3 is a frame of something else"),
    ],
    ids=["foreign", "short", "cut", "elsewhere"],  # the frames are others in every process
)
def test_false_frames_are_found_if_asked_for(reader: Reader, false: bytes, words: str) -> None:
    assert reader.open([frame(0), frame(1)], verify=True) == values(0, 1)
    with pytest.raises(FalseFrameError, match=words):
        reader.open([frame(0), false], verify=True)


def test_what_cannot_be_a_log_is_refused_in_any_case(reader: Reader) -> None:
    with pytest.raises(FalseFrameError):
        reader.open([frame(0)[:20]])
    ring = KeyRing(reader.access, StoredStream(PART.stream, 1, NETWORK, (), False))
    opener = Opener(Wanted(PART, 0, 9), ring, verify=False)
    with pytest.raises(FalseFrameError, match="nothing at offset 0"):
        opener.open(pa.record_batch({"offset": [3], "frame": [frame(1)], "late": [False]}))


def test_what_lacks_at_the_end_is_noticed(reader: Reader) -> None:
    ring = KeyRing(reader.access, StoredStream(PART.stream, 1, NETWORK, (), False))
    opener = Opener(Wanted(PART, 0, 6), ring, verify=True)
    opener.open(pa.record_batch({"offset": [0], "frame": [frame(0)], "late": [False]}))
    assert opener.position == 3
    with pytest.raises(FalseFrameError, match="nothing at offset 3"):
        opener.end()
    opener.open(pa.record_batch({"offset": [3], "frame": [frame(1)], "late": [False]}))
    opener.end()


def test_a_publisher_who_was_not_asked_for_is_refused(reader: Reader) -> None:
    assert reader.open([frame(0)], verify=True, whose=PUBLISHER.node) == values(0)
    with pytest.raises(FalseFrameError, match="@0 is of another publisher"):
        reader.open([frame(0)], verify=True, whose=new_identity()[0].node)


# --- Keys that the reader has to ask for --------------------------------------------------------


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNetwork]:
    with running_network(tmp_path_factory.mktemp("opening")) as running:
        yield running


def read(network: RunningNetwork, key_file: Path, name: str) -> list[bytes]:
    access = parse_access(network.options(key_file))
    stored = look_up(access, [name])[0]
    node, url = stored.storage[0]
    shown = token(access, stored, node)
    opener = Opener(Wanted(StreamPart(name, 0), 0, 3), KeyRing(access, stored), verify=False)
    with read_batches(url, name, 0, 0, 3, shown, "frames") as batches:
        opened = [rows for batch in batches for rows in opener.open(batch)]
    return [value.as_py() for batch in opened for value in batch.column("value")]


def test_a_key_is_asked_for_once_and_then_kept(
    network: RunningNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = network.live.connect(load_key(network.new_key_file("publisher")))
    network.run(publisher.__aenter__())
    stream = network.run(publisher.create_stream("diary", storage=1))
    friend, other = network.new_key_file("friend"), network.new_key_file("other")
    for key_file in (friend, other):
        network.run(stream.grant(show(load_key(key_file).node), "subscribe"))
    network.store(stream, ["a", "b", "c"])
    assert read(network, friend, stream.id) == [b"a", b"b", b"c"]
    assert friend.with_suffix(".sqlite").exists()
    network.run(publisher.close())

    # Who has the key needs nobody; who has not is told what to do.
    assert read(network, friend, stream.id) == [b"a", b"b", b"c"]
    monkeypatch.setattr(held_frames, "HOLD_S", 0.5)
    with pytest.raises(HistoryLost) as caught:
        read(network, other, stream.id)
    assert f"@0 cannot be decrypted: nobody gave {show(load_key(other).node)}" in str(caught.value)
    assert f"of its publisher {publisher.me}" in str(caught.value)
    assert "start that publisher" in str(caught.value)


def test_the_key_of_another_process_of_the_reader_itself_is_asked_for(
    network: RunningNetwork, tmp_path: Path
) -> None:
    """Clients do not keep such a key: it is for the process that made it to give."""
    key_file = network.new_key_file("writer")
    publisher = network.join(key_file, key_store=tmp_path / "elsewhere.sqlite")
    stream = network.run(publisher.create_stream("own", storage=1))
    network.store(stream, ["a", "b", "c"])
    assert read(network, key_file, stream.id) == [b"a", b"b", b"c"]
    network.run(publisher.close())
    assert read(network, key_file, stream.id) == [b"a", b"b", b"c"]  # this process has it now
