"""Train a Temporal Fusion Transformer on a small GPU, quantize it to INT8, ship it as ONNX.

The public names below are imported when they are first used, so that each costs only what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tftq.errors import MissingExtraError
from tftq.io import installed
from tftq.spec.extras import explain_missing

if TYPE_CHECKING:
    from tftq.kinds import plan as plan_recipe
    from tftq.kinds import run as run_recipe
    from tftq.recipe.load import load_recipe
    from tftq.serve.forecast import predict
    from tftq.serve.live import Live
    from tftq.serve.stream import Stream
    from tftq.spec.metadata import read_metadata

    __version__: str | None

__all__ = ["Live", "Stream", "__version__", "load_recipe", "plan_recipe", "predict", "read_metadata", "run_recipe"]

_HOMES = {
    "Live": ("tftq.serve.live", "Live"),
    "Stream": ("tftq.serve.stream", "Stream"),
    "load_recipe": ("tftq.recipe.load", "load_recipe"),
    "plan_recipe": ("tftq.kinds", "plan"),  # not plan, nor run: these are names of modules of the package
    "predict": ("tftq.serve.forecast", "predict"),
    "read_metadata": ("tftq.spec.metadata", "read_metadata"),
    "run_recipe": ("tftq.kinds", "run"),
}


def __getattr__(name: str) -> Any:
    """Import a public name.

    Raises:
        MissingExtraError: it needs a package that is not installed.
    """
    if name == "__version__":
        return installed("tftq")  # None in a checkout that is not installed
    if name not in _HOMES:
        raise AttributeError(f"module 'tftq' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if (line := explain_missing(error)) is None:
            raise
        raise MissingExtraError(f"tftq.{name} {line}") from error


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted(__all__)
