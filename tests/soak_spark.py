"""Kills a Spark driver that copies a stream, many times: `python tests/soak_spark.py --kills 20`.

One JSON object at the end; the exit code is 1 if any message is missing or came twice, in the table
or in the other stream.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from live.networks import run
from spark.kills import copy_under_kills

MOST_S = 120.0  # that a kill, and what follows it, may take


def main() -> int:
    """Copy, kill and count; print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="anabranch-soak-") as folder:
        copying = copy_under_kills(Path(folder), options.kills, options.seed)
        outcome = run(copying, MOST_S * (options.kills + 2))
    if options.kills and not any(outcome.cut_off.values()):
        outcome.wrong.append("no kill fell into a batch: nothing was shown")
    row = {"seed": options.seed, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(row | msgspec.structs.asdict(outcome)))
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
