"""`anabranch publish` and `anabranch subscribe` as a person or a script meets them."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli import app
from anabranch.cli.messages import IN_FLIGHT
from cli.commands import (
    COMMAND,
    PATIENCE_S,
    Json,
    answer,
    answers,
    eventually,
    interrupted,
    next_line,
    one_line,
    refusal,
    run,
    shown,
    started,
    wait_for_nodes,
)
from support.processes import child
from support.waiting import limit

KEYS = ["stream", "partition", "timestamp_ms", "sequence", "publisher", "chain", "content_type"]
KEYS += ["content", "hops", "delay_ms", "missed", "late", "gap"]
CARRIERS = 2  # the nodes of the network that the tests share
FLOOD = 20_000  # lines: more than a pipe, a printer and a mailbox hold

pytestmark = pytest.mark.usefixtures("network")


@pytest.fixture(scope="module")
def streams(shared_network: tuple[Path, Json]) -> Iterator[str]:
    """Streams that the network's nodes find all at once, since they look only now and then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_CONFIG", str(shared_network[0]))
        return iter([answer("stream", "create", f"m/{i}")["id"] for i in range(16)])


@pytest.fixture
def stream(streams: Iterator[str]) -> str:
    """A stream of the test's own."""
    return next(streams)


@pytest.fixture
def lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A stream that nobody carries, since its network has no nodes."""
    monkeypatch.setenv("ANABRANCH_CONFIG", str(tmp_path / "config.toml"))
    with started("up", "--nodes", "0", "--port", "0", "--json") as up:
        next_line(up)
        yield answer("stream", "create", "lonely")["id"]


def lines(process: subprocess.Popen[str], count: int) -> Iterator[Json]:
    for _ in range(count):
        yield next_line(process)


def test_a_pipe_of_vehicles_reaches_a_subscriber(stream: str) -> None:
    mock = run("mock", "vehicles", "--count", "100", "--fast", "--seed", "3")[1]
    with started("subscribe", stream, "--count", "100", "--json") as subscriber:
        wait_for_nodes(stream, CARRIERS + 1)
        code, out, err = run("publish", stream, "--json", stdin=mock)
        assert (code, err) == (0, "")
        told = json.loads(out)
        assert list(told) == ["published", "failed", "not_stored", "seconds", "cpu_ms"]
        assert (told["published"], told["failed"]) == (100, 0)
        rows = list(lines(subscriber, 100))
        assert subscriber.wait(limit(PATIENCE_S)) == 0
    assert all(list(row) == KEYS for row in rows)
    assert [row["content"] for row in rows] == list(map(json.loads, mock.splitlines()))
    assert {row["publisher"] for row in rows} == {stream.split("/")[0]}
    assert {row["content_type"] for row in rows} == {"json"}
    assert sum(row["missed"] for row in rows) == 0
    assert {row["gap"] for row in rows} == {None}


def test_single_messages_come_out_as_they_went_in(stream: str) -> None:
    with started("subscribe", stream, "--count", "4") as subscriber:
        wait_for_nodes(stream, CARRIERS + 1)
        assert shown("publish", stream, '{"a": [1, 2]}') == ""
        name = shown("publish", stream, "7", "--ids").strip()
        assert name.startswith(f"{stream}#0/")
        result = CliRunner().invoke(app, ["publish", stream, "null", "--ids", "--json"])
        named, told = map(json.loads, result.stdout.splitlines())
        assert (list(named), told["published"]) == (["id"], 1)
        assert shown("publish", stream, "hello {you", "--text") == ""
        out, err = subscriber.communicate(timeout=limit(PATIENCE_S))
    assert (out, err) == ('{"a": [1, 2]}\n7\nnull\nhello {you\n', "")


def test_a_key_travels_and_chooses_the_partition() -> None:
    stream = answer("stream", "create", "m/keys", "--partitions", "4")["id"]
    vehicles = [{"id": f"bus {i % 3}", "n": i} for i in range(30)]
    with started("subscribe", stream, "--count", "30", "--json") as subscriber:
        wait_for_nodes(stream, CARRIERS + 1)
        text = "".join(json.dumps(vehicle) + "\n" for vehicle in vehicles)
        assert run("publish", stream, "--key-field", "id", stdin=text)[0] == 0
        rows = list(lines(subscriber, 30))
    assert all(list(row) == [*KEYS, "key"] for row in rows)
    assert all(row["key"] == row["content"]["id"] for row in rows)
    for bus in ("bus 0", "bus 1", "bus 2"):
        of_bus = [row for row in rows if row["content"]["id"] == bus]
        assert len({row["partition"] for row in of_bus}) == 1
        assert [row["content"]["n"] for row in of_bus] == sorted(r["content"]["n"] for r in of_bus)


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        (b'{"n":1}\n\n{"n":2}\n{bad\n{"n":3}\n', [], "line 4 is not JSON"),
        (b'{"n":1}\n{"n":2}\n\xff\xfe\n', [], "line 3 is not UTF-8"),
        (b'{"n":1}\n{"n":2}\n{"m":1}', ["--key-field", "n"], "line 3 has no field 'n'"),
    ],
    ids=["json", "utf8", "key"],
)
def test_a_wrong_line_is_named_and_those_before_it_are_published(
    stream: str, text: bytes, options: list[str], complaint: str
) -> None:
    with started("subscribe", stream, "--count", "2") as subscriber:
        wait_for_nodes(stream, CARRIERS + 1)
        code, out, err = run("publish", stream, *options, stdin=text)
        assert (code, out) == (2, "")
        assert complaint in one_line(err)
        assert subscriber.communicate(timeout=limit(PATIENCE_S))[0] == '{"n": 1}\n{"n": 2}\n'


def test_who_cannot_publish_is_told_how_many_failed(stream: str) -> None:
    large = json.dumps("x" * 2_000_000)
    code, out, err = run("publish", stream, "--json", stdin=f"1\n{large}\n2\n")
    assert code == 1
    assert (json.loads(out)["published"], json.loads(out)["failed"]) == (2, 1)
    assert "a message of 2,000,000 bytes: at most" in one_line(err)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["publish", "no/such", "1"], "look for it with `anabranch stream list`"),
        (["publish", "no/such", "{bad"], "there is no stream"),
        (["publish", "m/w", "{bad"], "the message is not JSON: quote text as JSON, or add --text"),
        (["publish", "m/w", "1", "--partition", "7"], "there is no partition 7"),
        (["publish", "m/w", "1", "--partition", "0", "--key-field", "a"], "leave one of them out"),
        (["publish", "m/w", "1", "--key-field", "a"], "the message has no field 'a'"),
        (
            ["publish", "m/w", "1", "--key-field", "a", "--message-key", "b"],
            "leave one of them out",
        ),
        (["publish", "m/w", "1", "--message-key", "k" * 1_025], "at most 1,024 can be sent"),
        (["publish", "m/w", "1", "--patience", "0"], "--patience 0: give more than 0"),
        (["subscribe", "no/such"], "look for it with `anabranch stream list`"),
        (["subscribe", "m/w", "--count", "0"], "--count 0: give 1 or more"),
        (["subscribe", "m/w", "--partition", "9"], "there is no partition 9"),
        (["subscribe", "m/w", "--profile", "moon"], "choose one of local"),
        (["subscribe", "m/w", "--address", "junk"], "is not the address of a network"),
    ],
)
def test_wrong_input_is_answered_in_one_line(arguments: list[str], advice: str) -> None:
    answer("stream", "create", "m/w", "--exist-ok")
    assert advice in refusal(*arguments)


def test_permission_is_needed_and_the_command_that_gives_it_is_named(
    network: Json, tmp_path: Path
) -> None:
    stream = answer("stream", "create", "m/closed")["id"]
    key = f"{tmp_path}/stranger.key"
    stranger = answer("key", "new", "--out", key)["address"]
    theirs = ("--address", network["network"], "--key", key)
    assert f"stream grant {stream} {stranger} subscribe" in refusal("subscribe", stream, *theirs)
    result = CliRunner().invoke(app, ["publish", stream, "1", *theirs])
    assert result.exit_code == 1
    assert f"stream grant {stream} {stranger} publish" in result.stderr


def test_a_reader_that_has_had_enough_ends_the_subscriber(stream: str) -> None:
    with (
        started("subscribe", stream) as subscriber,
        started("publish", stream, stdin=subprocess.PIPE) as publisher,
    ):
        wait_for_nodes(stream, CARRIERS + 1)
        assert publisher.stdin is not None
        assert subscriber.stdout is not None
        publisher.stdin.write('"one"\n')
        publisher.stdin.flush()
        assert subscriber.stdout.readline() == "one\n"
        subscriber.stdout.close()
        publisher.stdin.write('"two"\n')
        publisher.stdin.close()
        assert subscriber.wait(limit(PATIENCE_S)) == 0
        assert subscriber.stderr is not None
        assert subscriber.stderr.read() == ""
        assert publisher.wait(limit(PATIENCE_S)) == 0


def test_ctrl_c_ends_a_subscriber(stream: str) -> None:
    with started("subscribe", stream) as subscriber:
        wait_for_nodes(stream, CARRIERS + 1)
        assert interrupted(subscriber) == ""


def test_ctrl_c_ends_a_publisher_after_what_it_has_read(stream: str) -> None:
    with (
        started("subscribe", stream, "--count", "1") as subscriber,
        started("publish", stream, "--json", stdin=subprocess.PIPE) as publisher,
    ):
        wait_for_nodes(stream, CARRIERS + 1)
        assert publisher.stdin is not None
        publisher.stdin.write("[1]\n")
        publisher.stdin.flush()
        assert subscriber.communicate(timeout=limit(PATIENCE_S))[0] == "[1]\n"
        publisher.send_signal(signal.SIGINT)
        assert publisher.wait(limit(PATIENCE_S)) == 0
        assert next_line(publisher)["published"] == 1
        assert publisher.stderr is not None
        assert publisher.stderr.read() == ""


def test_a_subscriber_whose_output_nobody_reads_takes_part_all_the_same(lonely: str) -> None:
    flood = "".join(f"{number:0200}\n" for number in range(FLOOD))
    with started("subscribe", lonely) as subscriber:
        wait_for_nodes(lonely, 1)
        # The publisher has no neighbour but this one: each of its messages is taken there.
        code, _, err = run("publish", lonely, "--text", stdin=flood)
        assert (code, err) == (0, f"{FLOOD} published, 0 failed\n")
        assert subscriber.poll() is None
        # Whoever reads on after all finds the newest, in order, and how many are not there.
        assert subscriber.stdout is not None
        assert subscriber.stderr is not None
        read: list[int] = []
        for line in subscriber.stdout:
            read.append(int(line))
            if read[-1] == FLOOD - 1:
                break
        missed = subscriber.stderr.readline().split()
        assert missed[0] == "missed"
        assert read == sorted(set(read))
        assert len(read) + int(missed[1]) == FLOOD
        # Ctrl-C ends it even if nobody reads again.
        assert run("publish", lonely, "--text", stdin=flood)[0] == 0
        subscriber.send_signal(signal.SIGINT)
        assert subscriber.wait(limit(PATIENCE_S)) == 0
        assert subscriber.stderr.read() == ""


def test_what_was_counted_is_printed_however_late_it_is_read(stream: str) -> None:
    with started("subscribe", stream, "--count", "400") as subscriber:
        wait_for_nodes(stream, CARRIERS + 1)
        large = [json.dumps(f"{number} {'x' * 1_000}") for number in range(400)]
        assert run("publish", stream, stdin="\n".join(large))[0] == 0
        wait_for_no_more_than(stream, CARRIERS)  # it has left, and waits for its reader alone
        assert subscriber.poll() is None
        out, err = subscriber.communicate(timeout=limit(PATIENCE_S))
        assert (subscriber.returncode, err) == (0, "")
        assert out.splitlines() == list(map(json.loads, large))


def wait_for_no_more_than(stream: str, count: int) -> None:
    eventually(lambda: answers("topology", stream)[0]["nodes"] <= count, f"{count} nodes at most")


@pytest.mark.parametrize(
    ("source", "most", "number"),
    [(["yes", "1"], IN_FLIGHT, signal.SIGTERM), (["echo", "1"], 1, signal.SIGINT)],
    ids=["no end of lines", "one line"],
)
def test_a_publisher_that_nobody_hears_ends_when_it_is_asked_to(
    lonely: str, source: list[str], most: int, number: signal.Signals
) -> None:
    with (
        child(source, stdout=subprocess.PIPE) as feeding,
        started("publish", lonely, stdin=feeding.stdout) as publisher,
    ):
        assert feeding.stdout is not None
        assert publisher.stderr is not None
        feeding.stdout.close()  # ours, so that only the publisher holds it
        wait_for_nodes(lonely, 1)
        publisher.send_signal(number)
        assert publisher.wait(limit(PATIENCE_S)) == 1
        [published, _, failed, _] = publisher.stderr.read().split()
        assert published == "0"
        assert 1 <= int(failed) <= most


def test_a_deleted_stream_ends_its_subscribers_with_a_word(stream: str) -> None:
    with started("subscribe", stream) as subscriber:
        wait_for_nodes(stream, CARRIERS + 1)
        answer("stream", "delete", stream, "--yes")
        out, err = subscriber.communicate(timeout=limit(PATIENCE_S))
        assert (subscriber.returncode, out) == (2, "")
        assert "there is no such stream (any more)" in one_line(err)


def test_the_whole_pipe_is_what_the_documentation_shows(stream: str) -> None:
    command = " ".join(COMMAND)
    with started("subscribe", stream, "--count", "5", "--json") as subscriber:
        wait_for_nodes(stream, CARRIERS + 1)
        pipe = f"{command} mock vehicles --fast | head -5 | {command} publish {stream}"
        done = subprocess.run(pipe, shell=True, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "5 published, 0 failed\n"
        assert len(list(lines(subscriber, 5))) == 5
