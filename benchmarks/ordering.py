"""What order costs: CPU per delivery to subscriptions in order beside plain ones, in one run.

As in encryption.py, but for the two kinds of streams: both are public.

    python benchmarks/ordering.py [--json]
"""

import argparse
import asyncio

from encryption import Kind, measure, show


def main() -> None:
    """Compare subscriptions in order with those that take messages as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    as_json = parser.parse_args().json
    rows = asyncio.run(measure("plain", Kind(ordered=False), "ordered", Kind()))
    show("plain", "ordered", rows, as_json)


if __name__ == "__main__":
    main()
