"""What a report says, subject by subject: a sentence, a chart where one helps, and a table."""

from collections.abc import Callable, Mapping
from html import escape

from anabranch.spark.charts import MAX_SERIES, Series, bar_chart, line_chart, show
from anabranch.spark.page import Row, Section, Table, plain_name, size_of, table_html

CAUSES = {
    "refused": "the node had it, and would not or could not deliver it",
    "not-sent": "a neighbour dropped the copy that was for it",
    "stopped": "the node ended within 10 seconds",
    "silent": "nothing was heard of the node from then on, though others went on",
    "unsubscribed": "it left within 10 seconds",
    "joining": "it had subscribed less than 5 seconds before",
    "publisher-stopped": "the node that published ended within 10 seconds",
    "link-lost": "it lost a link at about that time",
    "trace-ends": "the trace ends within 10 seconds, and it may have been under way",
    "unknown": "the trace does not tell",
}

Tables = Mapping[str, Table]


def _named(row: Row, several_runs: bool) -> str:
    part = plain_name(row["part"])
    return f"{row['run']}, {part}" if several_runs else part


def _several(tables: Tables) -> bool:
    return tables["runs"].total > 1


def delays(tables: Tables) -> Section:
    curves: dict[str, list[tuple[float, float | None]]] = {}
    for row in tables["distribution"].rows:
        points = curves.setdefault(_named(row, _several(tables)), [])
        points.append((row["delay_ms"], 100 * row["share"]))
    series = [Series(name, points) for name, points in curves.items()]
    chart = line_chart(series, "delay (ms)", "deliveries within it (%)", log_x=True)
    if tables["delays"].total > MAX_SERIES:
        chart += f'<p class="more">The {MAX_SERIES} parts with the most deliveries are drawn.</p>'
    columns = [
        "run",
        "part",
        "nodes",
        "deliveries",
        "messages",
        "mean_ms",
        "min_ms",
        "p50_ms",
        "p90_ms",
        "p95_ms",
    ]
    columns += ["p99_ms", "max_ms"]
    return Section(
        "delay",
        "Delay",
        "How long a message took from its publisher to another node's application; the curve "
        "tells which share of the deliveries took at most so long.",
        chart + table_html(tables["delays"], columns),
    )


def over_time(tables: Tables) -> Section:
    windows = {row["place"]: row for row in tables["delay_windows"].rows}
    rate: list[tuple[float, float | None]] = []
    slow: list[tuple[float, float | None]] = []
    width_s = next((row["width_s"] for row in windows.values()), 0.0)
    told = f" of {show(width_s)} seconds" if windows else ""
    for place in range(max(windows, default=-1) + 1):
        row = windows.get(place, {"messages": 0, "p99_ms": None})
        rate.append((place * width_s, row["messages"] / width_s))
        slow.append((place * width_s, row["p99_ms"]))
    body = line_chart([Series("deliveries a second", rate)], "seconds", "deliveries a second")
    body += line_chart([Series("p99", slow)], "seconds", "99th percentile of the delay (ms)")
    return Section(
        "time",
        "Over time",
        "What was delivered each second, and how late the slowest hundredth of it was, in windows"
        f"{told}{' of the largest run' if _several(tables) else ''}; what readers of the history "
        "were handed is included, as old as it was.",
        body,
    )


def hops(tables: Tables) -> Section:
    counts: dict[int, int] = {}
    for row in tables["hops"].rows:
        counts[row["hops"]] = counts.get(row["hops"], 0) + row["deliveries"]
    total = max(1, sum(counts.values()))
    bars = [(str(hops), 100 * counts[hops] / total) for hops in sorted(counts)]
    columns = ["run", "part", "hops", "deliveries", "share", "mean_ms"]
    return Section(
        "hops",
        "Hops",
        "Over how many links a message came; each of them adds its own delay.",
        bar_chart(bars, "hops", "deliveries (%)") + table_html(tables["hops"], columns, "share"),
    )


def penalty(tables: Tables) -> Section:
    columns = [
        "run",
        "pairs",
        "direct_pairs",
        "mean_ms",
        "direct_ms",
        "rdp",
        "rdp_p50",
        "rdp_p95",
        "rdp_max",
    ]
    known = [row for row in tables["penalties"].rows if row["rdp"] is not None]
    return Section(
        "penalty",
        "Delay penalty",
        "How many times longer a message takes through the overlay than one that is sent straight "
        "to its receiver (rdp), over the pairs of nodes whose straight way is known.",
        table_html(Table(known, len(known)), columns),
    )


