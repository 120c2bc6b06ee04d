"""`anabranch storage`, and streams that name storage nodes, as a person or a script meets them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anabranch.traces.files import read_trace
from cli.commands import Json, answer, answers, interrupted, next_line, refusal, run, shown, started

KEYS = ["event", "node", "address", "http", "port", "http_port", "listed"]
SOMEBODY = f"0x{'5' * 40}"


@pytest.fixture
def owner_key(network: Json, shared_network: tuple[Path, Json]) -> str:
    """The key of the shared network's owner, which `up` has made."""
    return str(shared_network[0].parent / "networks" / network["profile"] / "owner.key")


def listed() -> list[str]:
    """Return the storage nodes that the network names."""
    return [entry["node"] for entry in answer("network", "show")["storage"]]


@contextmanager
def own_storage(*arguments: str) -> Iterator[Json]:
    """Run a storage node that ends with the context, in good order; yield its first words."""
    with started("storage", *arguments, "--json") as storage:
        ready = next_line(storage)
        yield ready
        assert interrupted(storage) == ""


# --- The process ----------------------------------------------------------------------------


@pytest.mark.usefixtures("network")
def test_a_storage_node_waits_for_the_owner_to_name_it(tmp_path: Path) -> None:
    before = listed()
    with started("storage", "--data", str(tmp_path)) as storage:
        assert storage.stdout is not None
        words = [storage.stdout.readline() for _ in range(5)]
        assert [line.split()[0] for line in words[:3]] == ["storage", "address", "pages"]
        assert words[3].startswith("The network does not name this storage node yet.")
        command = words[4].split()
        assert command[:3] == ["anabranch", "network", "add-storage"]
        assert command[3:] == [line.split()[1] for line in words[:3]]
        try:
            assert command[3] in shown(*command[1:])
            assert sorted(listed()) == sorted([*before, command[3]])
            assert interrupted(storage) == ""
        finally:
            answer("network", "remove-storage", command[3])
    assert listed() == before


def test_a_storage_node_is_taken_up_again_with_what_it_keeps(
    owner_key: str, tmp_path: Path
) -> None:
    data, trace = tmp_path / "kept", tmp_path / "trace.jsonl"
    options = ("--data", str(data), "--owner-key", owner_key, "--keep-days", "30", "--keep-gb", "1")
    with own_storage(*options, "--trace", str(trace)) as ready:
        assert list(ready) == KEYS
        assert ready["event"] == "ready"
        assert ready["listed"]
        node = ready["node"]
        try:
            assert node in listed()
            # Two at once on one folder would spoil its logs.
            assert "a storage node runs on it already" in refusal("storage", *options)
            stream = answer(
                "stream", "create", "s/own", "--storage", node, "--public", "subscribe"
            )["id"]
            assert run("publish", stream, "--stored", "1", stdin="1\n2\n3\n")[0] == 0
        except BaseException:
            answer("network", "remove-storage", node)
            raise
    try:
        assert list(read_trace(trace))
        with own_storage(*options) as again:
            assert (again["node"], again["listed"]) == (node, True)
            assert again["address"] == ready["address"]  # where the network knows it
            assert run("resend", stream) == (0, "1\n2\n3\n", "")
    finally:
        answer("network", "remove-storage", node)


def test_a_scrub_finds_damage_and_a_resend_names_what_nobody_has(
    owner_key: str, tmp_path: Path
) -> None:
    data = tmp_path / "kept"
    options = ("--data", str(data), "--owner-key", owner_key, "--scrub-days", "0")
    with own_storage(*options) as ready:
        node = ready["node"]
        named = ("--storage", node, "--public", "subscribe")
        stream = answer("stream", "create", "s/damaged", *named)["id"]
        lines = "".join(f'"{n:>500}"\n' for n in range(40))
        assert run("publish", stream, "--stored", "1", stdin=lines)[0] == 0
        done = answers("storage", "scrub", "--data", str(data))[-1]
        assert (done["event"], done["damaged_messages"], done["ranges"]) == ("done", 0, [])
    try:
        content = bytearray((data / "logs.sqlite").read_bytes())
        at = content.find(f"{7:>500}".encode())
        content[at : at + 100] = bytes(100)
        (data / "logs.sqlite").write_bytes(content)
        code, out, _ = run("storage", "scrub", "--data", str(data))
        assert code == 1
        lost = int(out.splitlines()[-1].split()[0])
        assert 0 < lost < 40
        assert "messages are damaged and not repaired yet" in out
        with own_storage(*options):
            code, out, error = run("resend", stream, "--from-offset", "0")
            assert (code, len(out.splitlines())) == (1, 40 - lost)
            assert f"{lost} messages, at offsets " in error
            code, out, _ = run("storage", "scrub", "--data", str(data), "--json")
            last = json.loads(out.splitlines()[-1])
            assert (code, last["damaged_messages"]) == (1, lost)
    finally:
        answer("network", "remove-storage", node)


