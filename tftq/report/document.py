"""A whole page of its parts, with the style and without anything from elsewhere."""

from collections.abc import Iterable

from tftq.report.html import Html, join, tag
from tftq.report.style import STYLE


def document(name: str, parts: Iterable[Html]) -> str:
    """The whole document, which is well-formed XML too.

    Args:
        name: of what is reported.
        parts: of the page, in order.
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{name}: tftq report"),
        tag("style", Html(STYLE)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', join(parts, chr(10))), lang='en')}\n"
