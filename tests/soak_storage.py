"""Kills a process that appends to a log, many times: `python tests/soak_storage.py --kills 200`.

One JSON object at the end; the exit code is 1 if anything that was acknowledged is missing.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from random import Random

from live.storage.kills import append_and_kill, check_after_kill


def main() -> int:
    """Append, kill and look, so many times; print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, acknowledged, length, wrong = Random(options.seed), 0, 0, ""
    with tempfile.TemporaryDirectory(prefix="anabranch-soak-") as folder:
        path = Path(folder, "logs.sqlite")
        for at in range(options.kills):
            said = append_and_kill(path, at + 1, rng)
            try:
                length = check_after_kill(path, said)
            except AssertionError as error:
                wrong = f"after {at + 1} kills: {error}"
                break
            acknowledged += len(said)
    row = {"kills": options.kills, "acknowledged": acknowledged, "messages": length}
    print(json.dumps({**row, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
