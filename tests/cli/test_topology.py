"""`anabranch topology` and `anabranch top` as a person or a script meets them."""

import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import (
    Json,
    answer,
    answers,
    interrupted,
    next_line,
    refusal,
    run,
    shown,
    started,
    wait_for_nodes,
)

PART_KEYS = ["stream", "partition", "nodes", "topology", "prediction"]
STREAM_KEYS = ["stream", "partition", "nodes", "links", "published_per_s", "delivered_per_s"]
STREAM_KEYS += ["unstored", "delay_p50_ms", "delay_p99_ms"]
NODE_KEYS = {"node", "parts", "published_per_s", "delivered_per_s", "duplicates_per_s", "dropped"}
NODE_KEYS |= {
    "dialable",
    "registry_age_s",
    "missed",
    "unstored",
    "cpu_percent",
    "delay_p50_ms",
    "delay_p99_ms",
}

pytestmark = pytest.mark.usefixtures("network")


@pytest.fixture(scope="module")
def stream(shared_network: tuple[Path, Json]) -> Iterator[str]:
    """A stream that two nodes carry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_CONFIG", str(shared_network[0]))
        name = answer("stream", "create", "t/w")["id"]
        wait_for_nodes(name, 2)
        yield name


def test_each_part_is_a_line_with_neighbours_and_round_trips(stream: str) -> None:
    part = answer("topology", stream)
    assert list(part) == PART_KEYS
    assert (part["stream"], part["partition"], part["nodes"]) == (stream, 0, 2)
    (a, of_a), (b, of_b) = part["topology"].items()
    assert [n["node"] for n in of_a["neighbours"]] == [b]
    assert [n["node"] for n in of_b["neighbours"]] == [a]
    assert answer("topology", "t/w")["topology"].keys() == part["topology"].keys()
    assert stream in {row["stream"] for row in answers("topology")}
    text = shown("topology", stream)
    assert f"{stream}#0: 2 nodes" in text
    assert a[:10] in text


def test_it_is_drawn(stream: str, tmp_path: Path) -> None:
    file = tmp_path / "x.svg"
    assert "drawn" in run("topology", stream, "--out", str(file))[2]
    drawn = ElementTree.parse(file).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f"{space}circle")) == 2
    assert len(drawn.findall(f"{space}line")) == 1


def test_a_stream_without_nodes_has_no_topology(network: Json, tmp_path: Path) -> None:
    key = str(tmp_path / "stranger.key")
    answer("key", "new", "--out", key)
    theirs = ("--address", network["network"], "--key", key)
    name = answer("stream", "create", "t/empty", *theirs)["id"]  # nobody else may carry it
    assert answers("topology", name) == []
    code, out, err = run("topology", name)
    assert (code, out) == (0, "")
    assert f"no node is in {name}" in err


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["topology", "no/such"], "look for it with `anabranch stream list`"),
        (["topology", "--out", "x.png"], "a drawing's name ends in .svg"),
        (["topology", "--profile", "moon"], "choose one of local"),
        (["top", "--interval", "0"], "give more than 0"),
        (["top", "--count", "0"], "give 1 or more"),
        (["top", "--address", "junk"], "is not the address of a network"),
    ],
)
def test_wrong_input_is_answered_in_one_line(arguments: list[str], advice: str) -> None:
    assert advice in refusal(*arguments)


def test_a_drawing_that_cannot_be_kept_is_told_in_one_line(stream: str) -> None:
    code, _, err = run("topology", stream, "--out", "/no/such/folder/x.svg")
    assert code == 2
    assert err.startswith("error: ")
    assert "cannot be written (No such file or directory)" in err
    assert len(err.splitlines()) == 1


def test_top_shows_streams_and_nodes_look_by_look(stream: str) -> None:
    looks = answers("top", "--count", "2", "--interval", "0.05")
    assert len(looks) == 2
    for look in looks:
        assert list(look) == ["streams", "nodes"]
        assert all(list(row) == STREAM_KEYS for row in look["streams"])
        assert all(set(row) == NODE_KEYS for row in look["nodes"])
    [row] = [row for row in looks[-1]["streams"] if row["stream"] == stream]
    assert (row["nodes"], row["links"]) == (2, 1)
    text = shown("top", "--count", "1")
    assert "…/t/w#0" in text


def test_top_sees_messages_flow(stream: str) -> None:
    with (
        started("top", "--json", "--interval", "0.2") as top,
        started("publish", stream, stdin=subprocess.PIPE) as publisher,
    ):
        assert publisher.stdin is not None
        delivered = 0.0
        while not delivered:  # a node reports every two seconds, and rates need two reports
            publisher.stdin.write("1\n" * 50)
            publisher.stdin.flush()
            rows = next_line(top)["streams"]
            delivered = next(row["delivered_per_s"] for row in rows if row["stream"] == stream)
        interrupted(top)
