"""How a network is reached from Spark: by options that hold no secrets, and what is said if not."""

import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.core.errors import LocalError
from anabranch.core.identity import KnownKeys
from anabranch.core.ids import show
from anabranch.live.address import parse_address
from anabranch.live.errors import NetworkUnreachable, NoSuchStream, NotPermitted, NotStored
from anabranch.live.keys import load_key
from anabranch.live.profiles import Profile, save_profile
from anabranch.live.storage.tokens import check_token
from anabranch.spark.access import (
    Access,
    identity_of,
    look_up,
    parse_access,
    serves_at,
    token,
)
from spark.network import RunningNetwork, running_network

ADDRESS = "anabranch://" + "ab" * 32 + "@127.0.0.1:7700"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "conf" / "config.toml"
    monkeypatch.setenv("ANABRANCH_CONFIG", str(path))
    monkeypatch.delenv("ANABRANCH_PROFILE", raising=False)
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNetwork]:
    with running_network(tmp_path_factory.mktemp("access"), storage=2) as running:
        yield running


def test_a_profile_says_where_and_who(config: Path) -> None:
    save_profile(Profile("here", parse_address(ADDRESS), config.parent / "me.key"))
    found = parse_access({})
    me = load_key(config.parent / "me.key").node  # it was made
    assert found.network == ADDRESS
    assert found.key_file == str(config.parent / "me.key")
    assert found.key_store == str(config.parent / "group-keys" / f"{show(me)}.sqlite")
    assert parse_access({"PROFILE": "here"}) == found


def test_an_address_and_files_say_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load_key_of = parse_access({"network": ADDRESS}).key_file  # the one of those without a profile
    options = {"network": ADDRESS, "keyFile": load_key_of, "keyStore": "keys.sqlite"}
    assert parse_access(options).key_store == str(tmp_path / "keys.sqlite")


def test_what_is_sent_to_executors_holds_no_secret(config: Path) -> None:
    found = parse_access({"network": ADDRESS})
    sent = pickle.dumps(found)
    secret = Path(found.key_file).read_text().strip()
    assert pickle.loads(sent) == found
    assert secret.encode() not in sent
    assert bytes.fromhex(secret) not in sent


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no network is chosen"),
        ({"profile": "there"}, "there is no profile 'there'"),
        ({"network": "somewhere"}, "is not the address of a network"),
        ({"network": ADDRESS, "profile": "here"}, "not both"),
        ({"network": ADDRESS, "key": "ab" * 32}, "a key does not belong into an option"),
        ({"network": ADDRESS, "keyFile": "ab" * 32}, "a key does not belong into an option"),
        ({"network": ADDRESS, "keyFile": "none.key"}, "there is no key in none.key"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], words: str) -> None:
    with pytest.raises(LocalError) as caught:
        parse_access(options)
    assert words in str(caught.value)
    assert "ab" * 32 not in str(caught.value).replace(ADDRESS, "")


def access(network: RunningNetwork, name: str) -> Access:
    path = network.folder / f"{name}.key"
    if not path.exists():
        network.new_key_file(name)
    return parse_access(network.options(path))


def test_a_stream_is_found_with_its_storage_nodes(network: RunningNetwork) -> None:
    mine = access(network, "ann")
    ann = network.join(Path(mine.key_file))
    network.run(ann.create_stream("cars", partitions=3, public=["subscribe"], storage=2))
    network.run(ann.create_stream("diary", storage=1))
    cars, diary = look_up(mine, ["cars", f"{ann.me}/diary"])
    assert (cars.name, cars.partitions, cars.is_public) == (f"{ann.me}/cars", 3, True)
    assert dict(cars.storage) == {
        node.identity.node: node.http.address for node in network.live.storage
    }
    assert (diary.partitions, diary.is_public, len(diary.storage)) == (1, False, 1)
    assert [str(part) for part in cars.parts] == [f"{ann.me}/cars#{n}" for n in range(3)]

    # Where everybody may read nobody shows himself; elsewhere the token is good for one node.
    node = diary.storage[0][0]
    assert token(mine, cars, node) is None
    shown = token(mine, diary, node)
    assert shown is not None
    owner = check_token(shown, diary.network, node, time.time(), KnownKeys().verify)
    assert owner == identity_of(mine).node


def test_what_cannot_be_read_is_said(network: RunningNetwork) -> None:
    bob = network.join(network.new_key_file("bob"))
    network.run(bob.create_stream("secret", storage=1))
    network.run(bob.create_stream("fleeting", public=["subscribe"]))
    other = access(network, "carl")
    with pytest.raises(NoSuchStream, match=r"there is no stream .*/nothing: create it"):
        look_up(other, ["nothing"])
    with pytest.raises(NotPermitted, match=r"may not subscribe to .*/secret: its owner can"):
        look_up(other, [f"{bob.me}/secret"])
    with pytest.raises(NotStored, match=r"no storage node keeps .*/fleeting: name some"):
        look_up(other, [f"{bob.me}/fleeting"])


def test_a_network_that_is_not_there_is_said(network: RunningNetwork) -> None:
    mine = access(network, "dora")
    genesis = mine.network.partition("@")[0]
    with pytest.raises(NetworkUnreachable) as caught:
        look_up(Access(f"{genesis}@127.0.0.1:1", mine.key_file, mine.key_store), ["cars"])
    assert "\n" not in str(caught.value)


def test_a_storage_node_that_names_no_place_is_left_out() -> None:
    assert serves_at("http://127.0.0.1:8080")
    assert serves_at("https://storage.example/pages")
    for url in ("", "ftp://host:1", "http://", "http://host:port", "http://[::1", "host:80"):
        assert not serves_at(url)
