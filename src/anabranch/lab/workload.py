"""A workload of many topics: who subscribes to what, and who publishes what in which order.

It is read from a file of JSON lines: one for each topic, {"kind": "topic", "name": ...}, and one
for each node, {"kind": "node", "node": ..., "subscriptions": [topic, ...], "events": [[place in
the order, topic], ...]}.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from anabranch.lab.experiment import OptionError


class _Topic(msgspec.Struct, tag_field="kind", tag="topic"):
    name: str


class _Node(msgspec.Struct, tag_field="kind", tag="node"):
    node: str
    subscriptions: list[str]
    events: list[tuple[int, str]]


_decode = msgspec.json.Decoder(_Topic | _Node).decode


@dataclass(frozen=True)
class Workload:
    """Topics and nodes are numbered, as they come in the file."""

    topics: tuple[str, ...]
    subscriptions: tuple[tuple[int, ...], ...]  # the topics of each node
    events: tuple[tuple[int, int], ...]  # node and topic, in the order of publishing

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.subscriptions)

    def cut(self, nodes: int, events: int | None) -> "Workload":
        """Return the first nodes with what they do, and of that the first events."""
        if nodes > self.nodes:
            raise OptionError(
                f"the workload has {self.nodes} nodes: take that for --nodes, or less"
            )
        kept = [event for event in self.events if event[0] < nodes]
        if not kept:
            raise OptionError(f"its first {nodes} nodes publish nothing: take more for --nodes")
        return Workload(self.topics, self.subscriptions[:nodes], tuple(kept[:events]))

    def subscribers(self) -> NDArray[np.bool_]:
        """Return who, in the column, subscribes to the topic of the row."""
        found = np.zeros((len(self.topics), self.nodes), dtype=bool)
        for node, topics in enumerate(self.subscriptions):
            found[list(topics), node] = True
        return found

    def expected(self) -> NDArray[np.bool_]:
        """Return who, in the column, should get the event of the row from somebody else."""
        publishers, topics = np.array(self.events).T
        wanted: NDArray[np.bool_] = self.subscribers()[topics]
        wanted[np.arange(len(publishers)), publishers] = False
        return wanted


def read(path: Path) -> Workload:
    """Read a workload, or raise OptionError."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise OptionError(f"--data {path} cannot be read: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(_decode(line))
        except msgspec.DecodeError as error:
            raise OptionError(f"--data {path}, line {number}: {error}") from error
    topics = {record.name: None for record in records if isinstance(record, _Topic)}
    nodes = [record for record in records if isinstance(record, _Node)]
    try:
        return _numbered(list(topics), nodes)
    except KeyError as error:
        raise OptionError(f"--data {path}: no line tells of the topic {error}") from error


def _numbered(topics: Sequence[str], nodes: Sequence[_Node]) -> Workload:
    numbers = {name: number for number, name in enumerate(topics)}
    ordered = sorted(
        (place, node, numbers[topic])
        for node, record in enumerate(nodes)
        for place, topic in record.events
    )
    subscriptions = [tuple(sorted({numbers[t] for t in n.subscriptions})) for n in nodes]
    events = [(node, topic) for _, node, topic in ordered]
    return Workload(tuple(topics), tuple(subscriptions), tuple(events))
