"""The recipe of an ensemble: what it may say, where it is wrong, and the one that is shipped."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from tftq.ensemble.recipe import ENSEMBLE, EnsembleRecipe, MemberRecipe
from tftq.errors import RecipeError
from tftq.recipe.load import RecipeWarning, load, load_document, recipe_hash, resolved_yaml

TEXT = """\
name: two
members:
  a: {path: a.onnx}
  b: {path: models, foreign: {lookback: 3, history: {x: [body]}, output: {kind: quantiles, name: y}}}
data: {path: bars.parquet}
"""


def loaded(folder: Path, *overrides: str, text: str = TEXT) -> EnsembleRecipe:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return load(ENSEMBLE, path, overrides)


def test_the_least_recipe_holds_every_default(tmp_path: Path) -> None:
    recipe = loaded(tmp_path)
    assert recipe.members["a"] == MemberRecipe(path=tmp_path / "a.onnx") and recipe.data.path == tmp_path / "bars.parquet"
    assert (recipe.rule.kind, recipe.rule.minimum, recipe.threads, recipe.tick, recipe.cost_ticks) == ("risk_weighted", 1, 1, 0.25, 0.5)
    assert (recipe.memory.budget_mb, recipe.memory.residency, recipe.memory.shared_allocator) == (932, "all", True)
    assert isinstance(load_document(tmp_path / "recipe.yaml"), EnsembleRecipe)


def test_it_reads_back_equal(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, "members.b.weight=2", "data.last=40", "members.c.path=/c.onnx")
    assert list(recipe.members) == ["a", "b", "c"] and recipe.members["b"].weight == 2
    again = loaded(tmp_path, text=resolved_yaml(recipe))
    assert again == recipe and recipe_hash(again) == recipe_hash(recipe) != recipe_hash(loaded(tmp_path))


def test_an_override_goes_below_what_is_null(tmp_path: Path) -> None:
    text = TEXT.replace("a.onnx", "a.onnx, foreign: null")
    with pytest.raises(RecipeError, match=r"members\.a\.foreign\.history \(line 3\): missing"):
        loaded(tmp_path, "members.a.foreign.lookback=4", text=text)
    below = ("lookback=4", "history={x: [body]}", "output.kind=position", "output.name=y")
    foreign = loaded(tmp_path, *(f"members.a.foreign.{option}" for option in below), text=text).members["a"].foreign
    assert foreign is not None and (foreign.lookback, foreign.output.kind) == (4, "position")
    assert list(loaded(tmp_path, "members.c.path=c.onnx", text="name: one\nmembers: null\ndata: {path: p}").members) == ["c"]


@pytest.mark.parametrize(("threads", "lazy", "at_once"), [(1, "all", 1), (2, "all", 2), (5, "all", 2), (5, "lazy", 1)])
def test_members_are_asked_at_once_as_far_as_there_are_threads(tmp_path: Path, threads: int, lazy: str, at_once: int) -> None:
    assert loaded(tmp_path, f"threads={threads}", f"memory.residency={lazy}").at_once == at_once


def test_a_dash_is_standard_input(tmp_path: Path) -> None:
    assert loaded(tmp_path, "data.path=-").data.streamed
    assert not loaded(tmp_path, "data.path=./-").data.streamed and not loaded(tmp_path).data.streamed
    assert loaded(tmp_path, text=TEXT.replace("bars.parquet", '"-"')).data.streamed


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("members.ensemble.path=x", "members.ensemble (command line): ensemble is the name of all of them together; allowed: any other"),
        (
            "members.no change.path=x",
            "members.no change (command line): no change is the name of what members are judged beside; allowed: any",
        ),
        ("rule.minimum=3", "rule.minimum (command line): found 3; allowed: at most the 2 members there are"),
        ("members.b.weight=1e308", "members.b.weight (command line): found 1e+308; allowed: a number, above 0, at most 1000000"),
        ("cost_ticks=1e300", "cost_ticks (command line): found 1e+300; allowed: a number, at least 0, at most 1000000"),
        ("tick=1e7", "tick (command line): found 10000000.0; allowed: a number, above 0, at most 1000000"),
        ("data.step_s=1e300", "data.step_s (command line): found 1e+300; allowed: a number, at least 1e-09, at most 100000000"),
        ("data.step_s=1e-300", "data.step_s (command line): found 1e-300; allowed: a number, at least 1e-09, at most 100000000"),
        ("members.b.wieght=2", "members.b.wieght (command line): unknown key; did you mean members.b.weight?"),
        ("members.b.foreign.output.kind=score", "found 'score'; allowed: quantiles or scores or position; did you mean scores?"),
        ("members.b.foreign.output.positions=[0]", "is no option of members.b.foreign.output.kind quantiles; allowed: kind, name, levels"),
        ("members.b.foreign.output.levels=[0.1, 0.1000000000000001, 0.5]", "allowed: levels far enough apart to be called by different"),
        ("members.b.foreign.output.levels=[0.1, 0.9]", "found [0.1, 0.9]; allowed: strictly increasing, 0.5 among them"),
        ("members.b.foreign.future.f=[hour_sin_1]", "members.b.foreign.future (command line): needs the horizon; set horizon beside it"),
        (
            "members.b.foreign.horizon=4",
            "members.b.foreign.future (line 4): none, so that horizon has no effect; name the inputs over the horizon",
        ),
        ("data.unseen=true data.last=3", "data.unseen (command line): data.last names the bars already; leave one of them out"),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(tmp_path: Path, override: str, said: str) -> None:
    overrides = override.split() if override.startswith("data") else [override]
    with pytest.raises(RecipeError) as refused:
        loaded(tmp_path, *overrides)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.path=-", "data.last=3"], r"^data\.last has no effect: standard input is answered as it comes$"),
        (["data.path=-", "data.unseen=true"], r"^data\.unseen has no effect: standard input is answered as it comes$"),
        (["memory.residency=lazy", "memory.shared_allocator=true"], r"^memory\.shared_allocator has no effect: memory\.residency is lazy"),
        (["data.bad_lines=skip"], r"^data\.bad_lines has no effect: data\.path is a file, not standard input$"),
    ],
)
def test_what_has_no_effect_is_warned_of(tmp_path: Path, overrides: list[str], said: str) -> None:
    with pytest.warns(RecipeWarning, match=said):
        found: Any = loaded(tmp_path, *overrides)
    assert found.data.last is None and not found.data.unseen and found.data.bad_lines == "refuse"


@pytest.mark.parametrize(
    ("name", "trained"),
    [("ensemble", ["qat_int8", "mamba2", "dqn", "ppo"]), ("ensemble_ref", ["es225_ptq", "mamba2_ref", "dqn_ref", "ppo_ref"])],
)
def test_shipped_recipes(name: str, trained: list[str]) -> None:
    folder = Path(__file__).parents[2] / "recipes"
    path = folder / f"{name}.yaml"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe = load(ENSEMBLE, path)
    assert recipe.name == name and recipe.data.path.exists() and list(recipe.members) == ["tft", "mamba2", "dqn", "ppo"]
    assert [member.path for member in recipe.members.values()] == [folder.parent / "exports" / model for model in trained]
    assert all((folder / f"{model}.yaml").exists() for model in trained)
    commands = [line.split() for line in path.read_text().splitlines() if line.startswith("#   ")]
    assert [command[1:4] for command in commands] == [["tftq", "ensemble", f"recipes/{name}.yaml"]] * 2
    load(ENSEMBLE, path, commands[1][4:])
