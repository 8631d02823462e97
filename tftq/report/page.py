"""Fill a template of templates/ and write the page: one file without script, font or network access."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tftq.io import written_whole
from tftq.spec.quantiles import quantile_name
from tftq.spec.units import MB, MIB


def write_page(folder: Path, template: str, values: Mapping[str, Any]) -> Path:
    """Write `<folder>/report.html` atomically.

    Args:
        folder: of a finished run.
        template: the name of a file in templates/.
        values: of the template; a missing one is an error.

    Returns:
        The path of the page.

    Raises:
        jinja2.TemplateError: the template asks for a value that is missing, or is no valid template.
    """
    path = folder / "report.html"
    page = render(template, values)
    with written_whole(path) as part:
        part.write_text(page, encoding="utf-8")
    return path


def render(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template; the page is well-formed XML too, and every text is escaped."""
    environment = Environment(
        loader=PackageLoader("tftq.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "mb": megabytes, "mib": mebibytes, "quantile": quantile, "plain": plain}
    return environment.get_template(template).render(values)


def number(value: float | None, spec: str) -> str:
    """Format a number by a format specification such as ".2f"; a missing one is a dash."""
    return "–" if value is None else format(value, spec)


def megabytes(size: float | None, spec: str = ".1f") -> str:
    """Format bytes as "1.5 MB"; missing ones are a dash."""
    return "–" if size is None else f"{size / MB:{spec}} MB"


def mebibytes(size: float | None, spec: str = ",.1f") -> str:
    """Format bytes as a number of MiB; missing ones are a dash."""
    return number(None if size is None else size / MIB, spec)


def quantile(level: float | str) -> str:
    """Name a quantile: "0.5" is P50."""
    return quantile_name(float(level))


def plain(value: object) -> str:
    """Write a value of a JSON file without brackets: "commit abc, dirty yes"."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(inner)}" for name, inner in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
