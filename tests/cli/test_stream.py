"""`anabranch stream` as a person or a script meets it, on a network that runs."""

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli import app
from cli.commands import Json, answer, answers, refusal, shown

KEYS = ["id", "partitions", "overlay", "degree", "metadata", "trackers", "storage", "encrypted"]
KEYS += ["confirm_within_s"]
SOMEBODY = "0x" + "ab" * 20

pytestmark = pytest.mark.usefixtures("network")


def test_a_stream_is_created_shown_and_listed() -> None:
    created = answer("stream", "create", "a/b", "--partitions", "3", "--metadata", "hello")
    assert list(created) == [*KEYS, "permissions"]
    assert created["encrypted"]
    assert created["id"].endswith("/a/b")
    assert (created["partitions"], created["degree"], created["metadata"]) == (3, 4, "hello")
    assert answer("stream", "show", "a/b") == answer("stream", "show", created["id"]) == created
    assert {"id": created["id"]} in answers("stream", "list")
    assert answers("stream", "list", created["id"][:20]) == answers("stream", "list")
    assert answers("stream", "list", "0xffff") == []


def test_a_person_sees_a_stream_as_a_table() -> None:
    answer("stream", "create", "table", "--public", "subscribe")
    text = shown("stream", "show", "table")
    assert "/table" in text
    assert "public" in text
    assert "subscribe" in text
    assert "metadata" not in text  # there is none
    assert any(line.endswith("/table") for line in shown("stream", "list").splitlines())


def test_a_stream_is_edited_and_keeps_what_is_not_named() -> None:
    answer("stream", "create", "edited", "--metadata", "before", "--public", "subscribe")
    tracker = f"{SOMEBODY}=ws://127.0.0.1:9"
    edited = answer(
        "stream", "edit", "edited", "--partitions", "3", "--tracker", tracker, "--storage", SOMEBODY
    )
    assert (edited["partitions"], edited["degree"], edited["metadata"]) == (3, 4, "before")
    assert edited["trackers"] == edited["storage"] == [SOMEBODY]
    assert not edited["encrypted"]
    again = answer("stream", "edit", "edited", "--no-trackers", "--no-storage", "--metadata", "")
    assert (again["partitions"], again["metadata"]) == (3, "")
    assert again["trackers"] == again["storage"] == []
    for options, advice in (
        ([], "name what is to be changed"),
        (["--partitions", "1"], "none taken away"),
        (["--degree", "99"], "a node has 2 to 64 neighbours"),
        (["--storage", SOMEBODY, "--no-storage"], "not both"),
        (["--storage", "x"], "write 0x and 40 hexadecimal digits"),
    ):
        assert advice in refusal("stream", "edit", "edited", *options)
    assert answer("stream", "show", "edited") == again


def test_the_rights_of_many_are_set_in_one_change(tmp_path: Path) -> None:
    answer("stream", "create", "many", "--public", "subscribe")
    other = "0x" + "cd" * 20
    file = tmp_path / "rights.jsonl"
    lines = [
        f'{{"who": "{SOMEBODY}", "rights": ["publish", "subscribe"]}}',
        "",
        f'{{"who": "{other}", "rights": ["grant"]}}',
        '{"who": "public", "rights": []}',
    ]
    file.write_text("\n".join(lines))
    permitted = answer("stream", "permit", "many", str(file))
    held = {row["who"]: row["rights"] for row in permitted["permissions"]}
    assert held == {SOMEBODY: ["publish", "subscribe"], other: ["grant"]}
    assert permitted["encrypted"]
    for text, advice in (
        ("nonsense", "line 1 is no permission"),
        ('{"who": "public", "rights": ["fly"]}', "choose of publish"),
        ('{"who": "public", "rights": []}\n' * 2, "line 2 names public a second time"),
        ("", "give 1 to 64"),
    ):
        file.write_text(text)
        assert advice in refusal("stream", "permit", "many", str(file))
    assert answer("stream", "show", "many") == permitted


