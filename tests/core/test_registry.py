"""The rules of a chain: who may say what, when, and what follows from it."""

from typing import Any

import pytest

from anabranch.core.changes import (
    PUBLIC,
    Action,
    CreateStream,
    DeleteStream,
    EditStream,
    Right,
    SetPermission,
    SetStorage,
    SetTrackers,
    TrackerEntry,
)
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Signer
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry import (
    MAX_PERMISSIONS,
    NetworkState,
    Permission,
    StreamState,
    is_chain_name,
    new_state,
)
from chains import ENTRIES, GENESIS, NET, OWNER, STREAM, Writer
from machines import NODES, SIGNERS, START

ANN, BEN = SIGNERS[1], SIGNERS[2]
NOW_MS = int(START * 1000)


def stream(*actions: Action) -> Any:
    """Return the writer of a stream that anybody may subscribe to."""
    return Writer().add(CreateStream(2, public=Right.SUBSCRIBE), *actions)


def refuse(
    writer: Writer, reason: str, action: Action, signer: Signer = OWNER, at: float = START
) -> None:
    """Let an action be refused, and change nothing."""
    before = (writer.history.head, writer.history.state)
    with pytest.raises(LocalError) as caught:
        writer.next(action, signer=signer, at=at)
    assert isinstance(caught.value.__cause__, RemoteError)
    assert caught.value.__cause__.reason == reason
    assert (writer.history.head, writer.history.state) == before


def test_a_stream_is_created_by_the_owner_whom_its_name_names() -> None:
    writer = stream()
    assert isinstance(writer.state, StreamState)
    assert writer.state.created == CreateStream(2, public=Right.SUBSCRIBE)
    refuse(Writer(), "forbidden", CreateStream(), ANN)
    refuse(writer, "exists", CreateStream())


def test_rights_are_needed_and_are_enough() -> None:
    writer = stream()
    refuse(writer, "forbidden", SetPermission(ANN.node, 31), ANN)
    refuse(writer, "forbidden", DeleteStream(), ANN)
    writer.add(SetPermission(ANN.node, Right.GRANT))
    refuse(writer, "forbidden", DeleteStream(), ANN)
    writer.add(SetPermission(BEN.node, Right.DELETE), signer=ANN)
    refuse(writer, "forbidden", SetPermission(BEN.node, 31), BEN)
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
    refuse(writer, "forbidden", SetPermission(BEN.node, 31), ANN, START + 1)


def test_after_it_was_deleted_a_stream_may_begin_anew_without_its_permissions() -> None:
    writer = stream(SetPermission(ANN.node, 31), DeleteStream())
    assert not writer.state.may(OWNER.node, Right.PUBLISH, START)
    refuse(writer, "no-such-stream", SetPermission(ANN.node, 31))
    refuse(writer, "no-such-stream", DeleteStream())
    refuse(writer, "forbidden", CreateStream(), ANN)
    writer.add(CreateStream(7))
    assert writer.state.created == CreateStream(7)
    assert writer.state.permissions == {}


def test_metadata_has_a_limit_in_bytes() -> None:
    refuse(Writer(), "metadata", CreateStream(metadata="é" * 2049))
    assert Writer().add(CreateStream(metadata="é" * 2048)).history.height == 1


def test_tables_are_bounded() -> None:
    writer = stream()
    nodes = [NODES[0][:16] + at.to_bytes(4) for at in range(MAX_PERMISSIONS - 1)]
    writer.state.permissions |= {node: Permission(1) for node in nodes}
    assert len(writer.state.permissions) == MAX_PERMISSIONS
    refuse(writer, "full", SetPermission(ANN.node, 1))
    writer.add(SetPermission(nodes[0], 3), SetPermission(nodes[1], 0), SetPermission(ANN.node, 1))


def test_actions_stand_in_the_chain_they_belong_to() -> None:
    refuse(stream(), "wrong-chain", SetTrackers(ENTRIES))
    refuse(Writer(NETWORK), "wrong-chain", CreateStream())


def test_the_network_begins_with_the_record_that_names_it() -> None:
    state = NetworkState(NET)
    with pytest.raises(RemoteError, match="wrong-genesis"):
        state.begin(GENESIS + b"\0")
    state.begin(GENESIS)
    assert state.genesis is not None
    assert state.genesis.owner == OWNER.node


def test_the_networks_owner_names_its_trackers() -> None:
    writer = Writer(NETWORK).add(SetTrackers(ENTRIES))
    assert isinstance(writer.state, NetworkState)
    assert writer.state.trackers == ENTRIES
    refuse(writer, "forbidden", SetTrackers(ENTRIES[:1]), ANN)
    twice = SetTrackers((ENTRIES[0], TrackerEntry(ENTRIES[0].node, "elsewhere")))
    refuse(writer, "twice", twice)
    writer.add(SetTrackers(ENTRIES[1:]))
    assert writer.state.trackers == ENTRIES[1:]


def test_the_networks_owner_names_its_storage_nodes() -> None:
    writer = Writer(NETWORK).add(SetTrackers(ENTRIES), SetStorage(ENTRIES[:1]))
    assert (writer.state.trackers, writer.state.storage) == (ENTRIES, ENTRIES[:1])
    refuse(writer, "forbidden", SetStorage(()), ANN)
    refuse(writer, "twice", SetStorage(ENTRIES[:1] * 2))
    assert writer.add(SetStorage(())).state.storage == ()


