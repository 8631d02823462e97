"""Reading a recipe: numbers, overrides, paths, options without effect, and the way back to YAML."""

import warnings
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tftq.agents.recipe import AgentRecipe
from tftq.errors import RecipeError
from tftq.recipe.load import RecipeWarning, load_document, load_recipe, recipe_hash, resolved_yaml
from tftq.recipe.model import Mamba2Recipe, TftRecipe
from tftq.recipe.schema import BarsRecipe, PruneRecipe, Recipe, TableRecipe

BARS = "name: first\ndata: {kind: bars, path: bars.parquet}\n"
TABLE = "name: first\ndata: {kind: table, path: t.csv, time: t, target: y, season: 24}\n"

Load = Callable[..., Recipe]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str, *overrides: str) -> Recipe:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return load_recipe(path, overrides)

    return load


def test_the_least_recipe_holds_every_default(load: Load, tmp_path: Path) -> None:
    recipe = load(BARS)
    assert recipe == Recipe(name="first", data=BarsRecipe(kind="bars", path=tmp_path / "bars.parquet"))
    assert (recipe.seed, recipe.device, recipe.out, recipe.model.form, recipe.model.knots) == (7, "auto", None, "knots", 32)
    assert (recipe.train.optimizer.lr, recipe.train.schedule.cooldown, recipe.validate.batch_size) == (1e-3, 0.5, None)
    assert (recipe.quant.method, recipe.formats, recipe.memory.budget_mb) == ("none", ("fp32",), 4096)


def test_a_section_of_comments_holds_its_defaults(load: Load) -> None:
    assert load(f"{BARS}train:\n  # epochs: 3\n  optimizer:\nquant:\n  method: ptq\n  qat:\n") == load(f"{BARS}quant: {{method: ptq}}\n")


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("1E-4", 1e-4), ("1e4", 1e4), ("1.5e+2", 150.0), (".5e1", 5.0), ("1_000", 1000), ("+2.5", 2.5)]
)
def test_numbers_with_exponents_and_underscores(load: Load, text: str, value: float) -> None:
    assert load(f"{BARS}train: {{optimizer: {{lr: {text}}}}}").train.optimizer.lr == value
    assert load(BARS, f"train.optimizer.lr={text}").train.optimizer.lr == value


@pytest.mark.parametrize(("text", "value"), [("010", 10), ("0x1F", 31), ("0o17", 15), ("+7", 7)])
def test_whole_numbers_are_those_of_yaml_1_2(load: Load, text: str, value: int) -> None:
    assert load(f"{BARS}seed: {text}").seed == value
    assert load(BARS, f"seed={text}").seed == value


def test_a_time_of_day_is_text(load: Load) -> None:
    with pytest.raises(RecipeError, match=r"seed \(line 3\): found '1:30'; allowed: a whole number"):
        load(f"{BARS}seed: 1:30")


def test_a_whole_number_may_have_an_exponent(load: Load) -> None:
    assert load(BARS, "memory.budget_mb=1e4").memory.budget_mb == 10_000
    with pytest.raises(RecipeError, match=r"train\.epochs \(command line\): found 1\.5; allowed: a whole number, at least 1"):
        load(BARS, "train.epochs=1.5")


@pytest.mark.parametrize("word", ["on", "off", "yes", "NO", "n", "2024-01-31", "2024-13-45"])
def test_words_stay_text_where_text_is_expected(load: Load, word: str) -> None:
    recipe = load(f"name: first\ndata: {{kind: bars, path: p, symbol: {word}}}")
    assert isinstance(recipe.data, BarsRecipe)
    assert recipe.data.symbol == word


@pytest.mark.parametrize(("word", "value"), [("on", True), ("Off", False), ("yes", True), ("no", False), ("true", True), ("False", False)])
def test_words_are_truth_values_where_those_are_expected(load: Load, word: str, value: bool) -> None:
    assert load(f"{BARS}export: {{publish: {word}}}").export.publish is value
    assert load(BARS, f"export.publish={word}").export.publish is value


def test_overrides_are_typed_by_the_field(load: Load) -> None:
    lists = ("model.quantiles=[0.2,0.5,0.8]", "data.known=[1, no]", "data.calendar=[hour]")
    recipe = load(TABLE, "name=1", *lists, "train.clip_norm=null", "data.time=yes")
    assert recipe.name == "1"
    assert recipe.model.quantiles == (0.2, 0.5, 0.8)
    assert recipe.train.clip_norm is None
    assert isinstance(recipe.data, TableRecipe)
    assert (recipe.data.known, recipe.data.calendar, recipe.data.time) == (("1", "no"), ("hour",), "yes")


