"""The errors that tftq raises for its users; each says what, where, what is allowed and what to do."""


class TftqError(ValueError):
    """The base of every error a user can cause and mend."""


class RecipeError(TftqError):
    """A recipe that does not say something runnable."""


class DataError(TftqError):
    """A file, column or bar that cannot be used as it lies."""


class TooFewBarsError(DataError):
    """Bars that are sound, and too few for what is asked of them."""


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
    """A file that is no ONNX model, or a damaged one."""


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
    """Something given to be compared that is neither a recipe nor the folder of a run that came to its end."""


class AgentError(TftqError):
    """An agent that cannot be trained with what is installed."""


class OutOfMemoryError(TftqError):
    """Memory that does not suffice, whatever was tried."""


class PlanError(TftqError):
    """A run that will need more memory than its budget, however small its forward passes."""


class MissingExtraError(TftqError):
    """A package that an extra of tftq installs, and that is not installed."""
