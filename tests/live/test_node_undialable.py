"""Nodes that nobody can dial, over real sockets: they are told so, and get every message."""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from anabranch.core.ids import StreamPart, show
from anabranch.core.machine import Notice
from anabranch.live.keys import new_key
from live.networks import eventually, live_network, neighbours, run
from live.readers import read_everywhere

MESSAGES = 25
CLOSED = "ws://127.0.0.1:1"  # where no process listens
NODES = 5


@pytest.mark.parametrize("places", [(0,), (NODES - 1,), (0, NODES - 1), (NODES - 2, NODES - 1)])
def test_nodes_that_nobody_can_dial_get_every_message_and_are_told(
    places: tuple[int, ...], tmp_path: Path
) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            notices: dict[int, list[Notice]] = {}
            keys = sorted((new_key()[0] for _ in range(NODES)), key=lambda key: key.node)
            nodes = []
            for place, key in enumerate(keys):
                closed: dict[str, Any] = {"advertise": CLOSED} if place in places else {}
                network = await live.join(node_key=key, **closed)
                network.node.watch(notices.setdefault(place, []).append)
                nodes.append(network)
            publisher = nodes[1]
            stream = await publisher.create_stream("cars", public=("publish", "subscribe"))
            readers = await read_everywhere(nodes, stream.id)
            part, machine = StreamPart(stream.id, 0), live.trackers[0].machine.tracker
            behind = [keys[place].node for place in places]
            await eventually(
                lambda: (
                    [n for n, known in machine.nodes(part).items() if not known.dialable] == behind
                    if len(machine.nodes(part)) == NODES
                    else False
                ),
                "the tracker knows who cannot be dialled",
            )
            full = NODES - 1
            await eventually(
                lambda: all(
                    neighbours(node, stream.id) == full - (place in places) * (len(places) - 1)
                    for place, node in enumerate(nodes)
                ),
                "every node has its neighbours",
            )
            for number in range(MESSAGES):
                await stream.publish(number)
            await eventually(
                lambda: all(reader.contents == list(range(MESSAGES)) for reader in readers),
                "all messages at every node",
            )
            kinds = {place: [each.kind for each in said] for place, said in notices.items()}
            assert kinds == {
                place: ["undialable"] if place in places else [] for place in range(NODES)
            }
            assert CLOSED in notices[places[0]][0].detail
            url = f"{live.trackers[0].http.address}/nodes/{show(behind[0])}"
            shown = await read_page(url)
            assert (shown["parts"][0]["dialable"], shown["parts"][0]["address"]) == (False, "")

    run(main())


async def read_page(url: str) -> Any:
    """Read a page of the tracker, which is served by this very loop."""

    def get() -> Any:
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)

    return await asyncio.get_running_loop().run_in_executor(None, get)


def test_node_that_can_be_dialled_is_checked_without_a_word_to_its_operator(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            network = await live.join()
            notices: list[Notice] = []
            network.node.watch(notices.append)
            checks = live.trackers[0].machine.tracker._checks
            assert checks is not None
            node = network.node.node
            await eventually(
                lambda: node in checks._nodes and checks._nodes[node].dialable is True,
                "the tracker has dialled the node",
            )
            assert checks._nodes[node].host == "127.0.0.1"
            assert notices == []

    run(main())


@pytest.mark.parametrize("address", ["ws://localhost:1", "ws://nowhere.invalid:1", "ws://[::1]:1"])
def test_node_that_advertises_a_host_name_does_not_stop_its_tracker(
    address: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            await live.join(advertise=address)
            newcomer = await live.join()
            assert await newcomer.create_stream("after")
            assert not live.trackers[0].failed.is_set()

    run(main())
