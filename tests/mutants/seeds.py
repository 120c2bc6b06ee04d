"""Runs seeds of a scenario until one fails: `python tests/mutants/seeds.py KIND COUNT`.

The exit code is 1 if one failed, as it must under a mutant.
"""

import sys

from soak import run_seed

FIRST = 100_000


def main() -> int:
    """Run the seeds in turn."""
    kind, count = sys.argv[1], int(sys.argv[2])
    for seed in range(FIRST, FIRST + count):
        _, _, violations = run_seed(kind, seed)
        if violations:
            print(f"{kind} seed {seed}: {violations[0]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