def test_an_override_is_split_at_the_first_equals_sign(load: Load) -> None:
    assert load(BARS, "out=/tmp/a=b").out == Path("/tmp/a=b").resolve()


def test_a_pattern_keeps_its_dots(load: Load) -> None:
    assert load(BARS, "train.optimizer.groups.*.norm.*=3e-4").train.optimizer.groups == {"*.norm.*": 3e-4}


def test_null_takes_out_an_option_or_a_section(load: Load) -> None:
    text = f"{BARS}seed: 3\nquant: {{method: qat, qat: {{epochs: 5}}}}"
    assert load(text, "seed=null", "quant.qat=null", "quant.method=ptq") == load(f"{BARS}quant: {{method: ptq}}")
    assert load(f"{BARS}quant: {{prune: {{keep: 3}}}}", "quant.prune=null") == load(BARS) == load(f"{BARS}quant: {{prune: null}}")
    assert load(f"{BARS}quant: {{prune: null}}", "quant.prune.keep=4").quant.prune == PruneRecipe(keep=4)


def test_an_override_switches_the_kind_of_data(load: Load) -> None:
    recipe = load(BARS, "data.season=24", "data.time=t", "data.target=y", "data.kind=table")
    assert isinstance(recipe.data, TableRecipe)
    assert recipe.data.season == 24


def test_the_kind_of_model(load: Load) -> None:
    """A TFT where nothing is said of it, which the resolved recipe and its hash keep to."""
    plain, named = load(BARS), load(f"{BARS}model: {{kind: tft}}")
    assert plain == named and isinstance(plain.model, TftRecipe)
    assert resolved_yaml(plain) == resolved_yaml(named) and "kind: tft" not in resolved_yaml(plain)
    recipe = load(BARS, "model.layers=3", "model.kind=mamba2", "quant.method=ptq")
    assert isinstance(recipe.model, Mamba2Recipe) and recipe.model.layers == 3
    assert "kind: mamba2" in resolved_yaml(recipe) and "lstm" not in resolved_yaml(recipe)
    assert load(resolved_yaml(recipe)) == recipe and recipe_hash(load(resolved_yaml(recipe))) == recipe_hash(recipe)


