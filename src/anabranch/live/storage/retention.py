"""Lets the oldest go: by age, by size, and what was deleted, a little at a time.

What is not settled stays. Of what has to go for its size the part pays that has the most: a stream
that writes much does not drive out those that write little.
"""

import apsw

from anabranch.live.storage.holes import within
from anabranch.live.storage.rows import PartLog, select
from anabranch.live.storage.writes import Logs

STEP_FRAMES = 1_024  # deleted in one transaction
STEP_PAGES = 2_048  # of the file that are given back at once
SPARE_PAGES = 256  # that the file may keep for what comes next,
SPARE_SHARE = 8  # or one in so many, if that is more


def retain(logs: Logs, now_ms: int, keep_ms: int | None, keep_bytes: int | None) -> bool:
    """Do one step, inside a transaction; return whether there is more to do."""
    if _sweep(logs.database):
        return True
    if keep_ms is not None:
        for log in list(logs.saved.values()):
            if _let_go_by_age(logs, log, now_ms - keep_ms):
                return True
    if keep_bytes is not None:
        return _let_go_by_size(logs, keep_bytes)
    return False


def shrink(database: apsw.Connection) -> bool:
    """Give unused pages of the file back; return whether there are more."""
    unused: int
    pages: int
    unused, pages = database.pragma("freelist_count"), database.pragma("page_count")
    spare = max(SPARE_PAGES, pages // SPARE_SHARE)
    if unused <= spare:
        return False
    database.execute(f"PRAGMA incremental_vacuum({min(STEP_PAGES, unused - spare)})").fetchall()
    return unused - STEP_PAGES > spare


def _sweep(database: apsw.Connection) -> bool:
    """Delete some of what was deleted or begun anew; return whether there was any."""
    part: int | None = database.execute("SELECT min(part) FROM discarded").get
    if part is None:
        return False
    database.execute(
        "DELETE FROM frames WHERE id IN "
        "(SELECT id FROM frames INDEXED BY by_chain WHERE part = ? LIMIT ?)",
        (part, STEP_FRAMES),
    )
    if database.changes() < STEP_FRAMES:
        database.execute("DELETE FROM discarded WHERE part = ?", (part,))
    return True


def _let_go_by_age(logs: Logs, log: PartLog, before_ms: int) -> bool:
    where = "part = ? AND offset IS NULL AND placed_ms < ? LIMIT ?"
    sql = f"id, length(frame) FROM frames INDEXED BY held WHERE {where}"
    held = select(logs.database, sql, log.id, before_ms, STEP_FRAMES)
    if held:
        logs.drop(logs.change(log.part), held)
    return bool(held) or _let_go(logs, log, before_ms, None)


def _let_go_by_size(logs: Logs, keep_bytes: int) -> bool:
    excess = sum(log.size_bytes for log in logs.saved.values()) - keep_bytes
    if excess <= 0:
        return False
    largest_first = sorted(logs.saved.values(), key=lambda log: log.size_bytes, reverse=True)
    return any(_let_go(logs, log, None, excess) for log in largest_first)


def _let_go(logs: Logs, log: PartLog, before_ms: int | None, excess: int | None) -> bool:
    """Delete the first frames of a log that are old enough, or as many as are too many."""
    rows = logs.database.execute(
        "SELECT id, length(frame), offset + count, placed_ms FROM frames INDEXED BY by_offset "
        "WHERE part = ? AND offset < ? AND offset + count <= ? ORDER BY offset LIMIT ?",
        (log.id, log.high, log.high, STEP_FRAMES),
    )
    gone: list[tuple[int, int]] = []
    start = log.start
    for row_id, size, end, placed_ms in rows:
        if before_ms is not None and placed_ms >= before_ms:
            break
        if excess is not None:
            if excess <= 0:
                break
            excess -= size
        gone.append((row_id, size))
        start = end
    rows.close()
    if gone:
        changed = logs.change(log.part)
        changed.start = start
        changed.missing = within(changed.missing, start, changed.length)
        logs.drop(changed, gone, held=False)
    return bool(gone)
