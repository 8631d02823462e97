"""The frame of every page: texts are escaped, a value that is missing is an error, figures that are missing are dashes."""

import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from jinja2 import UndefinedError

from tftq.report.page import mebibytes, megabytes, number, plain, quantile, render, write_page

ROOT = Path(__file__).parents[2]
VALUES: dict[str, Any] = {
    "summary": {"name": "<b>&"},
    "environment": {"seed": None, "packages": {"torch": "2.13.0"}},
    "recipe_text": "a: <1>",
}


def test_texts_are_escaped_and_the_style_is_inline() -> None:
    page = ElementTree.fromstring(render("base.html", VALUES))
    assert page.findtext("head/title") == "<b>&: tftq report" and page.findtext("body/header/h1") == "<b>&"
    assert page.findtext(".//pre") == "a: <1>"
    assert "prefers-color-scheme: dark" in page.findtext("head/style", "")


def test_a_missing_value_is_an_error_and_the_old_page_stays(tmp_path: Path) -> None:
    path = write_page(tmp_path, "base.html", VALUES)
    before = path.read_text(encoding="utf-8")
    with pytest.raises(UndefinedError, match="'recipe_text' is undefined"):
        write_page(tmp_path, "base.html", {name: value for name, value in VALUES.items() if name != "recipe_text"})
    assert path.read_text(encoding="utf-8") == before and [path] == list(tmp_path.iterdir())


def test_figures_have_units_and_missing_ones_are_dashes() -> None:
    assert (number(0.5, ".1%"), megabytes(1_500_000), mebibytes(3 * 2**19)) == ("50.0%", "1.5 MB", "1.5")
    assert (number(None, ".1%"), megabytes(None), mebibytes(None)) == ("–", "–", "–")
    assert quantile("0.975") == "P97.5"
    assert plain({"commit": None, "dirty": True, "depth": {"count": 2}}) == "commit none, dirty yes, depth count 2"


def test_a_wheel_has_the_templates() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]["tftq"]
    packed = {path for pattern in patterns for path in (ROOT / "tftq").glob(pattern)}
    templates = {path for path in (ROOT / "tftq/report/templates").rglob("*") if path.is_file()}
    assert templates and templates <= packed
