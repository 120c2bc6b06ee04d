"""A node whose user demands that trackers confirm rights, and the age that it reports."""

from datetime import timedelta
from pathlib import Path

import pytest

from anabranch import NotPermitted
from anabranch.core.errors import LocalError
from anabranch.core.ids import StreamPart
from anabranch.live import terms
from live.networks import live_network, run
from support.waiting import eventually


def test_node_with_confirm_within_refuses_rights_that_no_tracker_confirms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terms, "LEAST_CONFIRM_S", 1)

    async def test() -> None:
        async with live_network(tmp_path) as live:
            owner = await live.join()
            stream = await owner.create_stream("a/strict", public="publish")
            strict = await live.join(confirm_within=timedelta(seconds=1))
            lax = await live.join()
            theirs = await strict.stream(stream.id)
            await lax.stream(stream.id)
            assert strict.metrics["registry_age_s"] == 0
            await live.trackers[0].stop()
            registry = strict.node.registry
            await eventually(
                lambda: registry.is_unconfirmed(stream.id, strict.node.driver.now()), "unconfirmed"
            )
            with pytest.raises(NotPermitted, match="no tracker has confirmed who may publish"):
                await theirs.publish(1)
            assert strict.metrics["registry_age_s"] >= 1
            assert not lax.node.registry.is_unconfirmed(stream.id, lax.node.driver.now())
            assert lax.node.registry.permits(
                StreamPart(stream.id, 0), strict.node.identity.node, strict.node.driver.now()
            )

    run(test())


def test_connection_with_confirm_within_of_a_moment_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with live_network(tmp_path) as live:
            with pytest.raises(LocalError, match=r"confirm within 0\.5 s"):
                live.connect(confirm_within=0.5)

    run(test())
