"""`resend`, `subscribe` from the past on, `publish --stored`: as people and scripts meet them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from anabranch.cli import app
from anabranch.cli.reading import shown_key
from cli.commands import (
    PATIENCE_S,
    Json,
    answer,
    interrupted,
    next_line,
    one_line,
    refusal,
    run,
    started,
    wait_for_nodes,
)
from support.waiting import limit

KEYS = ["stream", "partition", "timestamp_ms", "sequence", "publisher", "chain", "content_type"]
KEYS += ["content", "hops", "delay_ms", "missed", "late", "gap"]
CARRIERS = 2  # the nodes of the network that the tests share
NOBODY = f"0x{'5' * 40}"  # a storage node that does not exist

pytestmark = pytest.mark.usefixtures("network")


class Past(msgspec.Struct):
    """A stream with a past: 0 to 5 by its owner, 6 to 8 by another, and 9 in partition 1."""

    stream: str
    owner: str
    other: str
    chains: list[str]  # that of 0 to 2, and that of 3 to 5
    sixth_ms: int  # when 6 was published


@pytest.fixture(scope="module")
def past(shared_network: tuple[Path, Json], tmp_path_factory: pytest.TempPathFactory) -> Past:
    folder, (config, ready) = tmp_path_factory.mktemp("past"), shared_network
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_CONFIG", str(config))
        options = ("--storage", "1", "--partitions", "2", "--public", "subscribe")
        stream = answer("stream", "create", "r/past", *options)["id"]
        key = str(folder / "other.key")
        other = answer("key", "new", "--out", key)["address"]
        answer("stream", "grant", stream, other, "publish")
        theirs = ("--address", ready["network"], "--key", key)
        first, second = publish(stream, "0\n1\n2\n"), publish(stream, "3\n4\n5\n")
        third = publish(stream, "6\n7\n8\n", *theirs)
        publish(stream, "9\n", partition="1")
    chains = [ids[0].rpartition(".")[2] for ids in (first, second)]
    sixth_ms = int(third[0].rpartition("/")[2].partition(".")[0])
    return Past(stream, stream.split("/")[0], other, chains, sixth_ms)


def publish(stream: str, lines: str, *options: str, partition: str = "0") -> list[str]:
    """Publish lines, each of which is stored in the end; return their ids."""
    told = ("--partition", partition, "--stored", "1", "--ids")
    code, out, err = run("publish", stream, *told, *options, stdin=lines)
    count = len(lines.splitlines())
    assert (code, err) == (0, f"{count} published, 0 failed\n")
    assert len(out.splitlines()) == count
    return out.splitlines()


@pytest.fixture(scope="module")
def streams(shared_network: tuple[Path, Json]) -> Iterator[str]:
    """Streams that the network's nodes find all at once, since they look only now and then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_CONFIG", str(shared_network[0]))
        options = ("--storage", "1", "--public", "subscribe")
        answer("stream", "create", "r/lost", "--storage", NOBODY, "--public", "subscribe")
        return iter([answer("stream", "create", f"r/{i}", *options)["id"] for i in range(5)])


@pytest.fixture
def stream(streams: Iterator[str]) -> str:
    """A stored stream of the test's own."""
    return next(streams)


# --- resend ---------------------------------------------------------------------------------


