"""Which extra of tftq installs a package that may be missing."""

EXTRAS = {
    "serve": ("jinja2", "onnxruntime"),
    "train": ("onnx", "onnxscript", "psutil", "pynvml", "torch"),
    "rl": ("gymnasium", "stable_baselines3"),
}


def explain_missing(error: ModuleNotFoundError) -> str | None:
    """Return a line that names a missing package and the command that installs it; None where no extra does.

    Args:
        error: of the import.
    """
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    return None if extra is None else f"needs {package}, which is not installed: pip install 'tftq[{extra}]'"
