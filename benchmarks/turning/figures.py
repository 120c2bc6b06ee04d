"""The figures in the rows that benchmarks print with --json, and the keys that name a row."""

from collections.abc import Mapping, Sequence

Row = Mapping[str, object]
Name = tuple[tuple[str, object], ...]

# Numbers that say what was measured and not how it went. Every text is such a name as well.
NAMES = {
    *("processes", "messages_per_frame", "packets_in_batch", "messages_in_frame", "value"),
    *("nodes", "streams", "links", "records", "topologies", "rate"),
}
MORE_IS_BETTER = {
    **dict.fromkeys(("msg_s", "messages_per_s", "complete"), True),
    **dict.fromkeys(("events_per_s", "events_per_s_without_traces"), True),
    **dict.fromkeys(("source_per_s", "verify_per_s", "per_s"), True),
    **dict.fromkeys(("cpu_us_per_delivery", "us_per_delivery", "cpu_share"), False),
    **dict.fromkeys(("plain_us_per_delivery", "ordered_us_per_delivery"), False),
    **dict.fromkeys(("public_us_per_delivery", "private_us_per_delivery"), False),
    **dict.fromkeys(("p50_ms", "p99_ms", "p50_ms_at_50", "p99_ms_at_50", "max_ms"), False),
    **dict.fromkeys(("rss_mb", "rss_mb_with_messages", "bytes_each", "idle_cpu_share"), False),
    **dict.fromkeys(("start_s", "join_s", "spark_s", "batch_s", "seconds"), False),
    **dict.fromkeys(("p50_s", "p95_s", "p99_s", "max_s", "live_p50_s", "live_p95_s"), False),
    **dict.fromkeys(("operations_per_join", "operations_per_leave"), False),
    **dict.fromkeys(("ratio_to_bare_heap", "time_over_scipy"), False),
    "ratio_to_parquet": True,
    "ratio_two_syncs": True,
}
# `ratio` means another thing in each file.
RATIO_MORE_IS_BETTER = {
    **dict.fromkeys(("storage.py", "columnar.py"), True),
    **dict.fromkeys(("peer.py", "encryption.py", "ordering.py", "spark_sweep.py"), False),
}


def directions(file: str, chosen: Sequence[str]) -> dict[str, bool] | None:
    """Return which keys are compared, and of which more is better; None: every known key.

    A chosen key that is not known says its direction: `key=more` or `key=less`.
    """
    if not chosen:
        return None
    found = {}
    for text in chosen:
        key, _, direction = text.partition("=")
        known = more_is_better(file, key)
        if direction in ("more", "less"):
            known = direction == "more"
        if known is None or direction not in ("", "more", "less"):
            raise ValueError(
                f"--key {text}: say which is better, --key {key}=more or --key {key}=less"
            )
        found[key] = known
    return found


def more_is_better(file: str, key: str) -> bool | None:
    """Return whether more of a figure is better; None: it is no figure that is known."""
    return RATIO_MORE_IS_BETTER.get(file) if key == "ratio" else MORE_IS_BETTER.get(key)


def name_of(row: Row) -> Name:
    """Return what tells this row from the others of a run."""
    return tuple((k, v) for k, v in row.items() if isinstance(v, str) or k in NAMES)


def figures_of(row: Row, file: str, chosen: dict[str, bool] | None) -> dict[str, float]:
    """Return the figures of a row that are compared."""
    return {
        key: float(value)
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key not in NAMES
        if (key in chosen if chosen is not None else more_is_better(file, key) is not None)
    }