def test_the_past_is_chosen_by_its_end_time_offset_publisher_and_partition(
    past: Past, capfd: pytest.CaptureFixture[str]
) -> None:
    def resent(*options: str) -> list[int]:
        capfd.readouterr()
        result = CliRunner().invoke(app, ["resend", past.stream, *options])
        out, err = capfd.readouterr()
        assert (result.exit_code, result.stderr, err) == (0, "", "")
        return list(map(int, out.splitlines()))

    first = ("--partition", "0")
    date = datetime.fromtimestamp(past.sixth_ms / 1000, UTC).isoformat(timespec="milliseconds")
    assert sorted(resent()) == list(range(10))
    assert sorted(resent(*first, "--partition", "1")) == list(range(10))
    assert resent(*first) == list(range(9))
    assert resent("--partition", "1") == [9]
    assert resent(*first, "--last", "2") == [7, 8]
    assert resent(*first, "--from", str(past.sixth_ms)) == [6, 7, 8]
    assert resent(*first, "--from", date) == [6, 7, 8]
    assert resent(*first, "--from", "1h", "--last", "1") == [8]
    assert resent(*first, "--to", str(past.sixth_ms - 1)) == list(range(6))
    assert resent("--to", "1h") == []
    assert resent(*first, "--from-offset", "2", "--to-offset", "5") == [2, 3, 4]
    assert resent(*first, "--from-offset", "7") == [7, 8]
    assert resent(*first, "--to-offset", "1") == [0]
    assert resent("--publisher", past.other) == [6, 7, 8]
    assert resent(*first, "--publisher", past.owner, "--last", "4") == [2, 3, 4, 5]
    assert resent("--publisher", past.owner, "--chain", past.chains[1]) == [3, 4, 5]


def test_a_program_gets_everything_of_a_message(past: Past) -> None:
    code, out, err = run("resend", past.stream, "--from-offset", "8", "--partition", "0", "--json")
    assert (code, err) == (0, "")
    row = json.loads(out)
    assert list(row) == KEYS
    assert (row["stream"], row["partition"]) == (past.stream, 0)
    assert (row["publisher"], row["content"], row["gap"]) == (past.other, 8, None)


def test_a_program_gets_the_keys_of_messages_that_have_one(stream: str) -> None:
    for options in (["--message-key", "grün"], ["--partition", "0"]):
        assert answer("publish", stream, "1", "--stored", "1", *options)["published"] == 1
    code, out, err = run("resend", stream, "--json")
    assert (code, err) == (0, "")
    with_key, without = map(json.loads, out.splitlines())
    assert (list(with_key), with_key["key"]) == ([*KEYS, "key"], "grün")
    assert list(without) == KEYS


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (None, {}),
        (b"", {"key": ""}),
        (b"gr\xc3\xbcn", {"key": "grün"}),
        (b"\xff", {"key_base64": "/w=="}),
    ],
)
def test_a_key_that_is_no_text_is_named_so(key: bytes | None, shown: dict[str, str]) -> None:
    assert shown_key(key) == shown


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--last", "0"], "give a number from 1 to"),
        (["--last", "-3"], "give a number from 1 to"),
        (["--from", "yesterday"], "write 10m or 2h"),
        (["--to", "99999999999999d"], "write 10m or 2h"),
        (["--from", "2000000d"], "lies outside of all times"),
        (["--from", "1h", "--to", "2h"], "give the earlier one first"),
        (["--from", "1h", "--to-offset", "9"], "give times or offsets, not both"),
        (["--from-offset", "5", "--to-offset", "5"], "give two numbers from 0 on"),
        (["--from-offset", "-1"], "give two numbers from 0 on"),
        (["--publisher", "me"], "write 0x and 40 hexadecimal digits"),
        (["--chain", "0" * 16], "name the publisher, too"),
        (["--publisher", NOBODY, "--chain", "x"], "is no chain: write its 16 hexadecimal digits"),
        (["--partition", "1"], "there is no partition 1"),
        (["--profile", "moon"], "choose one of local"),
    ],
)
def test_a_past_that_cannot_be_asked_for_is_answered_in_one_line(
    arguments: list[str], advice: str
) -> None:
    answer("stream", "create", "r/w", "--storage", "1", "--exist-ok")
    assert advice in refusal("resend", "r/w", *arguments)


