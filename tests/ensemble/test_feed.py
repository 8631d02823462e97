"""Bars of files and of lines: the same checks, the same breaks, and no line that is passed over in silence."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.helpers import BEGIN, MINUTE, bar_columns, take, write
from tests.ensemble.runs import as_json
from tftq.data.bars import read_bars
from tftq.data.segments import cut
from tftq.ensemble.feed import Feed, bars_of_file, bars_of_lines
from tftq.ensemble.market import Bar, Market
from tftq.ensemble.recipe import BarsToAnswer
from tftq.errors import DataError, EnsembleError

COLUMNS = bar_columns(40)


def recipe(path: Path | str = "-", **options: Any) -> BarsToAnswer:
    return BarsToAnswer.model_validate({"path": path, **options})


def as_csv(columns: dict[str, np.ndarray]) -> list[str]:
    rows = zip(*columns.values(), strict=True)
    return [",".join(columns) + "\n", *(",".join(map(str, row)) + "\r\n" for row in rows)]


def taken(lines: Sequence[str], **options: Any) -> tuple[list[Bar], Feed, list[str]]:
    told: list[str] = []
    feed = bars_of_lines(lines, recipe(**options), MINUTE, told.append)
    return list(feed.bars), feed, told


def test_lines_are_the_bars_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "ES.parquet", {**COLUMNS, "symbol": ["ESZ3"] * 40})
    wanted = list(bars_of_file(recipe(path), MINUTE, 5, None).bars)
    for lines in (as_json(COLUMNS, symbol="ESZ3"), as_csv({**COLUMNS, "symbol": np.array(["ESZ3"] * 40)})):
        found, _, told = taken(lines)
        assert told == [] and [(bar.time, bar.series, bar.values.tolist()) for bar in found] == [
            (bar.time, bar.series, bar.values.tolist()) for bar in wanted
        ]


def test_usual_names_times_and_columns_that_are_not_used() -> None:
    line = '{"t": "2024-01-08T00:00:00+01:00", "O": 10, "h": 12, "l": 9, "last": 11, "vol": 3, "bid": 10.5}'
    (bar,), _, told = taken([line, "\n"])
    assert bar.time == BEGIN - 60 * MINUTE and bar.values.tolist() == [10, 12, 9, 11, 3]
    assert told == ["columns not used: bid"]
    header, row = "time,open,high,low,close,volume", "2024-01-08 00:00:00,10,12,9,11,3"
    with pytest.raises(DataError, match=r"standard input, line 2: time column 'time' holds local times without a zone"):
        taken([header, row])
    ((time, _, _),), _, _ = taken([header, row], time_zone="America/Chicago")
    assert time == BEGIN + 6 * 60 * MINUTE


GOOD = as_json(COLUMNS)
BAD_LINES = {
    "not JSON": ("{oops\n", "Expecting property name"),
    "no object": ("17\n", "found '17'; allowed: a JSON object"),
    "too deep": ('{"a":' * 5000 + "\n", "recursion"),
    "no close": ('{"t": 1704672180000, "open": 1, "high": 1, "low": 1, "volume": 1}', "no column for close"),
    "a price below zero": (GOOD[3].replace('"low": 3', '"low": -3'), "low is not above zero"),
    "text for a price": (json.dumps({**json.loads(GOOD[3]), "open": "cheap"}), "column 'open' holds string"),
    "a number too large": ('{"t": 1e400, "open": 1, "high": 1, "low": 1, "close": 1, "volume": 1}', "time column 't' holds double"),
    "the bar before": (GOOD[2], "a second bar of 2024-01-08T00:02:00Z"),
    "an older bar": (GOOD[1], "a bar of 2024-01-08T00:01:00Z, and the one before is of 2024-01-08T00:02:00Z"),
    "no price": (json.dumps({**json.loads(GOOD[3]), "close": None}), "close missing at 2024-01-08T00:03:00Z"),
    "NaN": (json.dumps({**json.loads(GOOD[3]), "high": np.nan}), "high missing at 2024-01-08T00:03:00Z"),
}


@pytest.mark.parametrize("which", BAD_LINES)
def test_a_bad_bar_is_named_with_its_line_and_refused_or_left_out(which: str) -> None:
    line, said = BAD_LINES[which]
    lines = [*GOOD[:3], line, *GOOD[4:6]]
    with pytest.raises(DataError, match="standard input, line 4: ") as refused:
        taken(lines)
    assert said in str(refused.value) and "set data.bad_lines: skip" in str(refused.value)
    bars, feed, told = taken(lines, bad_lines="skip")
    assert [bar.time for bar in bars] == [BEGIN + MINUTE * i for i in (0, 1, 2, 4, 5)]
    assert feed.counts == {"bad lines": 1} and told[0].startswith("line 4: left out: ") and said in told[0]
    assert len(told) == 2 and "are 2 min apart" in told[1]


def test_a_feed_at_another_step_is_told_at_once_and_refused_after_ten_gaps() -> None:
    """Five-minute bars, and times that stray by less than a millisecond; a file of them is refused as well."""
    stray = COLUMNS["ts_event"] + 1000 * (np.arange(40) % 7)
    for times, apart in ((BEGIN + 5 * MINUTE * np.arange(40), "5 min"), (stray, "60 s")):
        told: list[str] = []
        feed = bars_of_lines(as_json({**COLUMNS, "ts_event": times}), recipe(), MINUTE, told.append)
        assert [next(feed.bars).time for _ in range(10)] == times[:10].tolist()
        assert len(told) == 1 and told[0].startswith("the bars of 2024-01-08T00:00:00Z and 2024-01-08T00:0")
        assert told[0].endswith(f" are {apart} apart, the members want 1 min; they warm up anew after every such gap")
        with pytest.raises(
            EnsembleError, match=r"line 11: none of the first 10 bars came 1 min after the one before, .* the last (5 min|60 s);"
        ):
            next(feed.bars)


def test_gaps_of_a_feed_that_has_the_members_step_are_told_once() -> None:
    rows = np.r_[0:2, 5, np.arange(8, 40, 2)]
    bars, _, told = taken(as_json(take(COLUMNS, rows)))
    assert len(bars) == len(rows)
    assert told == [
        "the bars of 2024-01-08T00:01:00Z and 2024-01-08T00:05:00Z are 4 min apart, the members want 1 min; "
        "they warm up anew after every such gap"
    ]


def test_a_byte_order_mark_before_the_first_line_is_passed_over() -> None:
    for lines in (GOOD[:3], as_csv(COLUMNS)[:4]):
        assert [bar.time for bar in taken(["\ufeff" + lines[0], *lines[1:]])[0]] == [BEGIN + MINUTE * i for i in range(3)]


def test_the_contracts_of_a_feed_that_holds_several_are_named() -> None:
    """At the same times, or in turn; one that follows another for good is the next segment's."""
    first, second = as_json(COLUMNS, symbol="A"), as_json({**COLUMNS, "ts_event": COLUMNS["ts_event"] + MINUTE // 2}, symbol="B")
    said = r"standard input holds several contracts at the same times; choose one with data\.symbol=\.\.\. \(A, B\)"
    with pytest.raises(DataError, match=rf"line 2: {said}"):
        taken([first[0], first[0].replace('"A"', '"B"')])
    with pytest.raises(DataError, match=rf"line 3: {said}"):
        taken([first[0], second[0], first[1], second[1]])
    assert [bar.series for bar in taken([*first[:2], *second[2:4]])[0]] == ["A", "A", "B", "B"]
    assert len(taken([first[0], second[0], first[1], second[1]], symbol="B")[0]) == 2


@pytest.mark.parametrize("word", ["connected to feed\n", "[]\n", "{info} connected\n", '"half', "time,open,close\n"])
def test_a_line_before_the_first_is_a_bad_one(word: str) -> None:
    """A word of the feed is no header of CSV, whatever follows."""
    for lines in (GOOD[:3], as_csv(COLUMNS)[:4]):
        with pytest.raises(DataError, match="standard input, line 2: ") as refused:
            taken(["\n", word, *lines])
        assert word.startswith("{") or f"found {word.strip()!r}; allowed: a JSON object, or the names of CSV columns" in str(refused.value)
        bars, feed, told = taken(["\n", word, *lines], bad_lines="skip")
        assert len(bars) == 3 and feed.counts == {"bad lines": 1} and len(told) == 1 and told[0].startswith("line 2: left out: ")


def in_won(*close: float) -> list[str]:
    """Bars whose prices are all the close."""
    prices = ("open", "high", "low", "close")
    return [json.dumps({"t": BEGIN + MINUTE * bar, **dict.fromkeys(prices, value), "volume": 1}) for bar, value in enumerate(close)]


def test_the_first_bar_says_whether_prices_are_fixed_point_numbers() -> None:
    """Around 100 million, where a bar alone would be read in one way and the next in another; as in a file, which is read as one."""
    for closes, expected in (
        ((100_000_000, 99_950_000, 100_100_000), [0.1, 0.09995, 0.1001]),
        ((99_950_000, 100_000_000, 100_100_000), [99_950_000, 100_000_000, 100_100_000]),
        ((4000.25, 4001, 4002.5), [4000.25, 4001, 4002.5]),
    ):
        bars, feed, _ = taken(in_won(*closes))
        assert [bar.values[3] for bar in bars] == expected and feed.fixed_point == (expected[0] == 0.1)
        resumed = bars_of_lines(in_won(*closes[1:]), recipe(), MINUTE, [].append)
        resumed.fixed_point = feed.fixed_point  # as a state keeps it
        assert [bar.values[3] for bar in resumed.bars] == expected[1:]
    absent = json.dumps({**json.loads(in_won(100_000_000)[0]), "close": None, "t": BEGIN - MINUTE})
    assert [bar.values[3] for bar in taken([absent, *in_won(100_000_000)], missing="drop")[0]] == [0.1]  # a broken bar says nothing


def test_a_bar_in_another_unit_than_the_first_is_refused() -> None:
    with pytest.raises(DataError, match=r"line 2: open is 99950000\.5; allowed, as before: whole numbers, .* units of 1e-09; set"):
        taken(in_won(100_000_000, 99_950_000.5))
    with pytest.raises(DataError, match=r"line 2: close moves from 1676\.5 to 1\.67675e\+12: prices are read as they are, as the first"):
        taken(in_won(1676.5, 1_676_750_000_000))
    with pytest.raises(
        DataError, match=r"line 2: close moves from 1676\.5 to 1\.677e-06: prices are read as whole numbers in units of 1e-09"
    ):
        taken(in_won(1_676_500_000_000, 1677))


def test_a_csv_line_with_too_few_fields_is_refused() -> None:
    lines = as_csv(COLUMNS)[:3]
    with pytest.raises(DataError, match=r"standard input, line 4: .*CSV"):
        taken([*lines, "1704672120000000000,1\n"])


def test_an_empty_field_of_csv_is_a_missing_value() -> None:
    lines = as_csv(COLUMNS)[:5]
    lines[3] = ",".join("" if name == "close" else str(values[2]) for name, values in COLUMNS.items())
    with pytest.raises(DataError, match=r"standard input, line 4: close missing at 2024-01-08T00:02:00Z; set"):
        taken(lines)
    bars, feed, _ = taken(lines, missing="drop")
    assert len(bars) == 3 and feed.counts == {"bars with a missing value": 1}


def test_what_the_recipe_lets_go_is_counted() -> None:
    missing = json.dumps({**json.loads(GOOD[3]), "close": None})
    bars, feed, told = taken([*GOOD[:3], missing, *GOOD[4:6]], missing="drop")
    assert len(bars) == 5 and feed.counts == {"bars with a missing value": 1} and len(told) == 1 and "are 2 min apart" in told[0]
    bars, feed, _ = taken([*GOOD[:3], GOOD[2], *GOOD[3:5]], duplicates="drop")
    assert len(bars) == 5 and feed.counts == {"exact copies of the bar before": 1}
    lines = [*as_json(take(COLUMNS, slice(0, 2)), symbol="ESZ3"), *as_json(take(COLUMNS, slice(0, 1)), symbol="ESH4")]
    bars, feed, _ = taken(lines, symbol="ESZ3")
    assert len(bars) == 2 and feed.counts == {"bars of other symbols": 1}
    with pytest.raises(DataError, match=r"line 1: no column for the symbol, and data\.symbol wants ESZ3"):
        taken(GOOD, symbol="ESZ3")


def test_segments_are_cut_as_training_cuts_them(tmp_path: Path) -> None:
    """A gap, a missing value and a new contract; the market begins anew at the very same bars."""
    columns: dict[str, Any] = take(bar_columns(80), np.r_[0:20, 22:40, 41:80])
    columns["close"] = columns["close"].astype(float)
    columns["close"][50] = np.nan
    columns["symbol"] = ["A"] * 60 + ["B"] * 17
    path = write(tmp_path / "x.parquet", columns)
    rows = read_bars(path, missing="drop")
    expected = [(segment.start, len(segment)) for segment in cut(rows, MINUTE)]
    market, found, place = Market(MINUTE, None, 4), [], []
    feed = bars_of_file(recipe(path, missing="drop"), MINUTE, 5, None)
    for bar in feed.bars:
        market.push(bar)
        row = int(np.searchsorted(rows.times, bar.time))
        if market.age == 1:
            found.append([row, 0])
        found[-1][1] = market.age
        place.append(market.segment)
    assert [tuple(one) for one in found] == expected == [(0, 20), (20, 18), (38, 12), (51, 9), (60, 17)]
    assert place[0] == 0 and place[-1] == 4


def test_a_span_begins_with_the_bars_that_its_first_answer_looks_at(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", take(bar_columns(220), np.r_[0:30, 40:220]))
    times = BEGIN + MINUTE * np.r_[0:30, 40:220]
    newest = bars_of_file(recipe(path, last=10), MINUTE, 5, None)
    assert newest.since == times[200]
    bars = list(newest.bars)
    assert [bar.time for bar in bars] == times[196:].tolist()  # four more than answers
    assert [bar.time for bar in newest.before] == times[146:196].tolist()  # and 50 for their features
    assert newest.age == 196 - 30
    early = bars_of_file(recipe(path, last=175), MINUTE, 20, None)  # from the sixth bar of a segment
    assert early.since == times[35] and early.before == [] and early.age == 0
    assert next(early.bars).time == times[30]
    assert bars_of_file(recipe(path, last=1000), MINUTE, 5, None).since == times[0]


def test_bars_that_no_member_has_seen(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", COLUMNS)
    feed = bars_of_file(recipe(path, unseen=True), MINUTE, 5, BEGIN + 29 * MINUTE)
    assert feed.since == BEGIN + 30 * MINUTE and "answers begin at 2024-01-08T00:30:00Z" in feed.notes[-1]
    with pytest.raises(DataError, match=r"no bar lies after 2024-01-08T00:39:00Z"):
        bars_of_file(recipe(path, unseen=True), MINUTE, 5, BEGIN + 39 * MINUTE)
    with pytest.raises(EnsembleError, match=r"data\.unseen: no member's file says when its training ended"):
        bars_of_file(recipe(path, unseen=True), MINUTE, 5, None)


def test_after_a_restart_every_later_bar_is_answered(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", COLUMNS)
    for options, trained in (({}, None), ({"last": 3}, None), ({"unseen": True}, BEGIN + 35 * MINUTE)):
        feed = bars_of_file(recipe(path, **options), MINUTE, 5, trained, BEGIN + 29 * MINUTE)
        assert [bar.time for bar in feed.bars] == [BEGIN + MINUTE * i for i in range(30, 40)]
        assert (feed.since, feed.before, feed.age) == (None, [], 0)


def test_a_file_of_other_bars_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", COLUMNS)
    with pytest.raises(EnsembleError, match=r"x\.parquet: bars are 1 min apart, the members want steps of 5 min"):
        bars_of_file(recipe(path), 5 * MINUTE, 5, None)
    twice = {name: np.r_[values, values] for name, values in COLUMNS.items()} | {"symbol": np.array(["A"] * 40 + ["B"] * 40)}
    with pytest.raises(DataError, match=r"holds several contracts at the same times; choose one with data\.symbol=\.\.\. \(A, B\)"):
        bars_of_file(recipe(write(tmp_path / "y.parquet", twice)), MINUTE, 5, None)


def test_a_file_without_a_whole_bar_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {**COLUMNS, "close": np.full(40, np.nan)})
    for options in ({}, {"last": 5}, {"unseen": True}):
        with pytest.raises(
            DataError, match=r"x\.parquet: each of its 40 bars lacks a value; give bars with open, high, low, close, volume"
        ):
            bars_of_file(recipe(path, missing="drop", **options), MINUTE, 5, BEGIN)


def test_what_is_no_feed_is_not_left_out_for_ever() -> None:
    """A CSV feed gone on with without its header; older bars, as a feed repeats that was cut off, are left out as long as they come."""
    header, *rows = as_csv(bar_columns(130))
    with pytest.raises(DataError, match=r"standard input, line 100: 100 lines in a row that say no bar; give JSON objects, or CSV below"):
        taken(rows, bad_lines="skip")
    bars, feed, _ = taken([header, *rows, *rows[:129], *rows[:99]], bad_lines="skip")
    assert len(bars) == 130 and feed.counts == {"bad lines": 228}
