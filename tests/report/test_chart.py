"""Charts: values land where the axes say, and gaps stay gaps."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tftq.report.chart import DOTTED, MAX_LABELS, bar_chart, line_chart, ticks


def elements(chart: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(chart).iter(name))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.17, 0.36, [0.15, 0.2, 0.25, 0.3, 0.35, 0.4]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (3, 3, [1, 2, 3, 4, 5]),
        (0, 0, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@given(st.floats(-1e3, 1e3), st.just(0.0) | st.floats(1e-9, 1e9))
def test_ticks_enclose_their_range(low: float, span: float) -> None:
    found = ticks(low, low + span)
    rounding = 1e-9 * (abs(low) + span)
    assert found[0] <= low + rounding and found[-1] >= low + span - rounding
    assert 2 <= len(found) <= 8 and all(earlier < later for earlier, later in pairwise(found))


def test_a_line_lies_on_the_grid() -> None:
    chart = line_chart("loss", {"a": [0.0, None, 10.0]}, ["1", "2", "3"], axis="epoch")
    grid = [float(line.attrib["y1"]) for line in elements(chart, "line")]
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in elements(chart, "circle")]
    assert [y for _, y in dots] == [grid[0], grid[-1]]
    (path,) = elements(chart, "path")
    assert [float(number) for number in re.findall(r"[\d.]+", path.attrib["d"])] == [value for dot in dots for value in dot]
    assert path.attrib["d"].count("M") == 1  # the gap is bridged


def test_a_line_breaks_where_the_last_part_begins() -> None:
    chart = line_chart("loss", {"a": [1, 2, None, 4, 5]}, list("12345"), axis="epoch", shades={2: "QAT"})
    assert [re.sub(r"[^ML]", "", path.attrib["d"]) for path in elements(chart, "path")] == ["MLML"]
    assert len(elements(chart, "rect")) == 1


def test_equal_values_are_drawn() -> None:
    chart = line_chart("rate", {"a": [0.5]}, ["1"], axis="epoch")
    (dot,) = elements(chart, "circle")
    assert 0 <= float(dot.attrib["cy"]) <= 250


def test_many_columns_stay_readable() -> None:
    count = 10 * DOTTED
    chart = line_chart("loss", {"a": list(range(count))}, [str(i) for i in range(count)], axis="epoch")
    below = [text for text in elements(chart, "text") if text.attrib.get("text-anchor") == "middle"]
    assert len(below) <= MAX_LABELS + 1 and not elements(chart, "circle")


def test_bars_begin_at_zero_and_gaps_are_marked() -> None:
    chart = bar_chart("peak", {"a": [5.0, None, None], "b": [None, 10.0, None]}, {0: "1"}, axis="epoch", marks={"planned 8": 8.0})
    first, second, gap = (path.attrib["d"] for path in elements(chart, "path"))
    bottom, *_ = (float(line.attrib["y1"]) for line in elements(chart, "line"))  # the grid's lowest line: 0
    half, whole = (bottom - float(re.findall(r"V([\d.]+)", path)[0]) for path in (first, second))
    assert whole == pytest.approx(2 * half, abs=0.2)
    assert all(f" {bottom}V" in path for path in (first, second, gap))
    assert "not measured" in chart and "planned 8" in chart


def test_no_gap_no_mark() -> None:
    assert "not measured" not in bar_chart("peak", {"a": [5.0]}, {0: "1"}, axis="epoch", marks={})


def test_bars_are_stacked() -> None:
    chart = bar_chart("peak", {"a": [6.0], "b": [4.0]}, {0: "1"}, axis="epoch", marks={"sum": 10.0})
    lower, upper = (path.attrib["d"] for path in elements(chart, "path"))
    top_of_lower, top = (float(re.findall(r"V([\d.]+)", path)[0]) for path in (lower, upper))
    assert f" {top_of_lower}V" in upper  # it begins where the lower one ends
    assert [float(line.attrib["y1"]) for line in elements(chart, "line")][-1] == top  # the mark at their sum
