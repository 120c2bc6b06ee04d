"""`anabranch up`, `node` and `tracker` as a person or a script meets them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.traces.files import read_trace
from anabranch.traces.schema import Delivered
from cli.commands import (
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

LAST_WORDS = "Ctrl-C ends the network; the next `up` takes it up again.\n"


# A mistake of ours, which a signal makes.
BROKEN = """
import signal
from anabranch.cli import app
from anabranch.core.peer import Peer
from anabranch.core.tracker_node import TrackerNode

def fail(self, event, now):
    raise ValueError("broken")

def spoil(*_):
    Peer.handle = TrackerNode.handle = fail

signal.signal(signal.SIGUSR1, spoil)
app()
"""


@pytest.fixture
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANABRANCH_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.delenv("ANABRANCH_PROFILE", raising=False)
    return tmp_path


def children(pid: int) -> list[int]:
    """Return the processes that a process has started; nobody but Linux says so this simply."""
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def command(pid: int) -> bytes:
    """Return the arguments of a process; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def children_that_run(verb: bytes, pid: int) -> list[int]:
    return [child for child in children(pid) if verb in command(child).split(b"\0")]


def trackers_of(pid: int) -> list[int]:
    return children_that_run(b"tracker", pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_commands_that_need_no_web_server_do_not_load_one() -> None:
    heavy = ("aiohttp", "prometheus_client", "uvloop", "matplotlib", "numpy")
    look = f"import sys, anabranch.cli; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- up -------------------------------------------------------------------------------------


def test_a_network_is_taken_up_again_with_its_streams(own_config: Path) -> None:
    arguments = ("up", "--nodes", "1", "--port", "0", "--json", "--data", str(own_config / "net"))
    with started(*arguments) as first:
        ready = next_line(first)
        assert list(ready) == ["event", "network", "profile", "pages", "nodes", "storage"]
        assert (ready["nodes"], ready["storage"]) == (1, 1)
        name = answer("stream", "create", "kept", "--storage", "1")["id"]
        assert answer("publish", name, "1", "--stored", "1")["published"] == 1
        kept_by = answer("network", "show")["storage"][0]["node"]
        started_by_it = children(first.pid)
        assert len(started_by_it) == 3
        assert interrupted(first) == ""
        assert not any(map(alive, started_by_it))
    assert "is the tracker running?" in refusal("stream", "list")
    with started(*arguments) as second:
        again = next_line(second)
        assert again["network"].split("@")[0] == ready["network"].split("@")[0]
        assert answers("stream", "list") == [{"id": name}]
        assert [each["node"] for each in answer("network", "show")["storage"]] == [kept_by]
        assert run("resend", name) == (0, "1\n", "")
        wait_for_nodes(name, 1)
        # Two at once on one folder would spoil its registry.
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert "is in use: a tracker runs on it already" in one_line(err)
        assert answers("stream", "list") == [{"id": name}]
        # A death that is not in good order does not leave anybody behind, either.
        orphans = children(second.pid)
        second.send_signal(signal.SIGKILL)
        second.wait(limit(PATIENCE_S))
    eventually(lambda: not any(map(alive, orphans)), "the end of those who are left")
    assert "is the tracker running?" in refusal("stream", "list")


def test_a_person_is_told_what_to_try(own_config: Path) -> None:
    with started("up", "--nodes", "0", "--port", "0", "--profile", "mine") as up:
        assert up.stdout is not None
        words = "".join(iter(up.stdout.readline, LAST_WORDS))
        assert words.startswith("anabranch://")
        assert "anabranch stream create city/vehicles" in words
        assert interrupted(up) == ""
    assert "[profiles.mine]" in (own_config / "config.toml").read_text()


def test_ctrl_c_ends_a_network_that_is_still_starting(own_config: Path) -> None:
    with started("up", "--nodes", "32", "--port", "0", "--json") as up:
        eventually(lambda: bool(trackers_of(up.pid)), "a tracker")
        trackers = trackers_of(up.pid)
        assert interrupted(up) == ""
    eventually(lambda: not any(map(alive, trackers)), "the end of what had been started")
    assert not (own_config / "config.toml").exists()


@pytest.mark.usefixtures("own_config")
def test_a_process_that_dies_is_told_of_and_a_tracker_ends_the_network() -> None:
    with started("up", "--nodes", "2", "--port", "0", "--json") as up:
        next_line(up)
        assert up.stderr is not None
        [tracker] = trackers_of(up.pid)
        first, second = children_that_run(b"node", up.pid)
        [storage] = children_that_run(b"storage", up.pid)
        os.kill(first, signal.SIGKILL)
        words = up.stderr.readline()
        assert words.startswith("error: node ")
        assert "has ended by itself (exit code -9); the network goes on without it" in words
        os.kill(storage, signal.SIGKILL)
        words = up.stderr.readline()
        assert words.startswith("error: storage 0 has ended by itself (exit code -9); the network")
        assert answers("stream", "list") == []
        os.kill(tracker, signal.SIGKILL)
        assert up.wait(limit(PATIENCE_S)) == 1
        words = up.stderr.read()
        assert words.startswith("error: tracker 0 has ended by itself (exit code -9)")
        assert "the network ends with it" in words.splitlines()[0]
        assert not alive(second)


@pytest.mark.usefixtures("own_config")
def test_a_network_goes_on_while_one_of_its_trackers_lives() -> None:
    with started("up", "--nodes", "0", "--trackers", "2", "--port", "0", "--json") as up:
        next_line(up)
        assert up.stderr is not None
        first, second = trackers_of(up.pid)
        os.kill(first, signal.SIGKILL)
        assert "the network goes on without it" in up.stderr.readline()
        created = answer("stream", "create", "meanwhile")  # the other tracker takes over
        assert answers("stream", "list") == [{"id": created["id"]}]
        os.kill(second, signal.SIGKILL)
        assert up.wait(limit(PATIENCE_S)) == 1


@pytest.mark.usefixtures("own_config")
@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["up", "--trackers", "0"], "give 1 to 16 trackers"),
        (["up", "--nodes", "65"], "0 to 64 nodes"),
        (["up", "--storage", "17"], "0 to 16 storage nodes"),
        (["up", "--port", "0", "--data", "/dev/null/x"], "/dev/null/x"),
        (["up", "--nodes", "0", "--port", "0", "--profile", "a b"], "cannot name a profile"),
        (["node"], "name the streams to carry, or say --all"),
        (["node", "--all"], "start one with `anabranch up`"),
        (["node", "--all", "--interval", "0"], "give more than 0"),
        (["tracker", "--data", "/dev/null/x", "--port", "0"], "cannot be written"),
        (["tracker", "--data", "t", "--join", "junk"], "is not the address of a network"),
        (["tracker", "--data", "t", "--owner-key", "no.key"], "make one with `anabranch key new"),
    ],
)
def test_wrong_input_is_answered_in_one_line(
    arguments: list[str], advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert advice in refusal(*arguments)


# --- node -----------------------------------------------------------------------------------


def test_a_node_counts_what_it_carries(network: Json, tmp_path: Path) -> None:
    stream = answer("stream", "create", "p/carried")["id"]
    trace = tmp_path / "node.jsonl"
    options = ("--interval", "0.1", "--json", "--trace", str(trace))
    with started("node", stream, *options) as node:
        ready = next_line(node)
        assert ready["event"] == "ready"
        assert {"node", "address", "links", "parts", "cpu_ms"} <= set(ready)
        assert run("publish", stream, stdin="1\n2\n3\n")[0] == 0
        delivered = 0
        while delivered < 3:
            seen = next_line(node)
            assert seen["event"] == "stats"
            delivered = seen["parts"].get(f"{stream}#0", {}).get("delivered", 0)
        rows = list(map(json.loads, interrupted(node).splitlines()))
        assert rows[-1]["event"] == "stopped"
        assert rows[-1]["parts"][f"{stream}#0"]["delivered"] == 3
    assert any(isinstance(record, Delivered) for record in read_trace(trace))


@pytest.mark.usefixtures("network")
def test_a_person_sees_a_node_begin_and_end() -> None:
    stream = answer("stream", "create", "p/seen")["id"]
    with started("node", stream) as node:
        assert node.stdout is not None
        assert node.stdout.readline().startswith("ready: 0x")
        assert interrupted(node).startswith("stopped: 0x")


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["no/such"], "look for it with `anabranch stream list`"),
        (["--all", "--listen", "junk"], "write host:port, or host:0"),
        (["--all", "--trace", "x.csv"], "ends in .jsonl or .parquet"),
        (["--all", "--trace", "/no/such/x.jsonl"], "No such file or directory"),
        (["--all", "--node-key", "/no/such.key"], "make one with `anabranch key new"),
    ],
)
def test_a_node_that_cannot_start_says_why(arguments: list[str], advice: str) -> None:
    assert advice in refusal("node", *arguments)


