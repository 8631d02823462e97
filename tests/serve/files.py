"""Small models, data and recipes of everything that serves, and the commands that use them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from tests.data.helpers import bar_columns, table_columns, write
from tests.ensemble.models import agent, forecaster, pair
from tests.serving import bars_model, table_model

STREAM = """
import sys
import numpy as np
from tftq import Stream
stream = Stream(sys.argv[1])
stream.push(np.ones((stream.lookback, len(stream.columns["history"]))))
print(stream.forecast(np.ones((stream.horizon, len(stream.columns["future"])))).shape)
"""


def serving_files(folder: Path) -> dict[str, tuple[str, ...]]:
    """Write them.

    Args:
        folder: where to.

    Returns:
        name -> arguments of `tftq`; of `stream`, the folder of a pair, for the program `STREAM`.
    """
    bars_model(folder / "bars.onnx")
    table_model(folder / "table.onnx", calendar=("hour",))
    for name in ("pair", "agent", "forecaster"):
        (folder / name).mkdir()
    pair(folder / "pair")
    agent(folder / "agent" / "fp32.onnx")
    forecaster(folder / "forecaster" / "fp32.onnx")
    (folder / "forecaster" / "fp32.export.json").unlink()  # so that what it takes is measured
    bars = str(write(folder / "ES.parquet", bar_columns(200)))
    table = str(folder / "table.csv")
    pyarrow.csv.write_csv(pa.table(table_columns(30)), table)
    recipe = {
        "name": "small",
        "members": {name: {"path": str(folder / name)} for name in ("pair", "agent", "forecaster")},
        "data": {"path": bars},
    }
    (folder / "ensemble.yaml").write_text(json.dumps(recipe), encoding="utf-8")  # JSON is YAML
    return {
        "predict": ("predict", str(folder / "bars.onnx"), bars, "--threads", "1"),
        "predict a table": ("predict", str(folder / "table.onnx"), table),
        "predict to a file": ("predict", str(folder / "bars.onnx"), bars, "--out", str(folder / "out.parquet")),
        "predict --last": ("predict", str(folder / "bars.onnx"), bars, "--last", "--json"),
        "ensemble": ("ensemble", str(folder / "ensemble.yaml"), f"out={folder}/run"),
        "stream": (str(folder / "pair"),),
    }