def test_paths_start_at_the_file_or_at_the_working_directory(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load(f"{BARS}out: ../runs").out == tmp_path.parent / "runs"
    assert load(f"{BARS}out: ~/runs").out == Path.home() / "runs"
    recipe = load(BARS, "data.path=mine.parquet")
    assert recipe.data.path == tmp_path / "elsewhere" / "mine.parquet"
    assert load(BARS).data.path == tmp_path / "bars.parquet"
    cached = "name: a\ndata: {kind: bars, path: bars.parquet, cache: kept}\n"
    assert load(cached).data.cache == tmp_path / "kept"
    assert load(cached, "data.cache=null").data.cache is load(BARS).data.cache is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: {form: folded, knots: 9}",
            "model.knots has no effect: model.form is not knots, so that each variable gets the knots that its curve needs",
        ),
        ("quant: {calibration_windows: 9}", "quant.calibration_windows has no effect: quant.method is none"),
        ("quant: {calibration: mse}", "quant.calibration has no effect: quant.method is none"),
        ("quant: {percentile: 99}", "quant.percentile has no effect: quant.method is none"),
        ("quant: {method: ptq, percentile: 99}", "quant.percentile has no effect: quant.calibration is not percentile"),
        ("quant: {sensitivity: true}", "quant.sensitivity has no effect: quant.method is none"),
        ("quant: {loss_budget: 0.002}", "quant.loss_budget has no effect: quant.method is none"),
        ("quant: {keep_float: [heads]}", "quant.keep_float has no effect: quant.method is none"),
        ("quant: {weights: int4}", "quant.weights has no effect: quant.method is none"),
        ("quant: {lstm: int8}", "quant.lstm has no effect: quant.method is none"),
        (
            "quant: {prune: {keep: 3, schedule: {warmup: 0, cooldown: 0, floor: 0.2}}}",
            "quant.prune.schedule.floor has no effect: warmup and cooldown are both 0",
        ),
        ("train: {patience: 10}", "train.patience has no effect: training ends after train.epochs, no later"),
        ("train: {schedule: {warmup: 0, cooldown: 0, floor: 0.2}}", "train.schedule.floor has no effect: warmup and cooldown are both 0"),
        (
            "quant: {method: qat, qat: {range_lr: 0.1}}",
            "quant.qat.range_lr has no effect: quant.qat.ranges is observe",
        ),
        (
            "quant: {method: qat, qat: {schedule: {warmup: 0, cooldown: 0, floor: 0.2}}}",
            "quant.qat.schedule.floor has no effect: warmup and cooldown are both 0",
        ),
        (
            "device: cpu\nvalidate: {offload_optimizer: always}",
            "validate.offload_optimizer has no effect: device is cpu, so there is nowhere to take it",
        ),
        ("device: cpu\nvalidate: {device: train}", "validate.device has no effect: device is cpu, so that validation is there as well"),
        (
            "validate: {device: cpu, offload_optimizer: always}",
            "validate.offload_optimizer has no effect: validate.device is cpu, so nothing is in its way",
        ),
    ],
)
def test_an_option_without_effect_is_warned_of_and_left_out(load: Load, text: str, message: str) -> None:
    with pytest.warns(RecipeWarning) as caught:
        recipe = load(BARS + text)
    assert [str(warning.message) for warning in caught] == [message]
    path = message.split()[0]
    if "prune" not in path:  # which has no defaults of its own
        assert attrgetter(path)(recipe) == attrgetter(path)(load(BARS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(resolved_yaml(recipe)) == recipe


def test_the_hash_is_of_what_a_run_does(load: Load) -> None:
    recipe = load(BARS)
    assert recipe_hash(recipe) == recipe_hash(load(BARS, "name=other", "out=/tmp/x", "data.cache=/tmp/y"))
    assert len(recipe_hash(recipe)) == 64
    assert recipe_hash(recipe) != recipe_hash(load(BARS, "seed=8"))
    ordered = [load(f"{BARS}train: {{optimizer: {{groups: {groups}}}}}") for groups in ("{a: 1e-3, '*': 1e-4}", "{'*': 1e-4, a: 1e-3}")]
    assert recipe_hash(ordered[0]) != recipe_hash(ordered[1])  # the first pattern that matches a parameter counts


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    target=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1),
    known=st.lists(st.sampled_from(["1e4", "no", "null", "~", "2024-01-01", "0x1f", "1:30", "<<", "=", "- a", "true", "é"]), unique=True),
    lr=st.floats(min_value=1e-300, max_value=1e300),
    cut=st.floats(0, 0.5),
    method=st.sampled_from(["none", "ptq", "qat"]),
)
def test_a_resolved_recipe_reads_back_equal(load: Load, target: str, known: list[str], lr: float, cut: float, method: str) -> None:
    data = {"kind": "table", "path": Path("/t.csv"), "time": "the time", "target": f"y {target}", "known": known, "season": 24, "test": cut}
    recipe = Recipe.model_validate(
        {"name": "a", "data": data, "train": {"optimizer": {"lr": lr, "groups": {target: lr}}}, "quant": {"method": method}}
    )
    assert load(resolved_yaml(recipe)) == recipe
    assert recipe_hash(load(resolved_yaml(recipe))) == recipe_hash(recipe)


RECIPES = sorted(path for path in (Path(__file__).parents[2] / "recipes").glob("*.yaml") if not path.stem.startswith("ensemble"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe = load_document(path)
    assert isinstance(recipe, Recipe | AgentRecipe)
    assert recipe.name == path.stem
    assert recipe.data.path.exists()
    commands = [line.split() for line in path.read_text().splitlines() if line.startswith("#   python -m tftq.run ")]
    assert [command[:5] for command in commands] == [["#", "python", "-m", "tftq.run", f"recipes/{path.name}"]] * 2
    assert len(commands[0]) == 5
    load_document(path, commands[1][5:])
    if path.stem.startswith("es225"):
        assert isinstance(recipe, Recipe)
        assert (recipe.model.hidden, recipe.model.heads, recipe.model.lstm_layers, recipe.model.knots) == (256, 8, 2, 64)
        assert (recipe.data.lookback, recipe.data.horizon, recipe.train.batch_size, recipe.train.epochs) == (60, 10, 32, 5)


def test_all_the_recipes_are_there() -> None:
    small = {"fp32", "fp16", "ptq_int8", "qat_int8", "structured_int4", "structured_qat"}
    agents = {"dqn", "dqn_ref", "ppo", "ppo_ref"}
    assert {path.stem for path in RECIPES} == small | agents | {"mamba2", "mamba2_ref"} | {
        "es225_fp32",
        "es225_fp16",
        "es225_lean",
        "es225_ptq",
        "es225_qat",
    }