# --- subscribe ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--last", "2"], ["--since", "1h"]], ids=["last", "since"])
def test_a_subscriber_begins_in_the_past_and_goes_on(options: list[str], stream: str) -> None:
    publish(stream, '"a"\n"b"\n')
    with started("subscribe", stream, *options, "--count", "4", "--json") as subscriber:
        rows = [next_line(subscriber) for _ in range(2)]
        wait_for_nodes(stream, CARRIERS + 2)  # the nodes, the storage node, and the subscriber
        publish(stream, '"c"\n"d"\n')
        rows += [next_line(subscriber) for _ in range(2)]
        assert subscriber.wait(limit(PATIENCE_S)) == 0
    assert [row["content"] for row in rows] == ["a", "b", "c", "d"]
    assert all(list(row) == KEYS for row in rows)


def test_a_subscriber_may_take_messages_as_they_come(stream: str) -> None:
    publish(stream, '"before"\n')
    with started("subscribe", stream, "--unordered", "--count", "2") as subscriber:
        wait_for_nodes(stream, CARRIERS + 2)
        publish(stream, '"one"\n"two"\n')
        assert subscriber.communicate(timeout=limit(PATIENCE_S)) == ("one\ntwo\n", "")


@pytest.mark.usefixtures("streams")
def test_a_past_that_cannot_be_had_is_told_before_what_is_new() -> None:
    stream = answer("stream", "show", "r/lost")["id"]
    code, out, err = run("resend", stream)
    assert (code, out) == (2, "")
    assert "the history is not complete" in one_line(err)
    with started("subscribe", stream, "--last", "3") as subscriber:
        wait_for_nodes(stream, CARRIERS + 1)
        code, _, err = run("publish", stream, '"new"', "--close-wait", "0")
        assert (code, err.splitlines()[-1]) == (1, "1 published, 0 failed, 1 not stored")
        assert subscriber.stdout is not None
        assert subscriber.stderr is not None
        assert subscriber.stderr.readline().startswith("the past is incomplete: ")
        assert subscriber.stdout.readline() == "new\n"
        assert interrupted(subscriber) == ""


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["r/w", "--last", "0"], "give a number from 1 to"),
        (["r/w", "--since", "soon"], "write 10m or 2h"),
        (["r/unstored", "--last", "1"], "no storage node keeps"),
        (["r/unstored", "--since", "1h"], "no storage node keeps"),
    ],
)
def test_a_subscriber_that_asks_for_what_is_not_is_told_in_one_line(
    arguments: list[str], advice: str
) -> None:
    answer("stream", "create", "r/w", "--storage", "1", "--exist-ok")
    answer("stream", "create", "r/unstored", "--exist-ok")
    assert advice in refusal("subscribe", *arguments)


# --- publish --stored -----------------------------------------------------------------------


def test_what_is_published_as_stored_is_there_at_once(stream: str) -> None:
    assert answer("publish", stream, '{"n": 1}', "--stored", "1")["published"] == 1
    code, out, err = run("publish", stream, "--stored", "1", "--ids", "--json", stdin="[2]\n[3]\n")
    assert (code, err) == (0, "")
    rows = list(map(json.loads, out.splitlines()))
    assert [list(row) for row in rows[:-1]] == [["id"], ["id"]]
    assert (rows[-1]["published"], rows[-1]["failed"]) == (2, 0)
    assert run("resend", stream, "--from-offset", "0") == (0, '{"n": 1}\n[2]\n[3]\n', "")


def test_what_cannot_be_stored_is_refused() -> None:
    stream = answer("stream", "create", "r/w", "--storage", "1", "--exist-ok")["id"]
    assert "give the number of storage nodes" in refusal("publish", stream, "1", "--stored", "-1")
    assert "ask for 1 to 1" in refusal("publish", stream, "1", "--stored", "2")
    code, out, err = run("publish", stream, "--stored", "2", "--json", stdin="1\n2\n")
    assert code == 1
    assert (json.loads(out)["published"], json.loads(out)["failed"]) == (0, 2)
    assert err.count("error: 2 copies: ") == 2
    unstored = answer("stream", "create", "r/unstored", "--exist-ok")["id"]
    result = CliRunner().invoke(app, ["publish", unstored, "1", "--stored", "1"])
    assert result.exit_code == 1
    assert f"error: no storage node keeps {unstored}" in result.stderr