def test_a_stream_is_edited_by_who_may_edit_it() -> None:
    writer = stream(SetPermission(ANN.node, Right.EDIT), SetPermission(BEN.node, Right.GRANT))
    refuse(writer, "forbidden", EditStream(metadata="mine"), BEN)
    writer.add(EditStream(partitions=5, metadata="hers"), signer=ANN)
    assert writer.state.created == CreateStream(5, metadata="hers", public=Right.SUBSCRIBE)
    assert writer.state.may(BEN.node, Right.SUBSCRIBE, START)
    refuse(writer, "partitions", EditStream(partitions=4))
    refuse(writer, "metadata", EditStream(metadata="é" * 2049))
    refuse(Writer(), "no-such-stream", EditStream(metadata="x"))


def test_who_may_read_now_and_until_when_that_holds() -> None:
    writer = stream(
        SetPermission(PUBLIC, 0),
        SetPermission(ANN.node, Right.SUBSCRIBE, NOW_MS + 1_000),
        SetPermission(BEN.node, Right.PUBLISH, NOW_MS + 500),
        SetPermission(NODES[7], Right.SUBSCRIBE),
    )
    state = writer.state
    assert state.readers(START) == {OWNER.node, ANN.node, NODES[7]}
    assert state.readers(START + 1) == {OWNER.node, NODES[7]}
    assert state.next_expiry(START) == NOW_MS + 500
    assert state.next_expiry(START + 0.5) == NOW_MS + 1_000
    assert state.next_expiry(START + 1) is None
    assert [state.last_lapse(START + s) for s in (0.9, 1)] == [0, NOW_MS + 1_000]
    assert not state.is_public(Right.SUBSCRIBE, START)
    writer.add(SetPermission(PUBLIC, Right.SUBSCRIBE, NOW_MS + 2_000))
    assert writer.state.is_public(Right.SUBSCRIBE, START)
    assert not writer.state.is_public(Right.PUBLISH, START)
    assert not writer.state.is_public(Right.SUBSCRIBE, START + 2)
    assert writer.add(DeleteStream()).state.readers(START) == frozenset()


def test_whether_a_permission_to_read_has_ended_meanwhile() -> None:
    state = stream(
        SetPermission(ANN.node, Right.SUBSCRIBE, NOW_MS + 1_000),
        SetPermission(BEN.node, Right.PUBLISH, NOW_MS + 3_000),
    ).state
    assert not state.lapsed(START, START + 0.999)
    assert state.lapsed(START, START + 1)
    assert not state.lapsed(START + 1, START + 9)


def test_removals_of_readers_are_counted() -> None:
    writer = stream(SetPermission(ANN.node, Right.SUBSCRIBE | Right.PUBLISH))
    assert writer.state.removals == 0
    writer.add(SetPermission(ANN.node, Right.SUBSCRIBE))
    assert writer.state.removals == 0
    writer.add(SetPermission(ANN.node, Right.PUBLISH))
    assert writer.state.removals == 1
    theirs = writer.fork().add(SetPermission(BEN.node, 0), DeleteStream())
    writer.add(EditStream(metadata="meanwhile"))
    before = writer.state.removals
    assert writer.take(*theirs.changes).state.removals > before + 2  # whoever met whom in a fork
    assert writer.state.removals == theirs.take(*writer.changes).state.removals


def test_a_copy_goes_its_own_way() -> None:
    state = new_state(STREAM, NET)
    assert isinstance(state, StreamState)
    state.act(CreateStream())
    twin = state.copy()
    state.act(SetPermission(ANN.node, 1))
    assert twin.permissions == {}


def test_who_could_ever_publish_is_remembered_for_the_sake_of_history() -> None:
    writer = stream(SetPermission(ANN.node, int(Right.PUBLISH)), SetPermission(ANN.node, 0))
    state = writer.state
    assert not state.may(ANN.node, Right.PUBLISH, START)
    assert state.wrote(ANN.node)
    assert state.wrote(OWNER.node)
    assert not state.wrote(BEN.node)
    assert not state.copy().wrote(BEN.node)
    assert Writer().add(CreateStream(public=Right.PUBLISH)).state.wrote(BEN.node)


def test_the_first_storage_nodes_of_a_stream_are_remembered_until_it_is_created_anew() -> None:
    writer = stream(EditStream(degree=6))
    assert writer.state.first_storage == ()
    writer.add(EditStream(storage=(ANN.node,)))
    assert writer.state.first_storage == (ANN.node,)
    writer.add(EditStream(storage=(BEN.node, ANN.node)), EditStream(storage=()))
    writer.add(EditStream(storage=(BEN.node,)))
    assert writer.state.first_storage == (ANN.node,)
    writer.add(DeleteStream()).add(CreateStream(storage=(BEN.node,)))
    assert writer.state.first_storage == (BEN.node,)


def test_names_of_chains() -> None:
    assert is_chain_name(NETWORK)
    assert is_chain_name(STREAM)
    assert not any(map(is_chain_name, ("", "networks", STREAM.upper(), STREAM + "//", "0x12/a")))
