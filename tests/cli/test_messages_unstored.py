"""`anabranch publish` while storage nodes are away: numbers, notices, the data folder."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.core.unstored import NOTICE_AFTER_S
from cli.commands import Json, answer, run, started, wait_for_nodes

CARRIERS = 2  # the nodes of the network that the tests share
NOBODY = "0x" + "12" * 20

pytestmark = pytest.mark.usefixtures("network")


@pytest.fixture(scope="module")
def lost(shared_network: tuple[Path, Json]) -> Iterator[str]:
    """A stream whose only storage node does not exist."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_CONFIG", str(shared_network[0]))
        options = ("--storage", NOBODY, "--public", "subscribe")
        name = answer("stream", "create", "u/lost", *options)["id"]
        wait_for_nodes(name, CARRIERS)
        yield name


def test_messages_that_are_not_stored_are_counted_and_the_exit_code_is_1(lost: str) -> None:
    code, out, err = run("publish", lost, "--close-wait", "0.1", stdin="1\n2\n3\n")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "3 published, 0 failed, 3 not stored"
    assert "3 messages are not known to be stored" in err
    code, out, _ = run("publish", lost, "--close-wait", "0", "--json", stdin="1\n2\n")
    row = json.loads(out)
    assert (code, row["published"], row["failed"], row["not_stored"]) == (1, 2, 0, 2)


def test_lines_before_a_wrong_one_are_counted_too(lost: str) -> None:
    code, _, err = run("publish", lost, "--close-wait", "0.1", stdin="1\n2\nwrong\n")
    assert code == 2
    assert "2 messages are not known to be stored" in err


def test_a_notice_comes_while_nothing_is_stored_and_ctrl_c_ends_the_wait(lost: str) -> None:
    began = time.monotonic()
    with started("publish", lost, "--close-wait", "600", stdin=subprocess.PIPE) as publisher:
        assert publisher.stdin is not None
        assert publisher.stderr is not None
        publisher.stdin.write("1\n2\n")
        publisher.stdin.close()
        notice = publisher.stderr.readline()
        assert notice.startswith("unstored: 2 messages are not stored after 5 s: 0 of its 1 ")
        assert time.monotonic() - began >= NOTICE_AFTER_S
        publisher.send_signal(signal.SIGINT)
        said = publisher.stderr.readlines()
        assert said[-1] == "2 published, 0 failed, 2 not stored\n"
        assert publisher.wait() == 1


def test_a_data_folder_is_used_by_one_process_and_its_messages_are_counted_by_the_next(
    lost: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "data")
    options = ("--close-wait", "0.1", "--data", folder)
    assert run("publish", lost, *options, stdin="1\n2\n")[0] == 1
    with started("publish", lost, *options, "--ids", stdin=subprocess.PIPE) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        publisher.stdin.write("3\n")
        publisher.stdin.flush()
        assert publisher.stdout.readline()
        code, _, err = run("publish", lost, *options, "4")
        assert code == 2
        assert f"another process uses the data folder {folder}" in " ".join(err.split())
        publisher.kill()
        publisher.wait()
    code, out, err = run("publish", lost, *options, "--json", stdin="")
    assert (code, json.loads(out)["not_stored"]) == (1, 3), "a killed process lost nothing"
    assert f"3 of them are kept in {folder}" in " ".join(err.split())