@pytest.mark.parametrize("what", ["node", "tracker", "storage"])
def test_who_fails_by_a_mistake_of_ours_ends(what: str, network: Json, tmp_path: Path) -> None:
    options = {
        "node": ["--all"],
        "tracker": ["--port", "0", "--join", network["network"], "--data", str(tmp_path)],
        "storage": ["--data", str(tmp_path)],
    }[what]
    program = [sys.executable, "-c", BROKEN, what, *options, "--json"]
    with child(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert next_line(process)["event"] == "ready"
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=limit(PATIENCE_S))
    name = {"storage": "storage node"}.get(what, what)
    said = f"this {name} failed by a mistake of its own: ValueError('broken'); report it"
    assert (process.returncode, err.splitlines()[-1]) == (1, f"error: {said}")


# --- tracker --------------------------------------------------------------------------------


def test_a_port_in_use_is_told(network: Json, tmp_path: Path) -> None:
    port = network["network"].rpartition(":")[2]
    text = refusal("tracker", "--data", str(tmp_path), "--port", port)
    assert f"port {port} of 127.0.0.1 is in use" in text
    page = network["pages"][0].rpartition(":")[2]
    text = refusal("tracker", "--data", str(tmp_path), "--port", "0", "--http-port", page)
    assert f"127.0.0.1:{page}" in text
    assert "choose another port, or 0 for any that is free" in text
    text = refusal("node", "--all", "--listen", f"127.0.0.1:{port}")
    assert f"port {port} of 127.0.0.1 is in use" in text


def test_a_tracker_that_joins_waits_for_the_owner_to_name_it(network: Json, tmp_path: Path) -> None:
    arguments = ["tracker", "--data", str(tmp_path), "--port", "0", "--join", network["network"]]
    with started(*arguments) as tracker:
        assert tracker.stdout is not None
        words = [tracker.stdout.readline() for _ in range(4)]
        assert words[0].startswith("network  anabranch://")
        command = words[3].split()
        assert command[:3] == ["anabranch", "network", "add-tracker"]
        assert command[3] in shown(*command[1:])
        assert interrupted(tracker) == ""
    assert len(answer("network", "remove-tracker", command[3])["trackers"]) == 1


def test_a_tracker_joins_only_a_network_that_answers(network: Json, tmp_path: Path) -> None:
    genesis = network["network"].split("@")[0]
    with started("tracker", "--data", str(tmp_path), "--port", "0", "--json") as tracker:
        own = next_line(tracker)
        assert own["listed"]
        assert own["network"].split("@")[0] != genesis
        assert interrupted(tracker) == ""
    text = refusal("tracker", "--data", str(tmp_path), "--port", "0", "--join", network["network"])
    assert "this folder belongs to the network" in text
