"""How long the report of a large trace takes, all tables and the page.

    python benchmarks/spark_report.py [--json] [--records N]

The trace is that of a simulated flood, many times over under other names, so that it has several
runs. It is read once as Parquet and once as JSON lines. Starting Spark is part of the time.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from anabranch.lab.experiment import Params
from anabranch.lab.experiments.propagation import EXPERIMENT
from anabranch.traces.files import TraceWriter, read_trace

NODES = 250  # half a million records a run
RECORDS = 5_000_000
BAR_S = 120.0


def make_traces(folder: Path, records: int) -> int:
    """Leave traces in both forms, in two folders; return how many records each has."""
    for form in ("parquet", "jsonl"):
        (folder / form).mkdir()
    list(EXPERIMENT.run(Params((NODES,), 1, traces=str(folder))))
    (trace,) = folder.glob("*.parquet")
    with TraceWriter(folder / "trace.jsonl") as lines:
        for record in read_trace(trace):
            lines.write(record)
    runs = max(1, round(records / lines.records))
    for run in range(runs):
        shutil.copy(trace, folder / "parquet" / f"run-{run}.parquet")
        shutil.copy(folder / "trace.jsonl", folder / "jsonl" / f"run-{run}.jsonl")
    return runs * lines.records


def report_s(traces: Path, page: Path) -> float:
    """Make the report as a user would; return how long it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "anabranch", "pipeline", "report", str(traces)]
    subprocess.run([*command, "--out", str(page)], check=True, stdout=subprocess.DEVNULL)
    assert "<html" in page.read_text()
    return time.monotonic() - began


def main() -> None:
    """Print how long it takes in both forms."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--records", type=int, default=RECORDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anabranch-report-") as name:
        folder = Path(name)
        records = make_traces(folder, options.records)
        took = {
            form: report_s(folder / form, folder / "page.html") for form in ("parquet", "jsonl")
        }
    for form, seconds in took.items():
        row = {
            "benchmark": "spark_report",
            "form": form,
            "records": records,
            "seconds": round(seconds, 1),
            "of_bar": round(seconds / BAR_S, 3),
        }
        if options.json:
            print(json.dumps(row))
        else:
            print(
                f"{form}: {records:,} records in {seconds:.0f} s, {seconds / BAR_S:.0%} of the bar"
            )


if __name__ == "__main__":
    main()
