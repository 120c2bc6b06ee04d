"""Turns totals that nodes report into rates, by comparing two looks at them."""

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]
Key = tuple[str, int, str]  # stream, partition, node

TOTALS = ("published", "delivered", "duplicates", "dropped", "missed", "cpu_ms")
SAME_WITHIN_S = 0.5  # two reports of one node made so near to each other are one, seen twice


class Rates:
    """Remembers the last report of each node in each part."""

    def __init__(self) -> None:
        self._last: dict[Key, Json] = {}  # a report and the time it was made
        self._rates: dict[Key, Json] = {}

    def update(self, answers: Sequence[Json]) -> Json:
        """Take what the trackers show now; return streams and nodes with rates per second."""
        parts: dict[tuple[str, int], Json] = {}
        for answer in answers:
            for part in answer["parts"]:
                key = (str(part["stream"]), int(part["partition"]))
                if key not in parts or part["nodes"] > parts[key]["nodes"]:
                    parts[key] = {**part, "now": answer["now"]}
        seen: dict[Key, Json] = {}
        for (stream, partition), part in parts.items():
            for report in part["reports"]:
                key3 = (stream, partition, str(report["node"]))
                made_at = float(part["now"]) - float(report["age_s"])
                seen[key3] = {**report, "made_at": made_at}
        self._compare(seen)
        streams = [self._stream(part, seen) for _, part in sorted(parts.items())]
        return {"streams": streams, "nodes": self._nodes(seen)}

    def _compare(self, seen: dict[Key, Json]) -> None:
        for key, report in seen.items():
            before = self._last.get(key)
            elapsed_s = report["made_at"] - before["made_at"] if before else 0.0
            if before is not None and abs(elapsed_s) < SAME_WITHIN_S:
                seen[key] = before
                continue
            rates = self._rates[key] = dict.fromkeys(TOTALS, 0.0)
            # A part may have moved to a tracker whose clock is behind: then we begin anew, too.
            if before is not None and elapsed_s > 0:
                for name in TOTALS:  # a node that restarted begins again at nothing
                    rates[name] = max(0.0, (report[name] - before[name]) / elapsed_s)
        self._last = dict(seen)
        self._rates = {key: self._rates[key] for key in seen}

    def _stream(self, part: Json, seen: dict[Key, Json]) -> Json:
        stream, partition = str(part["stream"]), int(part["partition"])
        keys = [key for key in seen if key[:2] == (stream, partition)]
        fresh = [seen[key] for key in keys if self._rates[key]["delivered"]]
        return {
            "stream": stream,
            "partition": partition,
            "nodes": part["nodes"],
            "links": part["links"],
            "published_per_s": round(sum(self._rates[key]["published"] for key in keys), 2),
            "delivered_per_s": round(sum(self._rates[key]["delivered"] for key in keys), 2),
            "unstored": sum(seen[key]["unstored"] for key in keys),
            "delay_p50_ms": _middle([report["delay_p50_us"] / 1000 for report in fresh]),
            "delay_p99_ms": max((report["delay_p99_us"] / 1000 for report in fresh), default=0.0),
        }

    def _nodes(self, seen: dict[Key, Json]) -> list[Json]:
        rows: dict[str, Json] = {}
        for key, report in seen.items():
            rates = self._rates[key]
            row = rows.setdefault(
                key[2],
                {"node": key[2], "parts": 0, "published_per_s": 0.0, "delivered_per_s": 0.0}
                | {"duplicates_per_s": 0.0, "dropped": 0, "missed": 0, "unstored": 0}
                | {"cpu_percent": 0.0, "registry_age_s": 0}
                | {"delay_p50_ms": 0.0, "delay_p99_ms": 0.0, "dialable": True},
            )
            row["parts"] += 1
            row["dialable"] = row["dialable"] and report.get("dialable", True)
            for name in ("published", "delivered", "duplicates"):
                row[f"{name}_per_s"] = round(row[f"{name}_per_s"] + rates[name], 2)
            for name in ("dropped", "missed", "unstored"):
                row[name] += report[name]
            # The processor time is that of the whole process, whichever part reports it.
            row["cpu_percent"] = round(max(row["cpu_percent"], rates["cpu_ms"] / 10), 1)
            row["registry_age_s"] = max(row["registry_age_s"], report.get("registry_age_s", 0))
            for name in ("delay_p50", "delay_p99"):
                row[f"{name}_ms"] = max(row[f"{name}_ms"], report[f"{name}_us"] / 1000)
        return sorted(rows.values(), key=lambda row: (-row["delivered_per_s"], row["node"]))


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