def redundancy(tables: Tables) -> Section:
    columns = [
        "run",
        "part",
        "nodes",
        "frames",
        "received",
        "duplicates",
        "per_node",
        "per_node_least",
    ]
    columns += ["per_node_greatest"]
    return Section(
        "redundancy",
        "Redundancy",
        "How many copies of a message come to a node that has it already (per node): they cost "
        "bandwidth, and keep messages coming when links and nodes fail.",
        table_html(tables["redundancy"], columns),
    )


def coverage(tables: Tables) -> Section:
    columns = ["run", "part", "frames", "subscribers", "expected", "delivered", "coverage"]
    columns += ["steady_expected", "steady_delivered", "steady_coverage"]
    return Section(
        "coverage",
        "Coverage",
        "Which share of the deliveries that were due took place; steady are the nodes that were "
        "subscribed from 5 seconds before a message to 10 seconds after it.",
        table_html(tables["coverage"], columns),
    )


def gaps(tables: Tables) -> Section:
    causes: dict[str, int] = {}
    for row in tables["gaps"].rows:
        causes[row["cause"]] = causes.get(row["cause"], 0) + row["messages"]
    bars = sorted(causes.items(), key=lambda item: -item[1])
    columns = [
        "run",
        "part",
        "node",
        "cause",
        "detail",
        "frames",
        "messages",
        "first_at",
        "last_at",
    ]
    told = "".join(f"<dt>{escape(name)}</dt><dd>{escape(CAUSES[name])}</dd>" for name, _ in bars)
    body = bar_chart(bars, "cause", "messages missing") if bars else ""
    body += table_html(tables["gaps"], columns, "messages")
    if bars:
        body += f"<dl>{told}</dl>"
    elif tables["coverage"].rows:
        body = "<p>Nothing is missing.</p>"
    return Section(
        "gaps",
        "Gaps and their causes",
        "Deliveries that were due and did not take place, by what the trace says about why.",
        body,
    )


def load(tables: Tables) -> Section:
    columns = [
        "run",
        "node",
        "published",
        "delivered",
        "sent",
        "received",
        "duplicates",
        "dropped",
        "peers",
    ]
    columns += ["sent_bytes", "received_bytes", "delivered_per_s"]
    return Section(
        "load",
        "Load per node",
        "What each node did, the busiest first: messages published and delivered, frames and "
        "bytes sent and received.",
        table_html(tables["load"], columns, "sent_bytes"),
    )


def links(tables: Tables) -> Section:
    columns = ["run", "node", "peer", "frames", "bytes", "bytes_per_s", "useful", "share", "rtt_ms"]
    total = size_of(sum(row["bytes"] for row in tables["links"].rows))
    return Section(
        "links",
        "Links",
        f"How links were used, one row for each direction, the busiest first ({total} in all); "
        "useful is the share of frames that the receiver did not have yet.",
        table_html(tables["links"], columns, "bytes"),
    )


def slow_nodes(tables: Tables) -> Section:
    rows = [row for row in tables["slow_nodes"].rows if row["slow"]]
    columns = ["run", "node", "deliveries", "late_ms", "late_p95_ms", "queue_drops"]
    body = table_html(Table(rows, len(rows)), columns, "late_ms")
    if not rows and tables["slow_nodes"].rows:
        body = "<p>No node is slow.</p>"
    return Section(
        "slow",
        "Slow nodes",
        "Nodes to which messages come much later than to the others (late is against half of the "
        "nodes), or for which neighbours had to drop copies.",
        body,
    )


def prediction(tables: Tables) -> Section:
    columns = ["run", "part", "nodes", "links", "measured_links", "pairs", "unreachable_pairs"]
    columns += ["estimated_ms", "measured_ms", "error_ms", "error_percent"]
    return Section(
        "prediction",
        "Prediction",
        "The mean delay that round trips and topology alone foretell, beside the one that was "
        "measured.",
        table_html(tables["prediction"], columns),
    )


def runs(tables: Tables) -> Section:
    columns = [
        "run",
        "records",
        "unreadable",
        "nodes",
        "parts",
        "first_at",
        "last_at",
        "seconds",
        "published",
    ]
    columns += ["delivered", "dropped"]
    noted = table_html(tables["notices"], ("run", "what", "times", "nodes", "detail", "first_at"))
    return Section(
        "runs",
        "Records",
        "What the tables were made of, and what the nodes had to say.",
        table_html(tables["runs"], columns) + noted,
    )


SECTIONS: tuple[Callable[[Tables], Section], ...] = (
    delays,
    over_time,
    hops,
    penalty,
    redundancy,
    coverage,
    gaps,
    load,
    links,
    slow_nodes,
    prediction,
    runs,
)
