"""Addresses of networks: what people write is read, and what is read can be written again."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.errors import LocalError
from anabranch.live.address import DEFAULT_PORT, MAX_HOSTS, Host, NetworkAddress, parse_address

GENESIS = bytes(range(32))
NAME = GENESIS.hex()


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("127.0.0.1:7700", [Host("127.0.0.1", 7700)]),
        ("127.0.0.1", [Host("127.0.0.1", DEFAULT_PORT)]),
        ("tracker_1.example.org:1", [Host("tracker_1.example.org", 1)]),
        ("[::1]:7702", [Host("::1", 7702)]),
        ("[2001:DB8::0:1]", [Host("2001:db8::1", DEFAULT_PORT)]),
        ("[::ffff:1.2.3.4]:65535", [Host("::ffff:1.2.3.4", 65535)]),
        ("a:7700,b,[::1]:9", [Host("a", 7700), Host("b", DEFAULT_PORT), Host("::1", 9)]),
    ],
)
def test_hosts_are_read_in_their_order(text: str, hosts: list[Host]) -> None:
    address = parse_address(f"anabranch://{NAME}@{text}")
    assert address.genesis == GENESIS
    assert [host.port for host in address.hosts] == [host.port for host in hosts]
    assert [ip_or_name(host) for host in address.hosts] == [ip_or_name(host) for host in hosts]
    assert not address.secure


def ip_or_name(host: Host) -> object:
    """Python versions write one IPv6 address in different ways."""
    return ipaddress.IPv6Address(host.name) if ":" in host.name else host.name


def test_an_address_is_written_in_full() -> None:
    address = parse_address(f" Anabranch://{NAME.upper()}@one,[::1]:9\n")
    assert str(address) == f"anabranch://{NAME}@one:7700,[::1]:9"
    assert address.ws_urls == ("ws://one:7700", "ws://[::1]:9")


def test_tls_is_part_of_the_address() -> None:
    address = parse_address(f"anabranchs://{NAME}@one,two:9")
    assert address.secure
    assert str(address) == f"anabranchs://{NAME}@one:7700,two:9"
    assert address.ws_urls == ("wss://one:7700", "wss://two:9")


names = st.from_regex(r"[a-z0-9_]([a-z0-9_.-]{0,30}[a-z0-9_])?", fullmatch=True)
hosts = st.builds(
    Host,
    names | st.ip_addresses(v=6).map(str) | st.ip_addresses(v=4).map(str),
    st.integers(1, 65535),
)
addresses = st.builds(
    NetworkAddress,
    st.binary(min_size=32, max_size=32),
    st.lists(hosts, min_size=1, max_size=MAX_HOSTS).map(tuple),
    st.booleans(),
)


@given(addresses)
def test_what_is_written_can_be_read(address: NetworkAddress) -> None:
    assert parse_address(str(address)) == address


@given(st.text() | st.text(alphabet="0af:[]@,.x").map(lambda text: f"anabranch://{NAME}@{text}"))
def test_any_text_is_an_address_or_a_local_error(text: str) -> None:
    try:
        address = parse_address(text)
    except LocalError:
        return
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begins with neither"),
        (f"{NAME}@host:7700", "begins with neither"),
        (f"ws://{NAME}@host:7700", "begins with neither"),
        (f"anabranch:{NAME}@host:7700", "begins with neither"),
        (f"anabranch://{NAME}", "no @"),
        ("anabranch://127.0.0.1:7700", "no @"),
        (f"anabranch://{NAME[1:]}@host", "not 64 hexadecimal digits"),
        (f"anabranch://0x{NAME}@host", "not 64 hexadecimal digits"),
        ("anabranch://" + "g" * 64 + "@host", "not 64 hexadecimal digits"),
        (f"anabranch://{NAME}@", "a host is missing"),
        (f"anabranch://{NAME}@one,,two", "a host is missing"),
        (f"anabranch://{NAME}@one,", "a host is missing"),
        (f"anabranch://{NAME}@:7700", "is not a host"),
        (f"anabranch://{NAME}@host:", "is not a host"),
        (f"anabranch://{NAME}@host:http", "is not a host"),
        (f"anabranch://{NAME}@host:7700/", "is not a host"),
        (f"anabranch://{NAME}@one, two", "is not a host"),
        (f"anabranch://{NAME}@you@host", "is not a host"),
        (f"anabranch://{NAME}@" + "h" * 254, "is not a host"),
        (f"anabranch://{NAME}@host:0", "port 0 does not exist"),
        (f"anabranch://{NAME}@host:65536", "ports go from 1 to 65535"),
        (f"anabranch://{NAME}@::1:7700", "stands in brackets"),
        (f"anabranch://{NAME}@[::1", "is not a host"),
        (f"anabranch://{NAME}@[1.2.3.4]", "is not an IPv6 address"),
        (f"anabranch://{NAME}@[:::]", "is not an IPv6 address"),
        (f"anabranch://{NAME}@" + ",".join(["host"] * 17), "1 to 16 hosts"),
    ],
)
def test_a_mistake_is_named_beside_an_example(text: str, why: str) -> None:
    with pytest.raises(LocalError) as caught:
        parse_address(text)
    assert why in str(caught.value)
    assert "anabranch://<64 hexadecimal digits>@127.0.0.1:7700" in str(caught.value)


def test_a_long_mistake_is_not_repeated_in_full() -> None:
    with pytest.raises(LocalError) as caught:
        parse_address("x" * 100_000)
    assert len(str(caught.value)) < 1000


def test_an_address_needs_a_whole_name_and_a_host() -> None:
    with pytest.raises(LocalError, match="has 32 bytes, this one 31"):
        NetworkAddress(GENESIS[1:], (Host("host"),))
    with pytest.raises(LocalError, match="this one 0"):
        NetworkAddress(GENESIS, ())
