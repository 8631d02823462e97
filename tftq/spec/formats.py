"""The formats of exported models: one table, and the properties derived from it."""

from dataclasses import dataclass
from typing import Literal

Format = Literal["fp32", "fp16", "fp16_int8", "int8_ptq", "int8_qat", "int4_ptq", "int4_qat", "stream"]
Products = Literal["fp32", "fp16", "integer"]
Source = Literal["training", "calibration", "qat", "result"]
Method = Literal["none", "ptq", "qat"]
WeightStorage = Literal["int8", "int4"]

FP32: Format = "fp32"  # the format that every method makes, and that the others are compared with
STREAM: Format = "stream"
STEP_FILE, FORECAST_FILE = "step.onnx", "forecast.onnx"


@dataclass(frozen=True, kw_only=True)
class FormatProperties:
    """The properties of a format.

    Attributes:
        name: in recipes and summary.json, and of a model's file.
        source: the stage whose weights it has: training in floating point, calibration, QAT, or whichever is the result of `quant.method`.
        products: what products are computed in; None where that is the result's.
        weight_bits: that a weight is stored in; None where they are the result's.
        files: the names of its models: one, or the step and the forecast half of a streaming pair.
        preference: its place when `tftq predict` chooses from a folder, lowest first; None where it cannot run it.
    """

    name: Format
    source: Source
    products: Products | None
    weight_bits: int | None
    files: tuple[str, ...]
    preference: int | None

    @property
    def multiplies_integers(self) -> bool:
        """Whether products are computed in integers, and the gate requires it."""
        return self.products == "integer"

    @property
    def for_gpu(self) -> bool:
        """Whether products are computed in FP16, for a GPU."""
        return self.products == "fp16"

    @property
    def weight_only(self) -> bool:
        """Whether the weights alone are quantized: stored as integers, multiplied in floating point."""
        return self.stores_integers and not self.multiplies_integers

    @property
    def stores_integers(self) -> bool:
        """Whether the weights are stored as integers."""
        return self.weight_bits is not None and self.weight_bits <= 8

    @property
    def proof_file(self) -> str:
        """The name of the file that holds what was proven of its models."""
        return f"{self.name}.export.json"

    @property
    def is_pair(self) -> bool:
        """Whether it is a streaming pair, not a model in one piece."""
        return len(self.files) > 1

    @property
    def oldest_runtime(self) -> str:
        """The oldest release of ONNX Runtime that loads a file: 1.18 knows opset 21, and 1.23 computes with INT4."""
        return "1.23" if self.weight_bits == 4 else "1.18"


def _one_piece(name: Format, source: Source, products: Products, weight_bits: int, preference: int) -> FormatProperties:
    return FormatProperties(
        name=name, source=source, products=products, weight_bits=weight_bits, files=(f"{name}.onnx",), preference=preference
    )


FORMATS: dict[Format, FormatProperties] = {
    row.name: row
    for row in (
        _one_piece("fp32", "training", "fp32", 32, preference=4),
        _one_piece("fp16", "training", "fp16", 16, preference=5),  # FP16 is meant for GPUs, and prediction runs on the CPU
        _one_piece("fp16_int8", "result", "fp16", 8, preference=6),
        _one_piece("int8_ptq", "calibration", "integer", 8, preference=2),
        _one_piece("int8_qat", "qat", "integer", 8, preference=0),
        _one_piece("int4_ptq", "calibration", "integer", 4, preference=3),
        _one_piece("int4_qat", "qat", "integer", 4, preference=1),
        FormatProperties(
            name="stream", source="result", products=None, weight_bits=None, files=(STEP_FILE, FORECAST_FILE), preference=None
        ),
    )
}
_BY_PREFERENCE = {row.preference: row.name for row in FORMATS.values() if row.preference is not None}
PREFERRED: tuple[Format, ...] = tuple(_BY_PREFERENCE[rank] for rank in sorted(_BY_PREFERENCE))  # the formats that tftq predict can run


def integer_format(weights: WeightStorage, source: Source) -> Format:
    """Find the format that multiplies integers, with weights of this storage, from this stage.

    Args:
        weights: see `quant.weights` of a recipe.
        source: calibration or qat.
    """
    bits = {"int8": 8, "int4": 4}[weights]
    (found,) = (row.name for row in FORMATS.values() if row.multiplies_integers and (row.weight_bits, row.source) == (bits, source))
    return found


def method_formats(method: Method, weights: WeightStorage) -> tuple[Format, ...]:
    """List the formats that a quantization method makes; the last is its result.

    Args:
        method: see `quant.method` of a recipe.
        weights: see `quant.weights`.
    """
    sources: dict[Method, tuple[Source, ...]] = {"none": (), "ptq": ("calibration",), "qat": ("calibration", "qat")}
    return (FP32, *(integer_format(weights, source) for source in sources[method]))


def available_formats(method: Method, weights: WeightStorage) -> set[Format]:
    """List the formats that a run can export: those of its method, those of the trained model, and other forms of its result.

    Args:
        method, weights: see `method_formats`.
    """
    others = (row for row in FORMATS.values() if row.source in ("training", "result"))
    return {*method_formats(method, weights), *(row.name for row in others if method != "none" or not row.stores_integers)}
