"""What was not delivered though it was due, and why, as far as the trace tells."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from anabranch.spark.tables.coverage import ARRIVES_WITHIN_S, JOINING_S, expectations
from anabranch.spark.tables.frames import FRAME, spans

# Why a copy does not leave; the peer of such a record is whom it was for. Otherwise it is whom the
# copy came from. A link that is down may be the one or the other.
NEVER_LEFT = ("link-full", "parted", "no-link")
LINK_DOWN = "link-down"

NOTICED_WITHIN_S = 5.0  # a link may have been dead for so long before its ends notice

# In the order of precedence: what the trace says outright first, what only coincides last.
CAUSES = (
    "refused",  # the node had the frame and would not or could not deliver it; detail: its reason
    "not-sent",  # a neighbour dropped the copy that was for it; detail: the reason
    "stopped",  # the node ended within 10 s
    "silent",  # nothing was heard of the node from then on, though others went on
    "unsubscribed",  # it left within 10 s
    "joining",  # it had subscribed less than 5 s before
    "publisher-stopped",  # the publishing node ended within 10 s
    "link-lost",  # it lost a link from 5 s before to 10 s after; detail: the reason
    "trace-ends",  # the trace ends within 10 s, and the frame may have been under way
    "unknown",
)


def missing(records: DataFrame) -> DataFrame:
    """Return every delivery that was due and did not happen, with `cause` and `detail`.

    The other columns are those of a frame, published_at, source, count, node and steady.
    """
    lost = expectations(records).where(~sf.col("delivered")).drop("delivered")
    lost = _join_drops(lost, records)
    lost = _join_ends(lost, records)
    published_at, soon = sf.col("published_at"), sf.col("published_at") + ARRIVES_WITHIN_S
    left = sf.col("until") <= soon
    holds = {
        "refused": sf.col("refused").isNotNull(),
        "not-sent": sf.col("not_sent").isNotNull(),
        "stopped": left & sf.col("stopped"),
        "silent": left & sf.col("silent"),
        "unsubscribed": left,
        "joining": published_at - sf.col("since") < JOINING_S,
        "publisher-stopped": sf.col("publisher_stopped"),
        "link-lost": sf.col("link_lost").isNotNull(),
        "trace-ends": sf.col("last_at") < soon,
    }
    cause = sf.coalesce(
        *(sf.when(holds[name], sf.lit(name)) for name in CAUSES if name in holds),
        sf.lit(CAUSES[-1]),
    )
    detail = {"refused": "refused", "not-sent": "not_sent", "link-lost": "link_lost"}
    said = sf.coalesce(
        *(sf.when(sf.col("cause") == name, sf.col(column)) for name, column in detail.items()),
        sf.lit(""),
    )
    columns = (*FRAME, "published_at", "source", "count", "node", "steady", "cause", "detail")
    return lost.withColumn("cause", cause).withColumn("detail", said).select(*columns)


def gaps(records: DataFrame) -> DataFrame:
    """Sum up what is missing: run, part, node, cause, detail, frames, messages, first_at, last_at
    (when they were published)."""
    return (
        missing(records)
        .groupBy("run", "part", "node", "cause", "detail")
        .agg(
            sf.count("*").alias("frames"),
            sf.sum("count").alias("messages"),
            sf.min("published_at").alias("first_at"),
            sf.max("published_at").alias("last_at"),
        )
    )


def _join_drops(lost: DataFrame, records: DataFrame) -> DataFrame:
    """Add what became of copies at the node itself and at those who had one for it."""
    drops = records.where(sf.col("kind") == "dropped")
    reason = sf.col("reason")
    refused = (
        drops.where(~reason.isin(*NEVER_LEFT))
        .groupBy(*FRAME, "node")
        .agg(sf.min_by("reason", "at").alias("refused"))
    )
    not_sent = (
        drops.where((sf.col("peer") != "") & reason.isin(*NEVER_LEFT, LINK_DOWN))
        .groupBy(*FRAME, sf.col("peer").alias("node"))
        .agg(sf.min_by("reason", "at").alias("not_sent"))
    )
    return lost.join(refused, [*FRAME, "node"], "left").join(not_sent, [*FRAME, "node"], "left")


def _join_ends(lost: DataFrame, records: DataFrame) -> DataFrame:
    """Add which links, which nodes and which runs ended at about the same time."""
    cuts = records.where((sf.col("kind") == "linked") & ~sf.col("up")).select(
        "run", "node", sf.col("at").alias("cut_at"), sf.col("reason").alias("cut_reason")
    )
    around = sf.col("cut_at").between(
        sf.col("published_at") - NOTICED_WITHIN_S, sf.col("published_at") + ARRIVES_WITHIN_S
    )
    moments = lost.select("run", "node", "published_at").distinct()
    cut = (
        moments.join(cuts, ["run", "node"])
        .where(around)
        .groupBy("run", "node", "published_at")
        .agg(sf.min_by("cut_reason", "cut_at").alias("link_lost"))
    )
    stops = records.where(sf.col("kind") == "stopped").select(
        "run", sf.col("node").alias("source"), sf.col("at").alias("stop_at")
    )
    after = sf.col("stop_at").between(
        sf.col("published_at"), sf.col("published_at") + ARRIVES_WITHIN_S
    )
    sources = lost.select("run", "source", "published_at").distinct()
    ended = (
        sources.join(stops, ["run", "source"])
        .where(after)
        .select("run", "source", "published_at", sf.lit(True).alias("publisher_stopped"))
        .distinct()
    )
    return (
        lost.join(cut, ["run", "node", "published_at"], "left")
        .join(ended, ["run", "source", "published_at"], "left")
        .join(sf.broadcast(spans(records).select("run", "last_at")), "run", "left")
    )
