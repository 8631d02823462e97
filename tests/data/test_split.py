"""The split by time is purged, and says what it did."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.helpers import bar_columns, bars_recipe, write
from tftq.data.load import load_datasets
from tftq.data.split import split_by_time
from tftq.errors import DataError


def test_counts_by_hand() -> None:
    first = np.arange(100)
    split = split_by_time(first, first + 9, validation=0.15, test=0.15)
    assert (split.train[-1], split.validation[0]) == (60, 70)  # targets up to 69, and from 70 on
    assert (split.validation[-1], split.test[0], split.test[-1]) == (75, 85, 99)
    assert split.purged == 18


def test_without_a_test_part_validation_runs_to_the_end() -> None:
    first = np.arange(100)
    split = split_by_time(first, first + 9, validation=0.2, test=0.0)
    assert (len(split.train), len(split.validation), len(split.test), split.purged) == (71, 20, 0, 9)


@given(
    first=st.lists(st.integers(0, 300), min_size=60, max_size=200),
    horizon=st.integers(1, 12),
    validation=st.floats(0.15, 0.4),
    test=st.sampled_from([0.0, 0.15, 0.3]),
)
def test_no_target_is_in_two_parts_and_no_window_is_lost_uncounted(first: list[int], horizon: int, validation: float, test: float) -> None:
    starts = np.array(first)
    try:
        split = split_by_time(starts, starts + horizon - 1, validation, test)
    except DataError:
        return  # a part was left empty, which is said
    targets = [{int(start) + step for start in starts[part] for step in range(horizon)} for part in split[:3]]
    assert not targets[0] & targets[1] and not targets[1] & targets[2] and not targets[0] & targets[2]
    assert max(targets[0]) < min(targets[1])
    assert sum(map(len, split[:3])) + split.purged == len(starts)


@pytest.mark.parametrize("validation, test, part", [(0.99, 0.0, "training"), (0.05, 0.5, "validation"), (0.2, 0.001, "test")])
def test_an_empty_part_is_refused(validation: float, test: float, part: str) -> None:
    first = np.arange(100)
    with pytest.raises(DataError, match=f"no {part} window is left: 100 windows split"):
        split_by_time(first, first + 9, validation, test)


def test_t6_ranges_are_told_and_no_bar_is_a_target_twice(tmp_path: Path) -> None:
    datasets = load_datasets(bars_recipe(write(tmp_path / "ES.parquet", bar_columns(1000)), validation=0.15, test=0.15))
    assert datasets.test is not None
    parts = (datasets.train, datasets.validation, datasets.test)
    times = [set(part.target_times(range(len(part))).flatten().tolist()) for part in parts]
    assert max(times[0]) < min(times[1]) and max(times[1]) < min(times[2])
    ranges = [note for note in datasets.notes if ", targets from " in note]
    assert [note.split(":")[0] for note in ranges] == ["train", "validation", "test"]
    assert ranges[0] == "train: 643 windows, targets from 2024-01-08T01:00:00Z to 2024-01-08T11:51:00Z"
    assert sum(map(len, parts)) == 931 - 18
    assert "18 windows left out because their targets cross a border between parts" in datasets.notes
