"""Publish a message and receive it, in a network of two nodes inside this process.

With `anabranch up` running elsewhere, `anabranch.connect()` joins that network instead.
"""

import asyncio

from anabranch import MemoryNetwork


async def main():
    async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
        theirs = await alice.create_stream("city/vehicles")
        ours = await bob.stream(theirs.id)
        async with ours.subscribe() as messages:
            await theirs.publish({"id": 7, "speed": 12.5})
            async for message in messages:
                print(message.content, "from", message.publisher)
                break


asyncio.run(main())
