"""Attackers on the path between two nodes, who have no key of either."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from anabranch.core import codec
from anabranch.core.link_mac import MAC_BYTES
from anabranch.core.messages import Control, Leave
from anabranch.live.address import Host, NetworkAddress
from live.networks import eventually, live_network, run
from live.tap import BINARY, Frame, Tap, tapped
from live.town import Town, inhabit, settle


@asynccontextmanager
async def tapped_town(folder: Path) -> AsyncIterator[tuple[Town, Tap]]:
    """Let honest nodes reach their tracker through an attacker, who is returned too."""
    async with live_network(folder) as live, AsyncExitStack() as stack:
        tap = await stack.enter_async_context(tapped(live.trackers[0].transport.port))
        live.address = NetworkAddress(live.address.genesis, (Host("127.0.0.1", tap.port),))
        yield await inhabit(live, stack, 2, "city"), tap


def forged(message: Control) -> Frame:
    """Make a message such as the dialler would send, without the keys of the link."""
    sent = codec.encode(message)
    return Frame(BINARY, len(sent).to_bytes(4) + sent + bytes(MAC_BYTES), from_dialler=True)


def test_a_forged_leave_removes_no_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with tapped_town(tmp_path) as (place, tap):
            tracker, victim = place.tracker.machine.tracker, place.nodes[-1].node
            links, link = place.tracker.driver.links, place.tracker.driver.links[victim.node]

            def dialled_again() -> bool:
                assert tracker.parts_of(victim.node) == [place.part]
                return links.get(victim.node, link) is not link

            tap.insert(forged(Leave(place.part)))  # the newest link is the victim's
            await eventually(dialled_again, "the victim has another link with the tracker")
            await settle(place.nodes, place.stream.id)
            await place.publish("after")

    run(main())
