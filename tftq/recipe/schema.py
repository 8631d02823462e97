"""The options of a forecaster's recipe: frozen models with every name, default and bound."""

import warnings
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BeforeValidator, Field, StringConstraints, ValidationInfo, field_validator

from tftq.recipe.fields import (
    Count,
    FilePath,
    Fraction,
    Names,
    NotNegative,
    Positive,
    Section,
    Switch,
    Text,
    Whole,
    contradiction,
    frozen,
    unique,
    whole,
)
from tftq.recipe.model import Mamba2Recipe, ModelRecipe, TftRecipe
from tftq.spec.formats import STREAM, Format, Method, WeightStorage, available_formats, method_formats

Calendar = Literal["minute", "hour", "weekday", "week", "day_of_month", "day_of_year", "month"]

Calibration = Literal["minmax", "moving_average", "percentile", "mse"]  # how a range comes from what was seen


class _AnyData(Section):
    path: FilePath
    lookback: Count = 60
    horizon: Count = 10
    validation: Annotated[float, Gt(0), Lt(1)] = 0.2  # share of the windows, in order of time: the last part before the test part
    test: Annotated[float, Ge(0), Lt(1)] = 0.0  # share of the windows: the very last part
    time_zone: Text | None = None  # of timestamps that carry none; and the clock of the calendar columns
    duplicates: Literal["refuse", "drop"] = "refuse"
    missing: Literal["refuse", "drop"] = "refuse"
    cache: FilePath | None = None  # folder where rows are kept from run to run and mapped from; null: made anew, in memory

    @field_validator("test")
    @classmethod
    def _leaves_training(cls, test: float, info: ValidationInfo) -> float:
        if test + info.data.get("validation", 0.0) >= 1:
            raise contradiction(f"with data.validation {info.data['validation']} nothing is left to train on; allowed: a sum below 1")
        return test


class BarsRecipe(_AnyData):
    """Price bars: one series cut into unbroken segments, 225 features, target the cumulative log return."""

    kind: Literal["bars"]
    symbol: Text | None = None
    warmup: Whole = 50  # bars of each segment that only feed features


