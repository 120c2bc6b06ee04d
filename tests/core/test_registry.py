"""The rules of a chain: who may say what, when, and what follows from it."""

from typing import Any

import msgspec
import pytest

from anabranch.core.changes import (
    PUBLIC,
    Action,
    Change,
    CreateStream,
    DeleteStream,
    Right,
    SetPermission,
    SetTrackers,
    TrackerEntry,
    decode_change,
    encode_change,
    hash_change,
)
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry import (
    MAX_CHANGES,
    MAX_PERMISSIONS,
    NetworkState,
    Permission,
    StreamState,
    is_chain_name,
    make_change,
)
from chains import ENTRIES, GENESIS, NET, OWNER, STREAM, Writer
from machines import KEYS, NODES, SIGNERS, START

ANN, BEN = SIGNERS[1], SIGNERS[2]
NOW_MS = int(START * 1000)


def stream(*actions: Action) -> Any:
    """Return the writer of a stream that anybody may subscribe to."""
    return Writer().add(CreateStream(2, public=Right.SUBSCRIBE), *actions)


def refuse(writer: Writer, reason: str, **fields: Any) -> None:
    """Let a change that is right but for these fields be refused, and change nothing."""
    state = writer.state
    action = fields.pop("action", SetPermission(NODES[9], 1))
    signer = fields.pop("signer", OWNER)
    change = Change(state.chain, state.height + 1, state.head, signer.node, NOW_MS, action)
    change = msgspec.structs.replace(change, **fields)
    before = (state.height, state.head, state.at_ms)
    with pytest.raises(RemoteError) as caught:
        state.apply(encode_change(change, NET, signer.sign), KEYS.verify)
    assert caught.value.reason == reason
    assert (state.height, state.head, state.at_ms) == before


def test_a_stream_is_created_by_the_owner_whom_its_name_names() -> None:
    writer = stream()
    assert isinstance(writer.state, StreamState)
    assert writer.state.created == CreateStream(2, public=Right.SUBSCRIBE)
    assert (writer.state.height, writer.state.head) == (1, hash_change(writer.changes[0]))
    refuse(Writer(), "forbidden", action=CreateStream(), signer=ANN)
    refuse(writer, "exists", action=CreateStream())


def test_a_change_extends_the_head_of_its_own_chain() -> None:
    writer = stream()
    refuse(writer, "stale", height=1)
    refuse(writer, "stale", height=3)
    refuse(writer, "stale", previous=NET)
    refuse(writer, "wrong-chain", chain=STREAM + "2")
    with pytest.raises(RemoteError, match="stale"):
        writer.state.apply(writer.changes[0], KEYS.verify)


def test_time_does_not_run_back() -> None:
    writer = stream()
    refuse(writer, "clock", at_ms=NOW_MS - 1)
    early = make_change(OWNER, writer.state, SetPermission(ANN.node, 1), START - 100)
    assert decode_change(early).at_ms == NOW_MS


def test_a_signature_is_its_authors() -> None:
    writer = stream()
    state = writer.state
    change = Change(STREAM, 2, state.head, OWNER.node, NOW_MS, SetPermission(ANN.node, 31))
    with pytest.raises(RemoteError, match="change-forged"):
        state.apply(encode_change(change, NET, ANN.sign), KEYS.verify)


def test_rights_are_needed_and_are_enough() -> None:
    writer = stream()
    refuse(writer, "forbidden", action=SetPermission(ANN.node, 31), signer=ANN)
    refuse(writer, "forbidden", action=DeleteStream(), signer=ANN)
    writer.add(SetPermission(ANN.node, Right.GRANT))
    refuse(writer, "forbidden", action=DeleteStream(), signer=ANN)
    writer.add(SetPermission(BEN.node, Right.DELETE), signer=ANN)
    refuse(writer, "forbidden", action=SetPermission(BEN.node, 31), signer=BEN)
    writer.add(DeleteStream(), signer=BEN)
    assert writer.state.created is None


def test_who_may_do_what() -> None:
    state = stream(SetPermission(ANN.node, Right.PUBLISH | Right.GRANT)).state
    assert state.may(ANN.node, Right.PUBLISH, START)
    assert state.may(ANN.node, Right.SUBSCRIBE, START)
    assert state.may(ANN.node, Right.PUBLISH | Right.SUBSCRIBE, START)
    assert not state.may(ANN.node, Right.DELETE, START)
    assert not state.may(ANN.node, Right.PUBLISH | Right.DELETE, START)
    assert not state.may(BEN.node, Right.PUBLISH, START)
    assert state.may(BEN.node, Right.SUBSCRIBE, START)
    assert all(state.may(OWNER.node, right, START) for right in Right)


def test_a_permission_is_replaced_and_taken_away_whole() -> None:
    writer = stream(SetPermission(ANN.node, 31), SetPermission(ANN.node, Right.PUBLISH))
    assert writer.state.permissions[ANN.node] == Permission(Right.PUBLISH)
    writer.add(SetPermission(ANN.node, 0), SetPermission(PUBLIC, 0))
    assert writer.state.permissions == {}
    assert not writer.state.may(BEN.node, Right.SUBSCRIBE, START)
    assert writer.state.may(OWNER.node, Right.SUBSCRIBE, START)


