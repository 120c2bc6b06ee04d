"""Throw hostile bytes at the codec, a Peer and a Tracker; hostile.py says what must hold.

    python tests/fuzz/fuzz_codec.py --seconds 30     or --runs 100000
    python tests/fuzz/fuzz_codec.py --replay HEX     one input that failed, with its traceback

With atheris the search is guided by the coverage of the code that runs. libFuzzer, below it,
ends its process when it is done, so it works in a child and the parent reports. Where there is
no atheris, the same inputs are changed at random for the same time.
"""

import argparse
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

MAX_INPUT_BYTES = 2_048
MAX_INPUT_SECONDS = 10
GRACE_SECONDS = 120


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=30, help="how long (default: 30)")
    parser.add_argument("--runs", type=int, default=-1, help="stop after this many inputs, too")
    parser.add_argument("--seed", type=int, default=1, help="of the search (default: 1)")
    parser.add_argument("--replay", metavar="HEX", help="try this one input")
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    return parser.parse_args()


def breaks(data: bytes) -> Exception | None:
    """Try one input; return what it broke."""
    import hostile

    try:
        hostile.check(data)
    except Exception as error:
        return error
    return None


def failed(data: bytes) -> int:
    """Show an input that broke something, cut to what is needed, and how to see it again."""
    starts = (data[:length] for length in range(len(data)))
    data = next((start for start in starts if breaks(start)), data)
    traceback.print_exception(breaks(data))
    print(f"fuzz_codec: FAILED; to see it again: --replay {data.hex()}")
    return 1


# --- Guided by coverage ---------------------------------------------------------------------


def search(options: argparse.Namespace) -> None:
    """In the child: hand over to libFuzzer, which does not return."""
    import atheris

    with atheris.instrument_imports(include=["anabranch"]):
        import hostile
    folder = Path(options.child)
    corpus = folder / "corpus"
    corpus.mkdir()
    for count, data in enumerate(hostile.first_inputs()):
        (corpus / f"first-{count}").write_bytes(data)
    flags = {
        "max_total_time": options.seconds,
        "runs": options.runs,
        "seed": options.seed,
        "max_len": MAX_INPUT_BYTES,
        "timeout": MAX_INPUT_SECONDS,
        "artifact_prefix": f"{folder}/failed-",
        "print_final_stats": 1,
    }
    words = [f"-{name}={value}" for name, value in flags.items()]
    atheris.Setup([sys.argv[0], *words, str(corpus)], hostile.check)
    atheris.Fuzz()


def guided(options: argparse.Namespace) -> int:
    """Let a child search, and report."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-codec-") as name:
        child = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--child", name],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=options.seconds + GRACE_SECONDS,
            check=False,
        )
        broken = [path.read_bytes() for path in Path(name).glob("failed-*")]
    if broken and "Uncaught Python exception" in child.stdout + child.stderr:
        return failed(broken[0])
    if broken:  # too slow, too much memory, or a crash in C: not to be repeated in here
        print(child.stderr[-2_000:], file=sys.stderr)
        print(f"fuzz_codec: FAILED without an exception on {broken[0].hex()}")
        return 1
    runs = re.search(r"number_of_executed_units: (\d+)", child.stderr)
    reached = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)", child.stderr)
    if child.returncode or runs is None or not reached:
        print(child.stdout + child.stderr, file=sys.stderr)
        print("fuzz_codec: FAILED to run")
        return 1
    branches, inputs = reached[-1]
    print(
        f"fuzz_codec: ok, {runs[1]} executions in {time.monotonic() - started:.0f} s, "
        f"{branches} branches covered, {inputs} inputs kept"
    )
    return 0


# --- Without atheris ------------------------------------------------------------------------


def unguided(options: argparse.Namespace) -> int:
    """Change known inputs at random."""
    import hostile

    print(
        f"fuzz_codec: atheris cannot be imported ({sys.platform} {platform.machine()}, "
        f"Python {platform.python_version()}): changing inputs at random instead"
    )
    rng = random.Random(options.seed)
    inputs = hostile.first_inputs()
    started = time.monotonic()
    runs = 0
    while time.monotonic() - started < options.seconds and runs != options.runs:
        data = changed(rng.choice(inputs), rng)
        runs += 1
        if breaks(data):
            return failed(data)
    print(
        f"fuzz_codec: ok, {runs} executions in {time.monotonic() - started:.0f} s, "
        f"{len(inputs)} inputs changed at random"
    )
    return 0


def changed(data: bytes, rng: random.Random) -> bytes:
    """Replace, remove or add bytes in a few places, or all but the first."""
    if rng.random() < 0.5:
        return data[:1] + rng.randbytes(rng.randrange(MAX_INPUT_BYTES))
    edited = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(edited) + 1)
        edited[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
    return bytes(edited)


def main() -> int:
    """Do what the command line says."""
    options = arguments()
    if options.replay is not None:
        data = bytes.fromhex(options.replay)
        return failed(data) if breaks(data) else 0
    if options.child is not None:
        search(options)
    try:
        import atheris  # noqa: F401
    except ImportError:  # there are wheels for Linux on x86-64, up to Python 3.13
        return unguided(options)
    return guided(options)


if __name__ == "__main__":
    os.environ["PYTHONHASHSEED"] = "0"  # for the child: the same input, the same branches
    sys.exit(main())
