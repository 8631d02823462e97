"""What the tests of training share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _little_to_collect() -> Iterator[None]:
    """After an attempt that ran out of memory everything is collected: let that be what the tests made, not all that they import."""
    gc.freeze()
    yield
    gc.unfreeze()