def test_a_permission_ends_when_it_expires() -> None:
    writer = stream(SetPermission(ANN.node, Right.PUBLISH | Right.GRANT, NOW_MS + 1_000))
    state = writer.state
    assert state.may(ANN.node, Right.PUBLISH, START + 0.999)
    assert not state.may(ANN.node, Right.PUBLISH, START + 1)
    writer.add(SetPermission(BEN.node, 1), signer=ANN, at=START + 0.5)
    late = Change(STREAM, 4, state.head, ANN.node, NOW_MS + 1_000, SetPermission(BEN.node, 31))
    with pytest.raises(RemoteError, match="forbidden"):
        state.apply(encode_change(late, NET, ANN.sign), KEYS.verify)


def test_after_it_was_deleted_a_stream_may_begin_anew_without_its_permissions() -> None:
    writer = stream(SetPermission(ANN.node, 31), DeleteStream())
    assert not writer.state.may(OWNER.node, Right.PUBLISH, START)
    refuse(writer, "no-such-stream", action=SetPermission(ANN.node, 31))
    refuse(writer, "no-such-stream", action=DeleteStream())
    refuse(writer, "forbidden", action=CreateStream(), signer=ANN)
    writer.add(CreateStream(7))
    assert writer.state.height == 4
    assert writer.state.created == CreateStream(7)
    assert writer.state.permissions == {}


def test_metadata_has_a_limit_in_bytes() -> None:
    refuse(Writer(), "metadata", action=CreateStream(metadata="é" * 2049))
    assert Writer().add(CreateStream(metadata="é" * 2048)).state.height == 1


def test_tables_are_bounded() -> None:
    writer = stream()
    nodes = [NODES[0][:16] + at.to_bytes(4) for at in range(MAX_PERMISSIONS - 1)]
    writer.state.permissions |= {node: Permission(1) for node in nodes}
    assert len(writer.state.permissions) == MAX_PERMISSIONS
    refuse(writer, "full", action=SetPermission(ANN.node, 1))
    writer.add(SetPermission(nodes[0], 3), SetPermission(nodes[1], 0), SetPermission(ANN.node, 1))
    writer.state.height = MAX_CHANGES
    refuse(writer, "full")


def test_actions_stand_in_the_chain_they_belong_to() -> None:
    refuse(stream(), "wrong-chain", action=SetTrackers(ENTRIES))
    refuse(Writer(NETWORK), "wrong-chain", action=CreateStream())


def test_the_network_begins_with_the_record_that_names_it() -> None:
    state = NetworkState(NET)
    with pytest.raises(RemoteError, match="wrong-genesis"):
        state.apply(GENESIS + b"\0", KEYS.verify)
    state.apply(GENESIS, KEYS.verify)
    assert (state.height, state.head) == (1, NET)
    assert state.genesis is not None
    assert state.genesis.owner == OWNER.node
    with pytest.raises(RemoteError):
        state.apply(GENESIS, KEYS.verify)


def test_the_networks_owner_names_its_trackers() -> None:
    writer = Writer(NETWORK).add(SetTrackers(ENTRIES))
    assert isinstance(writer.state, NetworkState)
    assert writer.state.trackers == ENTRIES
    refuse(writer, "forbidden", action=SetTrackers(ENTRIES[:1]), signer=ANN)
    twice = SetTrackers((ENTRIES[0], TrackerEntry(ENTRIES[0].node, "elsewhere")))
    refuse(writer, "twice", action=twice)
    writer.add(SetTrackers(ENTRIES[1:]))
    assert writer.state.trackers == ENTRIES[1:]


def test_what_would_be_refused_is_not_signed() -> None:
    writer = stream()
    for action, signer, text in (
        (DeleteStream(), ANN, "forbidden"),
        (CreateStream(), OWNER, "exists"),
        (SetPermission(ANN.node, 32), OWNER, "change-malformed"),
        (SetPermission(b"short", 1), OWNER, "change-malformed"),
    ):
        with pytest.raises(LocalError, match=text):
            make_change(signer, writer.state, action, START)
    with pytest.raises(LocalError, match="change-malformed"):
        make_change(OWNER, Writer().state, CreateStream(partitions=101), START)


def test_a_copy_goes_its_own_way() -> None:
    writer = stream(SetPermission(ANN.node, 1))
    twin = writer.state.copy()
    writer.add(SetPermission(ANN.node, 0))
    assert (twin.height, ANN.node in twin.permissions) == (2, True)
    twin.apply(writer.changes[-1], KEYS.verify)
    assert (twin.head, twin.permissions) == (writer.state.head, writer.state.permissions)


def test_names_of_chains() -> None:
    assert is_chain_name(NETWORK)
    assert is_chain_name(STREAM)
    assert not any(map(is_chain_name, ("", "networks", STREAM.upper(), STREAM + "//", "0x12/a")))