def test_what_is_there_is_taken_only_if_one_says_so() -> None:
    first = answer("stream", "create", "once", "--partitions", "2")
    assert "exists" in refusal("stream", "create", "once")
    assert answer("stream", "create", "once", "--exist-ok") == first


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["create", "bad path"], "is not a stream: write <owner address>/<path>"),
        (["create", "w", "--partitions", "0"], "a stream has 1 to 100"),
        (["create", "w", "--degree", "1"], "a node has 2 to 64 neighbours"),
        (["create", "w", "--overlay", "moon"], "choose of random-regular"),
        (["create", "w", "--public", "fly"], "choose of publish, subscribe, grant, edit, delete"),
        (["create", f"{SOMEBODY}/theirs"], "forbidden"),
        (["create", "w", "--tracker", "x"], "write 0x...=ws://host:port"),
        (["edit", "no/such", "--degree", "5"], "there is no stream"),
        (["show", "no/such"], "look for it with `anabranch stream list`"),
        (["show", "a", "--profile", "moon"], "choose one of local"),
        (["show", "a", "--address", "junk"], "write anabranch://<64 hexadecimal digits>@"),
        (["show", "a", "--key", "/no/such.key"], "make one with `anabranch key new"),
        (["grant", "no/such", "public", "publish"], "there is no stream"),
        (["grant", "a", "public", "publish", "--expires", "soon"], "write 30m, 12h, 7d, or a date"),
        (["grant", "a", "public", "publish", "--expires", "2020-01-01"], "is over already"),
        (["delete", "no/such", "--yes"], "there is no stream"),
    ],
)
def test_wrong_input_is_answered_in_one_line(arguments: list[str], advice: str) -> None:
    assert advice in refusal("stream", *arguments)


def test_nobody_listens_at_the_address(network: Json) -> None:
    genesis = network["network"].split("@")[0]
    text = refusal("stream", "list", "--address", f"{genesis}@127.0.0.1:1")
    assert "nothing listens at ws://127.0.0.1:1: is the tracker running?" in text


def test_the_tracker_there_is_of_another_network(network: Json) -> None:
    host = network["network"].split("@")[1]
    text = refusal("stream", "list", "--address", f"anabranch://{'00' * 32}@{host}")
    assert "network" in text


def test_rights_are_given_until_a_time_and_taken_away() -> None:
    name = answer("stream", "create", "rights")["id"]
    [given] = answer("stream", "grant", name, SOMEBODY, "publish", "subscribe", "--expires", "1h")[
        "permissions"
    ]
    assert (given["who"], given["rights"]) == (SOMEBODY, ["publish", "subscribe"])
    left_ms = given["expires_ms"] - time.time() * 1000
    assert 3_000_000 < left_ms <= 3_600_000
    [left] = answer("stream", "revoke", name, SOMEBODY, "publish")["permissions"]
    assert left["rights"] == ["subscribe"]
    assert answer("stream", "revoke", name, SOMEBODY)["permissions"] == []
    assert "is no right" in refusal("stream", "grant", name, SOMEBODY, "fly")
    assert "is not an address" in refusal("stream", "grant", name, "0x12", "publish")


def test_only_who_may_grant_grants(tmp_path: Path, network: Json) -> None:
    name = answer("stream", "create", "mine")["id"]
    stranger = tmp_path / "stranger.key"
    answer("key", "new", "--out", str(stranger))
    theirs = ("--address", network["network"], "--key", str(stranger))
    assert "forbidden" in refusal("stream", "grant", name, "public", "publish", *theirs)
    assert "forbidden" in refusal("stream", "delete", name, "--yes", *theirs)
    assert answer("stream", "show", name)["permissions"] == []


def test_to_delete_is_asked_for_once() -> None:
    name = answer("stream", "create", "doomed")["id"]
    kept = CliRunner().invoke(app, ["stream", "delete", name], input="n\n")
    assert kept.exit_code == 1
    assert answer("stream", "show", name)["id"] == name
    assert "says --yes" in refusal("stream", "delete", name, "--json")
    assert answer("stream", "delete", name, "--yes") == {"deleted": name}
    assert "there is no stream" in refusal("stream", "show", name)
    assert {"id": name} not in answers("stream", "list")
    again = CliRunner().invoke(app, ["stream", "create", "doomed"])
    assert again.exit_code == 0
    gone = CliRunner().invoke(app, ["stream", "delete", name], input="y\n")
    assert gone.exit_code == 0, gone.output


def test_stream_confirm_within_is_set_shown_and_taken_back() -> None:
    name = answer("stream", "create", "a/strict", "--confirm-within", "1h")["id"]
    assert answer("stream", "show", name)["confirm_within_s"] == 3_600
    assert answer("stream", "edit", name, "--confirm-within", "never")["confirm_within_s"] == 0


@pytest.mark.parametrize("text", ["soon", "5s", "10000d"])
def test_stream_confirm_within_that_is_no_duration_is_refused(text: str) -> None:
    said = refusal("stream", "create", "a/refused", "--confirm-within", text)
    assert "write 30m, 1h, 7d, or never" in said or "confirm within" in said
