"""Write report.html of a run that trained a forecaster."""

from pathlib import Path
from typing import Any

from tftq.quant.sensitivity import Sensitivity
from tftq.report.console import budget_line
from tftq.report.memory import memory_use
from tftq.report.models import model_columns, risk_charts
from tftq.report.outcome import Outcome
from tftq.report.page import write_page
from tftq.report.run_files import RunFiles
from tftq.report.training import epochs


def write_report(folder: Path) -> Path:
    """Write `<folder>/report.html` of a forecaster's run atomically.

    Args:
        folder: of a finished run; everything on the page comes from its files.

    Returns:
        The path of the page.
    """
    files = RunFiles.read(folder)
    columns = model_columns(files)
    sensitivity = Sensitivity.from_dict(files.summary["quant"]) if "quant" in files.summary else None
    values = {
        "outcome": Outcome.of(files),
        "columns": columns,
        "risk_charts": risk_charts(columns) if columns else [],
        "sensitivity": sensitivity,
        "budget": None if sensitivity is None or sensitivity.budget is None else budget_line(sensitivity),
        "epochs": epochs(files),
    }
    return write_page(folder, "forecaster.html", common_values(files) | values)


def common_values(files: RunFiles) -> dict[str, Any]:
    """Collect the values that the pages of forecasters and agents share."""
    return {
        "summary": files.summary,
        "recipe": files.recipe,
        "recipe_text": files.recipe_text,
        "environment": files.environment,
        "stages": list(files.stages),
        "proofs": files.proofs,
        "memory": memory_use(files),
    }
