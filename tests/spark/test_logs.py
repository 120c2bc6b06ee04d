"""What the driver learns of logs: from all storage nodes that answer, and of parts that are new."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from anabranch import Network, Stream
from anabranch.core.errors import LocalError
from anabranch.core.ids import StreamPart
from anabranch.live.errors import NetworkUnreachable, NoSuchStream
from anabranch.live.storage.columnar import Offsets
from anabranch.spark import logs
from anabranch.spark.access import StoredStream
from anabranch.spark.logs import Logs, settled_at_most
from anabranch.spark.options import parse_options
from spark.false_storage import Answer, Spoil, false_storage
from spark.network import RunningNetwork, running_network

DEAD = "http://127.0.0.1:1"  # nobody listens there


class Place:
    """A network with a stream of two partitions."""

    def __init__(self, network: RunningNetwork) -> None:
        self.network = network
        self.key_file = network.new_key_file("owner")
        self.owner: Network = network.join(self.key_file)
        create = self.owner.create_stream("cars", partitions=2, public=["subscribe"], storage=2)
        self.cars: Stream = network.run(create)
        network.store(self.cars, range(30), partition=0)
        network.store(self.cars, range(12), partition=1)

    def logs(self, **options: str) -> Logs:
        if "assign" not in options:
            options.setdefault("subscribe", "cars")
        return Logs(parse_options(self.network.options(self.key_file, **options)))


class MovedLogs(Logs):
    """Logs whose storage nodes are asked elsewhere."""

    def __init__(self, true: Logs, urls: Callable[[list[str]], list[str]]) -> None:
        super().__init__(true._options)
        true.parts()
        self._urls = urls
        for name, stored in true._streams.items():
            self._streams[name] = self._moved(stored)
        self._renew_at = true._renew_at

    def _moved(self, stored: StoredStream) -> StoredStream:
        nodes, places = zip(*stored.storage, strict=True)
        told = self._urls(list(places))
        return msgspec.structs.replace(stored, storage=tuple(zip(nodes, told, strict=True)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_network(tmp_path_factory.mktemp("logs"), storage=2) as network:
        yield Place(network)


@pytest.fixture
def spoiled() -> Iterator[Callable[[str, Spoil], str]]:
    with ExitStack() as stack:
        yield lambda url, spoil: stack.enter_context(false_storage(url, spoil))


def says(start: int, high: int, length: int | None = None) -> Spoil:
    def answer(path: str, ask: Callable[[str], Answer]) -> Answer:
        told = {"start": start, "high": high, "length": high if length is None else length}
        body = json.dumps(told).encode()
        return 200, body, len(body)

    return answer


def test_parts_are_those_of_the_streams_or_those_assigned(place: Place) -> None:
    name = place.cars.id
    assert place.logs().parts() == [StreamPart(name, 0), StreamPart(name, 1)]
    assert place.logs(assign='{"cars": [1]}').parts() == [StreamPart(name, 1)]
    with pytest.raises(LocalError, match=r"has partitions 0 to 1: there is no partition 5"):
        place.logs(assign='{"cars": [5]}').parts()
    with pytest.raises(NoSuchStream):
        place.logs(subscribe="trams").parts()


def test_how_far_each_part_can_be_read(place: Place) -> None:
    found = place.logs()
    assert found.highs(found.parts()) == {f"{place.cars.id}#0": 30, f"{place.cars.id}#1": 12}
    log = found.offsets(StreamPart(place.cars.id, 0), timestamp_ms=0)
    assert (log.start, log.high, log.offset) == (0, 30, 0)


def test_the_highest_mark_and_the_earliest_start_count(
    place: Place, spoiled: Callable[[str, Spoil], str]
) -> None:
    def urls(true: list[str]) -> list[str]:
        return [spoiled(true[0], says(7, 20, 30)), spoiled(true[1], says(9, 28))]

    log = MovedLogs(place.logs(), urls).offsets(StreamPart(place.cars.id, 0))
    assert (log.start, log.high) == (7, 28)


def test_one_that_tells_of_more_than_the_others_hold_is_not_believed(
    place: Place, spoiled: Callable[[str, Spoil], str]
) -> None:
    moved = MovedLogs(
        place.logs(), lambda true: [spoiled(true[0], says(0, 10**15, 10**15)), true[1]]
    )
    assert moved.highs(moved.parts()) == {f"{place.cars.id}#0": 30, f"{place.cars.id}#1": 12}


@pytest.mark.parametrize(
    ("lengths", "copies", "most"),
    [
        ([9], 1, 9),
        ([9, 7], 2, 7),
        ([9, 7, 5], 3, 7),
        ([9, 7], 3, 9),  # the one that is silent may be the second that holds it
        ([9], 3, 9),
        ([9, 8, 7, 6], 5, 8),
    ],
)
def test_what_is_settled_most_storage_nodes_hold(
    lengths: list[int], copies: int, most: int
) -> None:
    answers = [Offsets(0, 1, length=length) for length in lengths]
    assert settled_at_most(answers, copies) == most


def test_one_that_does_not_answer_is_left_alone(
    place: Place, spoiled: Callable[[str, Spoil], str]
) -> None:
    asked: list[str] = []

    def break_off(path: str, ask: Callable[[str], Answer]) -> Answer:
        asked.append(path)
        return 200, b"{...", 0

    moved = MovedLogs(place.logs(), lambda urls: [spoiled(urls[0], break_off), urls[1]])
    for _ in range(3):
        assert moved.highs(moved.parts()) == {
            f"{place.cars.id}#0": 30,
            f"{place.cars.id}#1": 12,
        }
    assert 1 <= len(asked) <= 2  # once for each part, at most, and not in every round


def test_nobody_who_answers_is_an_error_after_a_while(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PATIENCE_S", 0.0)
    moved = MovedLogs(place.logs(), lambda urls: [DEAD, DEAD])
    with pytest.raises(NetworkUnreachable, match=r"127.0.0.1:1 does not answer"):
        moved.highs(moved.parts())


def test_storage_nodes_that_have_moved_are_looked_up_again(place: Place) -> None:
    moved = MovedLogs(place.logs(), lambda urls: [DEAD, DEAD])
    assert moved.offsets(StreamPart(place.cars.id, 1)).high == 12


def test_partitions_that_are_added_are_found(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "RENEW_S", 0.0)
    network = place.network
    stream = network.run(place.owner.create_stream("growing", public=["subscribe"], storage=1))
    network.store(stream, range(3))
    found = place.logs(subscribe="growing")
    assert len(found.parts()) == 1
    network.run(stream.edit(partitions=2))
    assert len(found.parts()) == 1  # what was planned with stays as it was
    assert len(found.parts(renewed=True)) == 2
    network.store(stream, range(5), partition=1)
    assert found.highs(found.parts()) == {f"{stream.id}#0": 3, f"{stream.id}#1": 5}
