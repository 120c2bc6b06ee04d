"""`anabranch network` as a person or a script meets it, on a network that runs."""

from pathlib import Path

import pytest

from cli.commands import Json, answer, refusal, shown

OTHER = "0x" + "12" * 20

pytestmark = pytest.mark.usefixtures("network")


def test_the_network_names_its_owner_and_its_trackers(network: Json) -> None:
    seen = answer("network", "show")
    assert list(seen) == ["network", "name", "owner", "me", "trackers", "storage"]
    assert seen["network"] == network["network"]
    assert seen["owner"] == seen["me"]
    [tracker] = seen["trackers"]
    assert list(tracker) == ["node", "address", "http"]
    assert [tracker["http"]] == network["pages"]
    text = shown("network", "show")
    assert network["network"] in text
    assert tracker["node"] in text


def test_a_tracker_is_named_moved_and_removed() -> None:
    [first] = answer("network", "show")["trackers"]
    added = answer("network", "add-tracker", OTHER, "ws://127.0.0.1:9", "http://127.0.0.1:8")
    other = {"node": OTHER, "address": "ws://127.0.0.1:9", "http": "http://127.0.0.1:8"}
    assert added["trackers"] == [first, other]
    moved = answer("network", "add-tracker", OTHER, "wss://127.0.0.1:7")
    assert moved["trackers"] == [first, {**other, "address": "wss://127.0.0.1:7", "http": ""}]
    assert answer("network", "remove-tracker", OTHER)["trackers"] == [first]
    assert "a network needs one tracker" in refusal("network", "remove-tracker", first["node"])
    assert answer("network", "show")["trackers"] == [first]


def test_a_storage_node_is_named_moved_and_removed() -> None:
    [own] = answer("network", "show")["storage"]  # which `up` has started
    added = answer("network", "add-storage", OTHER, "ws://127.0.0.1:9", "http://127.0.0.1:8")
    entry = {"node": OTHER, "address": "ws://127.0.0.1:9", "http": "http://127.0.0.1:8"}
    assert added["storage"] == [own, entry]
    assert f"storage  {OTHER}  ws://127.0.0.1:9" in shown("network", "show")
    moved = answer("network", "add-storage", OTHER, "ws://127.0.0.1:7")
    assert moved["storage"] == [own, {**entry, "address": "ws://127.0.0.1:7", "http": ""}]
    assert answer("network", "remove-storage", OTHER)["storage"] == [own]
    assert "is no storage node of this network" in refusal("network", "remove-storage", OTHER)
    assert len(answer("network", "show")["trackers"]) == 1


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["add-tracker", "0x12", "ws://127.0.0.1:9"], "write 0x and 40 hexadecimal digits"),
        (["add-tracker", OTHER, "127.0.0.1:9"], "begins with neither ws:// nor wss://"),
        (["add-tracker", OTHER, "ws://127.0.0.1:9", "x"], "neither http:// nor https://"),
        (["remove-tracker", OTHER], "is no tracker of this network"),
        (["show", "--profile", "moon"], "choose one of local"),
    ],
)
def test_wrong_input_is_answered_in_one_line(arguments: list[str], advice: str) -> None:
    assert advice in refusal("network", *arguments)


def test_only_the_owner_names_trackers(network: Json, tmp_path: Path) -> None:
    key = str(tmp_path / "stranger.key")
    stranger = answer("key", "new", "--out", key)["address"]
    theirs = ("--address", network["network"], "--key", key)
    assert answer("network", "show", *theirs)["me"] == stranger
    assert "forbidden" in refusal("network", "add-tracker", OTHER, "ws://127.0.0.1:9", *theirs)


def test_without_a_network_one_is_told_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_CONFIG", str(tmp_path / "none.toml"))
    assert "start one with `anabranch up`" in refusal("network", "show")
