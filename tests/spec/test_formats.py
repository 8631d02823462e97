"""The table of formats: complete, without contradictions, and what follows from it."""

from itertools import product
from typing import get_args

import pytest

from tftq.spec.formats import FORMATS, PREFERRED, Format, Method, WeightStorage, available_formats, method_formats


def test_every_format_has_a_row_and_files_of_its_own() -> None:
    assert tuple(FORMATS) == get_args(Format)
    files = [file for row in FORMATS.values() for file in (*row.files, row.proof_file)]
    assert len(set(files)) == len(files)


def test_formats_are_told_apart_by_their_properties() -> None:
    def having(name: str) -> list[Format]:
        return [row.name for row in FORMATS.values() if getattr(row, name)]

    assert having("multiplies_integers") == ["int8_ptq", "int8_qat", "int4_ptq", "int4_qat"]
    assert having("stores_integers") == ["fp16_int8", "int8_ptq", "int8_qat", "int4_ptq", "int4_qat"]
    assert (having("for_gpu"), having("weight_only"), having("is_pair")) == (["fp16", "fp16_int8"], ["fp16_int8"], ["stream"])
    assert {name for name, row in FORMATS.items() if row.oldest_runtime == "1.23"} == {"int4_ptq", "int4_qat"}


def test_prediction_prefers_integers_and_never_takes_a_pair() -> None:
    assert PREFERRED == ("int8_qat", "int4_qat", "int8_ptq", "int4_ptq", "fp32", "fp16", "fp16_int8")


@pytest.mark.parametrize(
    ("method", "weights", "made", "others"),
    [
        ("none", "int8", ("fp32",), {"fp16", "stream"}),
        ("none", "int4", ("fp32",), {"fp16", "stream"}),
        ("ptq", "int8", ("fp32", "int8_ptq"), {"fp16", "fp16_int8", "stream"}),
        ("qat", "int4", ("fp32", "int4_ptq", "int4_qat"), {"fp16", "fp16_int8", "stream"}),
    ],
)
def test_a_method_makes_formats_and_allows_others(
    method: Method, weights: WeightStorage, made: tuple[Format, ...], others: set[Format]
) -> None:
    assert (method_formats(method, weights), available_formats(method, weights)) == (made, {*made, *others})


def test_the_result_of_a_method_is_last_and_available() -> None:
    for method, weights in product(get_args(Method), get_args(WeightStorage)):
        assert method_formats(method, weights)[-1] in available_formats(method, weights)
