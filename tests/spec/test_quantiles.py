"""Names of quantiles, there and back."""

import pytest

from tftq.spec.quantiles import level_of, quantile_name


@pytest.mark.parametrize(
    ("level", "name"), [(0.1, "P10"), (0.5, "P50"), (0.29, "P29"), (0.975, "P97.5"), (0.123456789, "P12.3456789"), (1e-7, "P1e-05")]
)
def test_a_level_has_a_name_and_the_name_its_level(level: float, name: str) -> None:
    assert quantile_name(level) == name and level_of(name) == pytest.approx(level, rel=1e-12)


@pytest.mark.parametrize("name", ["P", "PP50", "p50", "P50 ", "P-1", "position", "price_P50"])
def test_other_names_have_none(name: str) -> None:
    assert level_of(name) is None
