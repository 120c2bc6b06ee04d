"""Publish to a stream that is stored, with receipts; then read the past, and go on into the new.

It joins the network that `anabranch up` runs, which has a storage node.
"""

import asyncio

import anabranch


async def main():
    async with anabranch.connect() as network:
        stream = await network.create_stream("city/meters", storage=1, exist_ok=True)
        for reading in range(5):
            receipt = await stream.publish_stored({"kWh": reading}, copies=1)
        print("stored at offset", receipt.offset, "by", receipt.nodes[0][:6])
        async with stream.history(last=2) as past:
            print("the last two:", [message.content async for message in past])
        async with stream.subscribe(last=1) as messages:
            await stream.publish({"kWh": "new"})
            async for message in messages:
                print(message.content)
                if message.content == {"kWh": "new"}:
                    break


asyncio.run(main())
