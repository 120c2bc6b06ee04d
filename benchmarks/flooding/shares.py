"""Which files of Python the time of a profile went to.

    python benchmarks/flooding/shares.py flood.raw

The profile is what `py-spy record -f raw` wrote: a stack and its number of samples in each line.
What C code takes counts for the Python that called it. Imports are left out.
"""

import re
import sys
from collections import Counter
from pathlib import Path

FEWEST = 0.005  # of all samples
INNERMOST = re.compile(r"\(([^()]+):\d+\)$")


def main() -> None:
    """Print the files with their shares, the largest first."""
    if len(sys.argv) != 2:
        sys.exit("name one profile: python benchmarks/flooding/shares.py flood.raw")
    try:
        lines = Path(sys.argv[1]).read_text().splitlines()
    except OSError as error:
        sys.exit(f"{error}: record a profile first, as docs/performance.md says")
    samples: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        found = INNERMOST.search(stack)
        if found is not None and "importlib" not in stack:
            samples[Path(found[1]).name] += int(count)
    total = samples.total()
    for name, count in samples.most_common():
        if count >= FEWEST * total:
            print(f"{count / total:6.1%} {name}")


if __name__ == "__main__":
    main()
