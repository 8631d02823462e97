"""HTML that what it shows cannot break: every text is escaped, every tag is closed."""

from collections.abc import Iterable, Sequence
from html import escape

VOID = ("meta", "br")  # elements that never have content


class Html(str):
    """Markup, to be put into other markup as it is; any other text is escaped first."""

    __slots__ = ()


def tag(name: str, /, *content: object, **attributes: object) -> Html:
    """One element.

    Args:
        name: of the element.
        content: its children in order; what is not `Html` is text.
        attributes: with `_` for `-`, and a trailing `_` where the name is a word of Python, as `class_`.
    """
    opened = name + "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{opened} />")
    return Html(f"<{opened}>{join(content)}</{name}>")


def join(parts: Iterable[object], between: str = "") -> Html:
    """Markup and texts one after another."""
    return Html(between.join(part if isinstance(part, Html) else escape(str(part)) for part in parts))


def table(header: Sequence[object], rows: Iterable[Sequence[object]], *, class_: str = "figures") -> Html:
    """A table whose rows begin with their name; it scrolls sideways by itself where the screen is narrower."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body), class_=class_), class_="scroll")


def section(title: str, *content: object) -> Html:
    """A part of the page under its heading."""
    return tag("section", tag("h2", title), *content)


def listing(entries: Iterable[object]) -> Html:
    """A list with a bullet for each entry."""
    return tag("ul", *(tag("li", entry) for entry in entries))
