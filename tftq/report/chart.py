"""Line and bar charts as inline SVG; the style sheet of the page gives the colours."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from markupsafe import Markup, escape

WIDTH, HEIGHT = 460, 250  # close to the width of a phone, so that the text stays readable there
LEFT, RIGHT, TOP, BOTTOM = 54, 8, 14, 40
MAX_LABELS = 10
COLOURS = 7  # in style.css: c0, c1 and so on
MARK_WIDTH = 100  # of the name of a mark; names stand side by side, because marks may fall together
DOTTED = 40  # columns up to which each value gets a dot

Values = Sequence[float | None]  # one per column; None where it is missing


class _Frame:
    """The positions of columns and values in the drawing, and the axes around them."""

    def __init__(self, columns: int, low: float, high: float) -> None:
        self.columns = columns
        self.ticks = ticks(low, high)
        self._low, self._high = min(low, self.ticks[0]), max(high, self.ticks[-1])
        self.step = (WIDTH - LEFT - RIGHT) / columns

    def x(self, column: float) -> float:
        """Return the left edge of a column."""
        return round(LEFT + column * self.step, 2)

    def y(self, value: float) -> float:
        """Return the height of a value."""
        return round(HEIGHT - BOTTOM - (value - self._low) / (self._high - self._low) * (HEIGHT - BOTTOM - TOP), 1)

    def axes(self, labels: Mapping[int, str], axis: str) -> list[Markup]:
        """Draw grid lines with their values, the labels of the columns and the name of the horizontal axis."""
        parts = []
        for tick in self.ticks:
            y = self.y(tick)
            parts.append(_element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            parts.append(_element("text", f"{tick:.6g}", x=LEFT - 6, y=y + 4, text_anchor="end"))
        shown = list(labels.items())[:: math.ceil(len(labels) / MAX_LABELS)]
        parts += [_element("text", label, x=self.x(column + 0.5), y=HEIGHT - BOTTOM + 16, text_anchor="middle") for column, label in shown]
        parts.append(_element("text", axis, x=(WIDTH + LEFT - RIGHT) / 2, y=HEIGHT - 4, text_anchor="middle"))
        return parts

    def bands(self, shades: Mapping[int, str]) -> list[Markup]:
        """Draw a named shade behind the columns from each start up to the next one."""
        parts = []
        for (start, name), stop in zip(shades.items(), [*shades, self.columns][1:], strict=True):
            left, right = self.x(start), self.x(stop)
            parts.append(_element("rect", x=left, y=TOP, width=round(right - left, 2), height=HEIGHT - BOTTOM - TOP, class_="band"))
            parts.append(_element("line", x1=left, x2=left, y1=TOP, y2=HEIGHT - BOTTOM, class_="grid"))
            parts.append(_element("text", name, x=right - 4, y=TOP + 12, text_anchor="end"))
        return parts


def line_chart(
    title: str, series: Mapping[str, Values], labels: Sequence[str], *, axis: str, shades: Mapping[int, str] | None = None
) -> Markup:
    """Draw a line per series; it continues over a missing value, and breaks where a shaded part begins.

    Args:
        title: with the unit.
        series: name -> its value at each column.
        labels: of the columns.
        axis: the name of the horizontal axis.
        shades: the first column of each later part -> the part's name.
    """
    values = _known(chain(*series.values()))
    frame = _Frame(len(labels), min(values), max(values))
    parts = frame.bands(shades or {})
    parts += frame.axes(dict(enumerate(labels)), axis)
    for number, (name, course) in enumerate(series.items()):
        path: list[str] = []
        ends = {0, *(shades or {})}
        begin = True
        for column, value in enumerate(course):
            begin = begin or column in ends
            if value is not None:
                x, y = frame.x(column + 0.5), frame.y(value)
                path.append(f"{'M' if begin else 'L'}{x} {y}")
                begin = False
                if len(labels) <= DOTTED:
                    hint = _element("title", f"{name}, {labels[column]}: {value:.5g}")
                    parts.append(_element("circle", hint, cx=x, cy=y, r=3, class_=f"dot {_colour(number)}"))
        parts.append(_element("path", d=" ".join(path), class_=f"line {_colour(number)}"))
    return _figure(title, list(series), parts)


def bar_chart(
    title: str,
    groups: Mapping[str, Values],
    labels: Mapping[int, str],
    *,
    axis: str,
    marks: Mapping[str, float],
    shades: Mapping[int, str] | None = None,
) -> Markup:
    """Draw a bar per column, from zero, with its groups stacked in order; mark a column without any value as missing.

    Args:
        title: with the unit.
        groups: name -> its value at each column.
        labels: column -> the text below it.
        axis: the name of the horizontal axis.
        marks: name -> a value to compare with, drawn as a horizontal line.
        shades: the first column of each later part -> the part's name.
    """
    columns = list(zip(*groups.values(), strict=True))
    heights = [sum(_known(column)) for column in columns]
    frame = _Frame(len(columns), 0.0, 1.15 * max([*heights, *marks.values()]))
    parts = frame.bands(shades or {})
    parts += frame.axes(labels, axis)
    width = round(frame.step * (0.8 if frame.step > 2 else 1), 2)
    base = [0.0] * len(columns)
    for number, values in enumerate(groups.values()):
        bars = []
        for i, value in enumerate(values):
            if value:
                bars.append(f"M{frame.x(i)} {frame.y(base[i])}V{frame.y(base[i] + value)}h{width}V{frame.y(base[i])}z")
                base[i] += value
        parts.append(_element("path", d="".join(bars), class_=f"bar {_colour(number)}"))
    missing = [i for i, column in enumerate(columns) if not _known(column)]
    gaps = [f"M{frame.x(i)} {frame.y(0)}V{TOP}h{max(width, 2)}V{frame.y(0)}z" for i in missing]
    if gaps:
        parts.append(_element("path", d="".join(gaps), class_="gap"))
    for number, (name, value) in enumerate(marks.items()):
        y = frame.y(value)
        parts.append(_element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="mark"))
        parts.append(_element("text", name, x=LEFT + 4 + number * MARK_WIDTH, y=y - 5, class_="halo"))
    return _figure(title, list(groups), parts, missing=bool(missing))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round, evenly spaced values that enclose `low` to `high`, or that lie around them if they are equal."""
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        margin = abs(low) / 2 or 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [step * number for number in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _colour(number: int) -> str:
    """Return the style class of a series; the colours repeat."""
    return f"c{number % COLOURS}"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _figure(title: str, names: Sequence[str], parts: Sequence[Markup], *, missing: bool = False) -> Markup:
    """Put a drawing below its title and its legend."""
    keys = [_element("span", name, class_=f"key {_colour(number)}") for number, name in enumerate(names)]
    if missing:
        keys.append(_element("span", "not measured", class_="key gap"))
    chart = _element("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title)
    return _element("figure", _element("figcaption", _element("b", title), " ", Markup(" ").join(keys)), chart)


def _element(name: str, /, *content: str, **attributes: object) -> Markup:
    """Return one element, its texts escaped; an attribute has `_` for `-`, and `class_` is the class."""
    opened = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{opened}>{Markup().join(content)}</{name}>")