class TableRecipe(_AnyData):
    """A table of one series whose columns have the roles given here."""

    kind: Literal["table"]
    time: Text
    target: Text
    known: Names = ()
    observed: Names = ()
    calendar: Annotated[tuple[Calendar, ...], BeforeValidator(frozen)] = ()
    season: Count  # rows of one season, for the naive baseline

    _once = field_validator("known", "observed", "calendar")(unique)

    @field_validator("target")
    @classmethod
    def _not_the_time(cls, target: str, info: ValidationInfo) -> str:
        if target == info.data.get("time"):
            raise contradiction(f"{target} is the time; allowed: a column to forecast")
        return target

    @field_validator("observed")
    @classmethod
    def _one_role_each(cls, observed: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        taken = {info.data.get("time"), info.data.get("target"), *info.data.get("known", ())}
        twice = [name for name in observed if name in taken]
        if twice:
            raise contradiction(f"{', '.join(twice)} has another role already (time, target or known); allowed: one role a column")
        return observed

    @field_validator("known")
    @classmethod
    def _not_the_target(cls, known: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        twice = [name for name in known if name in (info.data.get("time"), info.data.get("target"))]
        if twice:
            raise contradiction(f"{', '.join(twice)} is the time or the target; allowed: columns known over the horizon")
        return known


DataRecipe = Annotated[BarsRecipe | TableRecipe, Field(discriminator="kind")]


class OptimizerRecipe(Section):
    """The optimizer and its learning rates."""

    name: Literal["adamw", "adamw8bit"] = "adamw"  # adamw8bit: the moments in 8 bits
    in_backward: Switch = False  # each gradient is applied and freed as soon as the backward pass has it
    lr: Positive = 1e-3
    weight_decay: NotNegative = 0.01
    groups: dict[Text, Positive] = Field(default={})  # pattern of parameter names (fnmatch) -> learning rate


class ScheduleRecipe(Section):
    """The learning-rate schedule: warm-up, stable, cool-down; fractions of all updates."""

    warmup: Fraction = 0.05
    cooldown: Fraction = 0.5
    floor: Fraction = 0.01  # factor of the learning rate at both ends

    @field_validator("cooldown")
    @classmethod
    def _fits(cls, cooldown: float, info: ValidationInfo) -> float:
        warmup = info.data.get("warmup", 0.0)
        if warmup + cooldown > 1:
            raise contradiction(f"warmup {warmup} and cooldown {cooldown} overlap; allowed: a sum of at most 1")
        return cooldown


class TrainRecipe(Section):
    """Training in floating point."""

    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    epochs: Count = 10
    batch_size: Count = 32
    accumulate: Count = 1  # batches to one update
    clip_norm: Positive | None = 1.0
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    patience: Count | None = None  # epochs without improvement before stopping
    checkpoint_every: Count | None = None  # updates, beside the checkpoint of each epoch
    memory_every: Count = 50  # batches between two records of memory

    @field_validator("optimizer")
    @classmethod
    def _applies_in_one_backward(cls, optimizer: OptimizerRecipe, info: ValidationInfo) -> OptimizerRecipe:
        needs = []
        if info.data.get("clip_norm") is not None:
            needs.append("train.clip_norm null")
        if info.data.get("accumulate", 1) > 1:
            needs.append("train.accumulate 1")
        if info.data.get("precision") == "fp16":
            needs.append("train.precision bf16 or fp32")
        if optimizer.in_backward and needs:
            raise contradiction(
                "true applies gradients before all are there, so that they cannot be clipped, summed up or unscaled; "
                f"allowed with {', '.join(needs)}",
                "in_backward",
            )
        return optimizer


class ValidateRecipe(Section):
    """Validation between epochs."""

    batch_size: Count | None = None  # null: the training one
    every: Count = 1  # epochs
    offload_optimizer: Literal["auto", "always", "never"] = "auto"  # its state waits in host memory: where the plan says it matters
    device: Literal["auto", "train", "cpu"] = "auto"  # training's; auto: the CPU where that cannot hold it


class QatRecipe(Section):
    """Quantization-aware training after the training in floating point; phases count applied updates."""

    epochs: Count = 2
    lr: Positive = 1e-5
    observe: Whole = 0  # observers learn from this update on
    fake_quant: Whole | None = None  # null: 5 % of all updates
    freeze: Whole | None = None  # observers stop learning; null: 50 % of all updates
    ranges: Literal["observe", "learn"] = "observe"  # learn: by their gradient, from fake_quant until freeze
    range_lr: Positive = 1e-2  # of learned ranges, in shares of the observed ones
    schedule: ScheduleRecipe = ScheduleRecipe()

    @field_validator("fake_quant", "freeze")
    @classmethod
    def _in_order(cls, update: int | None, info: ValidationInfo) -> int | None:
        earlier = {name: info.data[name] for name in ("observe", "fake_quant") if info.data.get(name) is not None}
        late = [f"{name} {value}" for name, value in earlier.items() if update is not None and value > update]
        if late:
            raise contradiction(f"{update} comes before {' and '.join(late)}; allowed: observe <= fake_quant <= freeze")
        return update


class PruneRecipe(Section):
    """Pruning: after training, the history variables of least selection weight are removed and the rest is trained further."""

    keep: Count  # history variables that stay; fewer than the data has
    epochs: Count = 2
    lr: Positive = 3e-4
    schedule: ScheduleRecipe = ScheduleRecipe()


class QuantRecipe(Section):
    """Fewer variables, and quantization to integers."""

    method: Method = "none"
    calibration_windows: Count = 256
    calibration: Calibration = "minmax"
    percentile: Annotated[float, Gt(50), Le(100)] = 99.99  # of calibration percentile: what lies beyond, at each end, is left out
    weights: WeightStorage = "int8"  # how the tables and the linear layers' weights are stored; they are multiplied as INT8
    lstm: Literal["fp32", "int8", "dynamic"] = "fp32"  # how the LSTM's weights are stored; dynamic: its products are of integers too
    keep_float: Names = ()  # patterns (fnmatch) of module names: what they match stays in floating point
    sensitivity: Switch = False  # measure what each layer loses by being quantized
    loss_budget: NotNegative | None = None  # of PTQ above FP32, in proportion; keeps the fewest layers in floating point for it
    qat: QatRecipe = QatRecipe()
    prune: PruneRecipe | None = None  # null: every history variable stays

    _once = field_validator("keep_float")(unique)

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats that the method makes; the last is its result."""
        return method_formats(self.method, self.weights)


class ExportRecipe(Section):
    """The ONNX models that a run leaves."""

    formats: Annotated[tuple[Format, ...], BeforeValidator(frozen), MinLen(1)] | None = None  # null: what quant.method makes
    publish: Switch = True  # also copy them to exports/<name>/

    @field_validator("formats")
    @classmethod
    def _once(cls, formats: tuple[Format, ...] | None) -> tuple[Format, ...] | None:
        if formats is not None:
            unique(formats)
        return formats


class MemoryRecipe(Section):
    """The memory that a run may use."""

    budget_mb: Count = 4096
    over_budget: Literal["stop", "run"] = "stop"  # where the plan is above it, however small the forward passes


class JobRecipe(Section):
    """The options of every recipe: the name of its run, and where it writes."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    out: FilePath | None = None  # null: runs/<name>/<UTC time>


class RunRecipe(JobRecipe):
    """The options of every recipe that trains: also the seed and the device."""

    seed: Annotated[int, BeforeValidator(whole), Ge(0), Lt(2**32)] = 7
    device: Literal["auto", "cuda", "cpu"] = "auto"


with warnings.catch_warnings():  # pydantic's own `validate` is a deprecated class method; the recipe's name for a section wins
    warnings.filterwarnings("ignore", message='Field name "validate"', category=UserWarning)

    class Recipe(RunRecipe):
        """The recipe of a forecaster."""

        data: DataRecipe
        model: ModelRecipe = TftRecipe()
        train: TrainRecipe = TrainRecipe()
        validate: ValidateRecipe = ValidateRecipe()  # type: ignore[assignment]
        quant: QuantRecipe = QuantRecipe()
        export: ExportRecipe = ExportRecipe()
        memory: MemoryRecipe = MemoryRecipe()

        @field_validator("validate")
        @classmethod
        def _validates_at_all(cls, validate: ValidateRecipe, info: ValidationInfo) -> ValidateRecipe:
            train = info.data.get("train")
            if train is not None and validate.every > train.epochs:
                raise contradiction(f"found {validate.every}; allowed: at most train.epochs {train.epochs}", "every")
            return validate

        @field_validator("quant")
        @classmethod
        def _trains_quantized(cls, quant: QuantRecipe) -> QuantRecipe:
            if quant.method != "qat" and "qat" in quant.model_fields_set:
                raise contradiction(
                    f"has no effect while quant.method is {quant.method}; set quant.method to qat, or leave quant.qat out "
                    "(on the command line: quant.qat=null)",
                    "qat",
                )
            return quant

        @field_validator("quant")
        @classmethod
        def _has_an_lstm(cls, quant: QuantRecipe, info: ValidationInfo) -> QuantRecipe:
            if isinstance(info.data.get("model"), Mamba2Recipe) and "lstm" in quant.model_fields_set:
                raise contradiction("model.kind mamba2 has no LSTM; leave quant.lstm out", "lstm")
            return quant

        @field_validator("quant")
        @classmethod
        def _has_variables_to_select(cls, quant: QuantRecipe, info: ValidationInfo) -> QuantRecipe:
            if isinstance(info.data.get("model"), Mamba2Recipe) and quant.prune is not None:
                raise contradiction("model.kind mamba2 has no variable selection to prune by; leave quant.prune out", "prune")
            return quant

        @field_validator("export")
        @classmethod
        def _streams_what_can_be_cut(cls, export: ExportRecipe, info: ValidationInfo) -> ExportRecipe:
            if isinstance(info.data.get("model"), Mamba2Recipe) and STREAM in (export.formats or ()):
                raise contradiction("stream is a TFT cut in two, which model.kind mamba2 is not; leave it out", "formats")
            return export

        @field_validator("export")
        @classmethod
        def _exports_what_is_made(cls, export: ExportRecipe, info: ValidationInfo) -> ExportRecipe:
            quant = info.data.get("quant")
            if quant is None or export.formats is None:
                return export
            made = available_formats(quant.method, quant.weights)
            missing = [name for name in export.formats if name not in made]
            if missing:
                others = "" if quant.method == "none" else f" and quant.weights is {quant.weights}"
                raise contradiction(
                    f"{', '.join(missing)} is not made while quant.method is {quant.method}{others}; allowed: {', '.join(sorted(made))}",
                    "formats",
                )
            result = quant.formats[-1]
            if quant.method != "none" and result not in export.formats:
                raise contradiction(f"lacks {result}, so quant.method {quant.method} has no effect; add it or lower the method", "formats")
            if STREAM in export.formats and result not in export.formats:
                raise contradiction(f"lacks {result}, the one-piece model that stream is held against; add it", "formats")
            return export

        @property
        def result(self) -> Format:
            """The format that the quantization method is for."""
            return self.quant.formats[-1]

        @property
        def formats(self) -> tuple[Format, ...]:
            """The formats to export: those asked for, or what the quantization method makes."""
            return self.export.formats or self.quant.formats
