"""A node's trace as a stream: complete, bounded, and never about itself."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from anabranch import LocalError, MemoryNetwork, NoSuchStream, NotPermitted, Stream, Telemetry
from anabranch.live import telemetry as module
from anabranch.live.keys import new_key
from anabranch.traces import schema
from live.networks import eventually, live_network, neighbours, run

Json = dict[str, Any]


def noted(detail: str) -> schema.Noted:
    return schema.Noted(1.0, "0xaa", "test", detail)


def records(messages: list[str]) -> list[Json]:
    return [json.loads(line) for text in messages for line in text.splitlines()]


def test_what_a_node_sees_comes_as_json_lines_without_the_stream_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            reader, node = await live.join(), await live.join()
            work = await reader.create_stream("work")
            told = await reader.create_stream("ops/telemetry")
            texts: list[str] = []

            async def read() -> None:
                async with told.subscribe() as messages:
                    async for message in messages:
                        assert message.content_type == "text"
                        texts.append(message.content)

            reading = asyncio.create_task(read())
            async with work.subscribe(), (await node.stream("work")).subscribe():
                await eventually(lambda: neighbours(node, work.id) == 1, "two nodes")
                async with Telemetry(node, "ops/telemetry") as telemetry:
                    for index in range(20):
                        await work.publish(index)
                    delivered = '"delivered","at":'
                    await eventually(lambda: "".join(texts).count(delivered) > 0, "a record")
                assert telemetry.dropped == 0
            await eventually(lambda: len(records(texts)) == telemetry.published, "all records")
            reading.cancel()
            got = records(texts)
            assert {row["node"] for row in got} == {f"0x{node.node.node.hex()}"}
            assert {row["part"] for row in got if row.get("part")} == {f"{work.id}#0"}
            assert sum(row["count"] for row in got if row["kind"] == "delivered") == 20
            # What was so before the telemetry began, and what ended with it.
            assert (got[0]["kind"], got[-1]["kind"]) == ("subscribed", "stopped")

    run(main())


def test_it_asks_for_a_stream_and_for_the_right_to_publish(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            owner = await live.join()
            stranger = await live.join(new_key()[0])
            told = await owner.create_stream("ops/telemetry")
            with pytest.raises(NoSuchStream, match="there is no stream"):
                await Telemetry(owner, "ops/nothing").__aenter__()
            with pytest.raises(NotPermitted, match=r"anabranch stream grant .* publish"):
                await Telemetry(stranger, told.id).__aenter__()

    run(main())


def test_a_batch_is_64_kib_and_what_finds_no_room_is_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BATCHES", 3)

    async def main() -> None:
        async with live_network(tmp_path) as live:
            reader, node = await live.join(), await live.join()
            told = await reader.create_stream("ops/telemetry")
            async with told.subscribe() as messages, Telemetry(node, told.id) as telemetry:
                # All in one turn of the loop, so that nothing can leave meanwhile.
                for index in range(4 * 64):
                    telemetry.write(noted(f"{index:04d}" + "x" * 1020))
                assert telemetry.dropped > 0
                texts: list[str] = []
                async for message in messages:
                    texts.append(message.content)
                    if telemetry.published and len(records(texts)) > telemetry.published:
                        break
            assert max(map(len, texts)) <= module.BATCH_BYTES
            got = records(texts)
            lost = [int(row["detail"]) for row in got if row["what"] == module.DROPPED]
            assert lost == [telemetry.dropped]
            assert telemetry.published + telemetry.dropped >= 4 * 64
            assert telemetry.figures()["dropped"] == telemetry.dropped

    run(main())


def test_what_nobody_takes_is_dropped_and_the_reason_is_kept() -> None:
    async def main() -> None:
        memory = MemoryNetwork()
        async with memory, memory.join(patience_s=0.2) as node:
            told = await node.create_stream("ops/telemetry")
            async with Telemetry(node, told.id) as telemetry:
                telemetry.write(noted("alone"))
            assert (telemetry.published, telemetry.dropped) == (0, 2)
            assert "no neighbour took the message" in str(telemetry.figures()["problem"])
            telemetry.write(noted("too late"))
            assert telemetry.dropped == 2

    run(main())


def test_a_batch_that_is_refused_here_does_not_end_the_telemetry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Stream.publish

    async def refuse(stream: Stream, content: Any) -> Any:
        if "first" in content:
            raise LocalError("the key store is full: remove some keys")
        return await publish(stream, content)

    monkeypatch.setattr(Stream, "publish", refuse)
    monkeypatch.setattr(module, "BATCH_BYTES", 1)  # a batch for each record

    async def main() -> None:
        async with live_network(tmp_path) as live:
            reader, node = await live.join(), await live.join()
            told = await reader.create_stream("ops/telemetry")
            async with told.subscribe() as messages, Telemetry(node, told.id) as telemetry:
                telemetry.write(noted("first"))
                telemetry.write(noted("second"))
                await eventually(lambda: telemetry.dropped == 1, "a refusal")
                telemetry.write(noted("third"))
                details: list[str] = []
                async for message in messages:
                    details += [row.get("detail", "") for row in records([message.content])]
                    if "third" in details:
                        break
            assert "second" in details
            assert telemetry.figures()["problem"] == "the key store is full: remove some keys"

    run(main())
