"""Many sensors publish at once, each to the partition that its name chooses; one node reads all."""

import asyncio
from collections import Counter

from anabranch import MemoryNetwork

SENSORS, READINGS = 20, 50


async def sensor(stream, name):
    await asyncio.gather(*(stream.publish({"n": n}, key=name) for n in range(READINGS)))


async def main():
    async with MemoryNetwork() as memory, memory.join() as field, memory.join() as office:
        stream = await field.create_stream("sensors", partitions=4)
        seen = Counter()
        async with (await office.stream(stream.id)).subscribe() as messages:
            publishing = asyncio.gather(*(sensor(stream, f"sensor {n}") for n in range(SENSORS)))
            async for message in messages:
                seen[message.partition] += 1
                if seen.total() == SENSORS * READINGS:
                    break
            await publishing
    print("messages per partition:", dict(sorted(seen.items())))


asyncio.run(main())
