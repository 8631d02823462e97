"""A split by time, purged: no bar is a target in two parts."""

from typing import NamedTuple

import numpy as np

from tftq.errors import DataError


class Split(NamedTuple):
    """Indices of windows, int64, in each part, and how many windows were purged at the borders."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    purged: int


def split_by_time(first: np.ndarray, last: np.ndarray, validation: float, test: float) -> Split:
    """Split windows by the time of their targets; those whose targets cross a border are left out.

    Args:
        first: time of each window's first target, int64 [windows].
        last: time of its last target, int64 [windows].
        validation: fraction of the windows, in order of time, that lie between training and test.
        test: fraction of the windows that come last; may be 0.

    Returns:
        The windows of each part.

    Raises:
        DataError: a part without a window.
    """
    count = len(first)
    ordered = np.sort(first)
    borders = np.r_[ordered, last.max() + 1]  # the last one is past every target: a part that begins there is empty
    validation_from, test_from = borders[round(count * (1 - validation - test))], borders[round(count * (1 - test))]
    in_train = last < validation_from
    in_validation = (first >= validation_from) & (last < test_from)
    in_test = first >= test_from
    split = Split(
        np.flatnonzero(in_train),
        np.flatnonzero(in_validation),
        np.flatnonzero(in_test),
        int((~(in_train | in_validation | in_test)).sum()),
    )
    for name, part, wanted in (("training", split.train, True), ("validation", split.validation, True), ("test", split.test, test > 0)):
        if wanted and len(part) == 0:
            raise DataError(
                f"no {name} window is left: {count} windows split {1 - validation - test:g}/{validation:g}/{test:g}, without those whose "
                "targets cross a border; give more rows, a shorter data.horizon or other fractions in data.validation and data.test"
            )
    return split
