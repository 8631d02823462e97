"""Which versions of the packages are installed."""

from importlib.metadata import PackageNotFoundError, version


def installed(package: str) -> str | None:
    """The version of an installed package; None where it is not, as tftq itself when run from a checkout."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