def test_accept_loss_lets_a_single_node_go_on_after_its_disk_has_forgotten(
    owner_key: str, tmp_path: Path
) -> None:
    data = tmp_path / "kept"
    options = ("--data", str(data), "--owner-key", owner_key)
    with started("storage", *options, "--json") as storage:
        node = next_line(storage)["node"]
        named = ("--storage", node, "--public", "subscribe")
        stream = answer("stream", "create", "s/forgotten", *named)["id"]
        assert "nothing of" in refusal("storage", "accept-loss", stream, "--data", str(data))
        lines = "".join(f'"{n:>500}"\n' for n in range(40))
        for _ in range(3):
            assert run("publish", stream, "--stored", "1", stdin=lines)[0] == 0
        storage.kill()
        storage.wait()
    try:
        ahead = data / "logs.sqlite-wal"
        with ahead.open("r+b") as file:
            file.truncate(ahead.stat().st_size // 2)
        text = refusal("storage", "accept-loss", stream, "--data", str(data))
        assert "no storage node runs" in text
        with own_storage(*options):
            [row] = answers("storage", "accept-loss", stream, "--data", str(data))
            assert (row["event"], row["stream"], row["end"]) == ("accepted", stream, 120)
            assert 0 <= row["start"] < 120
            assert "nothing of" in refusal("storage", "accept-loss", stream, "--data", str(data))
            assert run("publish", stream, "--stored", "1", stdin="1\n")[0] == 0
    finally:
        answer("network", "remove-storage", node)


def test_a_scrub_of_what_is_no_storage_node_is_refused(tmp_path: Path) -> None:
    text = refusal("storage", "scrub", "--data", str(tmp_path))
    assert "not the folder of a storage node" in text
    assert "--data FOLDER" in refusal("storage")


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--data", "/dev/null/x"], "cannot be written"),
        (["--data", "s", "--keep-days", "0"], "--keep-days 0: give more than 0"),
        (["--data", "s", "--keep-days", "nan"], "--keep-days nan: give more than 0"),
        (["--data", "s", "--scrub-days", "-1"], "--scrub-days -1: give a number of days"),
        (["--data", "s", "--keep-gb", "-1"], "--keep-gb -1: give more than 0"),
        (["--data", "s", "--keep-gb", "inf"], "leave it out to keep everything"),
        (["--data", "s", "--owner-key", "no.key"], "make one with `anabranch key new"),
        (["--data", "s", "--advertise", "junk"], "write ws://host:port"),
        (["--data", "s", "--tls-cert", "x"], "--tls-cert FILE and --tls-key FILE"),
        (["--data", "s", "--trace", "x.csv"], "ends in .jsonl or .parquet"),
        (["--data", "s", "--port", "70000"], "there is no port 70000"),
        (["--data", "s", "--http-port", "70000"], "there is no port 70000"),
        (["--data", "s", "--address", "junk"], "is not the address of a network"),
        (["--data", "s", "--profile", "moon"], "choose one of local"),
    ],
)
def test_wrong_input_is_answered_in_one_line(
    arguments: list[str], advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert advice in refusal("storage", *arguments)


def test_a_port_in_use_is_told(network: Json, tmp_path: Path) -> None:
    port = network["network"].rpartition(":")[2]
    text = refusal("storage", "--data", str(tmp_path), "--port", port)
    assert f"port {port} of 127.0.0.1 is in use" in text
    text = refusal("storage", "--data", str(tmp_path), "--http-port", port)
    assert f"127.0.0.1:{port}" in text
    assert "choose another port, or 0 for any that is free" in text


def test_without_a_network_one_is_told_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_CONFIG", str(tmp_path / "none.toml"))
    text = refusal("storage", "--data", str(tmp_path / "s"))
    assert "start one with `anabranch up`" in text


# --- Streams that are stored ----------------------------------------------------------------


@pytest.mark.usefixtures("network")
def test_a_stream_takes_so_many_of_the_networks_storage_nodes_or_those_it_names() -> None:
    [own] = listed()
    assert answer("stream", "create", "s/one", "--storage", "1")["storage"] == [own]
    assert own in shown("stream", "show", "s/one")
    assert answer("stream", "create", "s/none", "--storage", "0")["storage"] == []
    assert answer("stream", "edit", "s/none", "--storage", "1")["storage"] == [own]
    named = ("--storage", own, "--storage", SOMEBODY)
    assert answer("stream", "create", "s/two", *named)["storage"] == [own, SOMEBODY]
    assert answer("stream", "edit", "s/two", "--no-storage")["storage"] == []


@pytest.mark.usefixtures("network")
def test_a_stream_that_gets_more_storage_nodes_keeps_those_it_has() -> None:
    [own] = listed()
    others = [f"0x{digit * 40}" for digit in "6789abcdef"]
    for other in others:
        answer("network", "add-storage", other, "ws://127.0.0.1:9")
    try:
        answer("stream", "create", "s/more", "--storage", own)
        two = answer("stream", "edit", "s/more", "--storage", "2")["storage"]
        assert two[0] == own
        assert two[1] in others
        assert answer("stream", "edit", "s/more", "--storage", "1")["storage"] == [own]
    finally:
        for other in others:
            answer("network", "remove-storage", other)


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["create", "s/x", "--storage", "2"], "this network has 1: `anabranch storage` runs one"),
        (["create", "s/x", "--storage", "-1"], "write 0x and 40 hexadecimal digits"),
        (["create", "s/x", "--storage", "1", "--storage", "1"], "write 0x and 40 hexadecimal"),
        (["create", "s/x", "--storage", SOMEBODY, "--storage", SOMEBODY], "named twice"),
        (["edit", "s/w", "--storage", SOMEBODY], "add or remove one (--storage with"),
        (["edit", "s/w", "--storage", SOMEBODY, "--storage", SOMEBODY], "named twice"),
    ],
)
def test_storage_nodes_that_cannot_be_named_are_refused(arguments: list[str], advice: str) -> None:
    answer("stream", "create", "s/w", "--storage", "1", "--exist-ok")
    assert advice in refusal("stream", *arguments)
