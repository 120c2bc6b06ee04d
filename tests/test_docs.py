"""The generated pages are what the code says now; links lead somewhere."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_the_wire_page_is_up_to_date() -> None:
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    page = (ROOT / "docs" / "wire-protocol.md").read_text()
    assert generate["wire_page"]() == page, "run `make docs`"


def test_the_table_of_attacks_is_that_of_the_mutants() -> None:
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    page = (ROOT / "docs" / "security.md").read_text()
    why = "rows stand in tests/mutants/security.py, each with its mutant; then run `make docs`"
    assert generate["security_page"](page) == page, why


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_row_of_the_security_page_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    table = page.partition("## What attackers can and cannot do")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        found = re.fullmatch(r".*\| `(tests/[\w/]+\.py)::(test_\w+)` \|", row)
        assert found, row
        source = (ROOT / found[1]).read_text()
        assert re.search(rf"^def {found[2]}\(", source, re.MULTILINE), found[0]
