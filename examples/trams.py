"""Join the network that `anabranch up` runs, publish to a stream and read it."""

import asyncio

import anabranch


async def main():
    async with anabranch.connect() as network:
        stream = await network.create_stream("city/trams", exist_ok=True)
        async with stream.subscribe() as messages:
            await stream.publish({"id": 7, "speed": 12.5})
            async for message in messages:
                print(message.publisher, message.content)
                break


asyncio.run(main())
