"""An attempt at a task of the sink, in a process of its own: prints what was published and found.

    python attempt.py OPTIONS HOW

`half` publishes the first half of the rows only; `blind` does not look what is stored; `other` has
other rows; `late` is of a batch that began two minutes ago; `hole` loses one frame on the way;
`minute` comes a minute later.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from anabranch.live.numbered import Numbered
from anabranch.spark import publisher
from anabranch.spark.access import open_network, parse_access
from anabranch.spark.epochs import Epoch
from anabranch.spark.publisher import Target, write_rows
from anabranch.spark.rows import Row

have_stored = publisher._Part._have_stored


async def lose(
    part: publisher._Part, room: asyncio.Semaphore, previous: int, messages: list[Numbered]
) -> None:
    """Have every frame stored but one."""
    if messages[0].content == b"0256":
        room.release()
    else:
        await have_stored(part, room, previous, messages)


async def main(options: dict[str, str], how: str) -> None:
    """Write a thousand rows as the first task of a batch that all attempts share."""
    noted = Path(options.pop("path")) / "began"
    if not noted.exists():
        late_s = 120 if "late" in how else 0
        noted.write_text(str(int((time.time() - late_s) * 1000)))
    epoch = Epoch("query", 0, int(noted.read_text()))
    target = Target(parse_access(options), options["stream"], 2, 1)
    rows = [Row(f"{n:04d}".encode(), None) for n in range(1_000)]
    if "half" in how:
        rows = rows[:512]
    if "other" in how:
        rows[7] = Row(b"9999", None)
    if "blind" in how:
        publisher._Part.look = lambda part: asyncio.sleep(0)
    if "hole" in how:
        publisher._Part._have_stored = lose
    if "minute" in how:
        publisher.time = SimpleNamespace(time=lambda: time.time() + 60)
    async with open_network(target.access) as network:
        written = await write_rows(network, target, epoch, 0, {0: rows})
    print(json.dumps([written.published, written.found]))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))
