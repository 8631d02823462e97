"""The pages: short, narrow enough to read, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
WORDS, README_LINES, WIDTH = 900, 110, 140

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def count_words(text: str) -> int:
    """Words of prose: rows of tables and blocks of code do not count."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith("|")]
    return sum(any(character.isalpha() for character in word) for line in lines for word in line.split())


def test_words_of_tables_and_code_do_not_count() -> None:
    assert count_words("two words – 1,000\n| a | b |\n```\ncode here\n```\nthree more words") == 5


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_a_page_is_short(page: Path) -> None:
    assert count_words(page.read_text(encoding="utf-8")) <= WORDS


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@every_page
def test_no_line_is_too_wide(page: Path) -> None:
    wide = [number for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1) if len(line) > WIDTH]
    assert wide == []


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists()]
    assert missing == []


@every_page
def test_paths_in_backticks_exist(page: Path) -> None:
    """Files of the package, its tests and benchmarks that a page names are there."""
    paths = re.findall(r"`((?:tftq|tests|benchmarks)/[\w/.]+\.(?:py|json|png|yaml))", page.read_text(encoding="utf-8"))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS if page.name != "index.md" and f"({page.name})" not in index] == []
