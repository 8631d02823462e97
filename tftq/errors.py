"""The errors that tftq raises for its users; each names what, where, what is allowed and what to do."""


class TftqError(ValueError):
    """The base of every error that a user can cause and fix."""


class RecipeError(TftqError):
    """An invalid recipe."""


class DataError(TftqError):
    """A file, column or bar that cannot be used."""


class TooFewBarsError(DataError):
    """Valid bars, but too few for the task."""


class RunFolderError(TftqError):
    """A run folder that cannot be written or resumed."""


class CheckpointError(TftqError):
    """A checkpoint that is missing, damaged or of another recipe."""


class PrecisionError(TftqError):
    """A number format that the device at hand cannot compute in."""


class QuantizationError(TftqError):
    """A range that was never observed, is not finite, or a schedule out of order."""


class GateError(TftqError):
    """An exported model that is not exact, integer, ordered or small enough."""


class ProviderError(TftqError):
    """ONNX Runtime that is too old for a file, or whose part for GPUs does not work here."""


class MetadataError(TftqError):
    """A file that is not an ONNX model, or a damaged one."""


class PredictError(TftqError):
    """A model file that cannot serve, data that it was not made for, or a forecast that is not finite."""


class StreamError(TftqError):
    """A streaming pair that cannot serve, or a bar, a future or a state that does not fit it."""


class NonFiniteError(TftqError):
    """A loss, gradient, forecast or score that is infinite or not a number."""


class EnsembleError(TftqError):
    """A member that cannot serve or does not fit the others or the data, a budget too small for them, or a state of other ones."""


class AnswerError(TftqError):
    """Invalid answer of an ensemble member: non-finite, out of range, unordered, or of the wrong shape."""


class CompareError(TftqError):
    """An argument of compare that is neither a recipe nor the folder of a finished run."""


class AgentError(TftqError):
    """An agent that cannot be trained with what is installed."""


class OutOfMemoryError(TftqError):
    """Memory that does not suffice after all retries."""


class PlanError(TftqError):
    """A run that needs more memory than its budget, however small its forward passes."""


class MissingExtraError(TftqError):
    """A missing package that an extra of tftq installs."""
