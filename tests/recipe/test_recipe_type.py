"""Recipes of several kinds: told by a top-level key, each with errors, overrides, paths and idle options of its own."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from tftq.errors import RecipeError
from tftq.recipe import load as loading
from tftq.recipe.fields import Count, FilePath, Names, Positive, Section
from tftq.recipe.forecaster import FORECASTER
from tftq.recipe.load import RecipeWarning, load, load_document, load_recipe, recipe_hash, resolved_yaml
from tftq.recipe.recipe_type import RecipeType, UnusedOption
from tftq.recipe.schema import Recipe


class Apple(Section):
    kind: Literal["apple"]
    seeds: Count = 5


class Plum(Section):
    kind: Literal["plum"]
    stone: Positive = 1.0


class Crate(Section):
    photo: FilePath
    labels: Names = ()
    weight: Positive = 1.0


class Shop(Section):
    name: str
    fruit: Annotated[Apple | Plum, Field(discriminator="kind")]
    crates: dict[str, Crate] = Field({})
    spare: tuple[Crate, ...] = Field((), strict=False)
    price: Positive = 1.0


SHOP = RecipeType(
    schema=Shop,
    of="a shop",
    command="sell",
    key="fruit",
    unused=(UnusedOption(("price",), lambda shop: shop.fruit.kind == "plum", "plums are free"),),
    not_hashed=(("name",),),
)
TEXT = """\
name: corner
fruit: {kind: apple}
crates:
  left: {photo: left.png}
spare:
  - photo: ~/a.png
  - photo: b.png
"""


@pytest.fixture(autouse=True)
def _two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "REGISTERED", [SHOP, FORECASTER])


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def shop(folder: Path, text: str = TEXT, *overrides: str) -> Shop:
    return load(SHOP, written(folder, text), overrides)


def refusal(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        shop(folder, text, *overrides)
    return str(caught.value).splitlines()[1:]


def test_a_top_level_key_tells_the_kind(tmp_path: Path) -> None:
    assert isinstance(load_document(written(tmp_path, TEXT)), Shop)
    forecaster = load_document(written(tmp_path, "name: first\ndata: {kind: bars, path: bars.parquet}"))
    assert isinstance(forecaster, Recipe)
    assert load(FORECASTER, tmp_path / "recipe.yaml") == forecaster


def test_a_recipe_of_another_kind_is_refused_with_what_takes_it(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"recipe\.yaml: is the recipe of a shop; allowed here: that of a forecaster; sell takes it$"):
        load_recipe(written(tmp_path, TEXT))
    with pytest.raises(RecipeError, match=r"is the recipe of a forecaster; allowed here: that of a shop; python -m tftq\.run takes it$"):
        shop(tmp_path, "name: first")


def test_paths_in_mappings_and_lists_start_at_the_file(tmp_path: Path) -> None:
    found = shop(tmp_path)
    assert found.crates["left"].photo == tmp_path / "left.png"
    assert [crate.photo for crate in found.spare] == [Path.home() / "a.png", tmp_path / "b.png"]


def test_overrides_reach_into_mappings_and_kinds_but_not_into_lists(tmp_path: Path) -> None:
    found = shop(tmp_path, TEXT, "crates.left.weight=2", "crates.right.photo=/r.png", "fruit.seeds=3")
    assert found.crates == {
        "left": Crate(photo=tmp_path / "left.png", weight=2.0),
        "right": Crate(photo=Path("/r.png")),
    }
    assert isinstance(found.fruit, Apple)
    assert found.fruit.seeds == 3
    assert shop(tmp_path, TEXT, "crates.left=null").crates == {}
    assert refusal(tmp_path, TEXT, "spare.0.weight=2") == [
        "  spare.0.weight (command line): stands in a list; allowed: the whole list, as key=[...]"
    ]
    assert refusal(tmp_path, TEXT, "crates.left.wight=2") == [
        "  crates.left.wight (command line): unknown key; did you mean crates.left.weight?"
    ]


def test_errors_name_the_option_wherever_it_lies(tmp_path: Path) -> None:
    text = TEXT.replace("b.png", "b.png\n    weight: 0").replace("left.png", "left.png, lables: [a]").replace("apple", "apple, stone: 2")
    assert refusal(tmp_path, text) == [
        "  fruit.stone (line 2): is no option of fruit.kind apple; allowed: kind, seeds",
        "  crates.left.lables (line 4): unknown key; did you mean crates.left.labels?",
        "  spare.1.weight (line 8): found 0; allowed: a number, above 0",
    ]
    assert refusal(tmp_path, TEXT.replace("apple", "aple")) == [
        "  fruit.kind (line 2): found 'aple'; allowed: apple or plum; did you mean apple?"
    ]
    assert refusal(tmp_path, TEXT.replace("kind: apple", "stone: 2")) == ["  fruit.kind (line 2): missing; allowed: apple or plum"]


def test_idle_options_and_the_hash_are_the_kinds_own(tmp_path: Path) -> None:
    with pytest.warns(RecipeWarning, match=r"^price has no effect: plums are free$"):
        found = shop(tmp_path, TEXT + "price: 3\n", "fruit.kind=plum")
    assert found.price == 1.0
    assert "price" not in resolved_yaml(found)
    assert shop(tmp_path, resolved_yaml(found)) == found
    assert recipe_hash(found) == recipe_hash(shop(tmp_path, TEXT, "fruit.kind=plum", "name=other"))
    assert recipe_hash(found) != recipe_hash(shop(tmp_path, TEXT))


def test_recipes_are_read_without_agents_and_ensembles() -> None:
    code = "import sys, tftq.recipe.load; print([name for name in ('tftq.agents', 'tftq.ensemble') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
