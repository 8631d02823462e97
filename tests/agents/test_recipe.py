"""The recipe of an agent: its defaults, its two kinds, what contradicts itself and what is idle."""

from pathlib import Path

import pytest

from tftq.agents.recipe import AGENT, AgentRecipe, DqnRecipe, PpoRecipe
from tftq.errors import RecipeError
from tftq.recipe.load import RecipeWarning, load, load_recipe, recipe_hash, resolved_yaml

DQN = "name: a\ndata: {kind: bars, path: bars.parquet}\nagent: {kind: dqn}\n"
PPO = DQN.replace("dqn", "ppo")


def read(folder: Path, text: str, *overrides: str) -> AgentRecipe:
    path = folder / "agent.yaml"
    path.write_text(text)
    return load(AGENT, path, overrides)


def test_the_least_recipes_hold_every_default(tmp_path: Path) -> None:
    dqn, ppo = read(tmp_path, DQN), read(tmp_path, PPO)
    assert dqn.agent == DqnRecipe(kind="dqn")
    assert ppo.agent == PpoRecipe(kind="ppo")
    assert (dqn.data.horizon, dqn.data.path, dqn.quant.formats) == (1, tmp_path / "bars.parquet", ("fp32",))
    assert read(tmp_path, DQN, "quant.method=ptq").quant.formats == ("fp32", "int8_ptq")
    assert read(tmp_path, resolved_yaml(ppo)) == ppo
    assert recipe_hash(dqn) == recipe_hash(read(tmp_path, DQN, "name=b", "out=/tmp/b", "data.cache=/tmp/c"))
    assert recipe_hash(dqn) != recipe_hash(ppo)


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (DQN, ["agent.clip_range=0.1"], "agent.clip_range (command line): is no option of agent.kind dqn; allowed: layers, steps, "),
        (PPO, ["agent.buffer_size=9"], "agent.buffer_size (command line): is no option of agent.kind ppo; allowed: layers, steps, "),
        (PPO, ["agent.n_step=9"], "agent.n_step (command line): unknown key; did you mean agent.n_steps?"),
        (DQN.replace("dqn", "a2c"), [], "agent.kind (line 3): found 'a2c'; allowed: dqn or ppo"),
        (DQN.replace("kind: dqn", ""), [], "agent.kind (line 3): missing; allowed: dqn or ppo"),
        (
            DQN.replace("{kind: dqn}", ""),
            [],
            "agent (line 3): missing; allowed: a mapping with kind dqn or ppo, and the options of that kind",
        ),
        (DQN, ["model.hidden=3"], "model.hidden (command line): unknown key; allowed: name, out, seed, device, data, agent, quant, export"),
        (PPO, ["agent.cost_ticks=1e300"], "agent.cost_ticks (command line): found 1e+300; allowed: a number, at least 0, at most 1000000"),
        (DQN, ["agent.tick=1e300"], "agent.tick (command line): found 1e+300; allowed: a number, above 0, at most 1000000"),
        (DQN, ["data.horizon=5"], "data.horizon (command line): found 5; allowed: a whole number, at least 1, at most 1"),
        (DQN, ["data.kind=table"], "data.kind (command line): found 'table'; allowed: bars"),
        (
            DQN,
            ["agent.layers=[]"],
            "agent.layers (command line): found []; allowed: a list, each a whole number, at least 1, at most 10000",
        ),
        (DQN, ["agent.gamma=1"], "agent.gamma (command line): found 1; allowed: a number, at least 0, below 1"),
        (DQN, ["agent.steps=4", "agent.learning_starts=0"], "agent.evaluations (line 3): found 5; allowed: at most agent.steps 4"),
        (
            DQN,
            ["agent.train_freq=2001"],
            "agent.train_freq (command line): found 2001; allowed: at most 2000, agent.steps to an evaluation",
        ),
        (DQN, ["agent.buffer_size=63"], "agent.buffer_size (command line): found 63; allowed: at least agent.batch_size 64"),
        (
            DQN,
            ["agent.learning_starts=10000"],
            "agent.learning_starts (command line): found 10000, so that nothing is learned; allowed: below agent.steps 10000",
        ),
        (
            PPO,
            ["agent.steps=1100"],
            "agent.n_steps (line 3): agent.steps 1100 are no whole number of rollouts of 250; allowed with it: agent.steps 1000 or ",
        ),
        (PPO, ["agent.n_steps=100", "agent.batch_size=30"], "agent.n_steps (command line): found 100; allowed: a multiple of agent.batch"),
        (
            PPO,
            ["agent.steps=1000"],
            "agent.n_steps (line 3): 4 rollouts are fewer than agent.evaluations 5; allowed: no more evaluations",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, text, *overrides)
    first, second = str(caught.value).splitlines()
    assert first.endswith(": 1 error")
    assert second.strip().startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("agent.tick=1", "agent.tick has no effect: agent.cost_ticks is 0"),
        ("quant.calibration_windows=9", "quant.calibration_windows has no effect: quant.method is none"),
        ("quant.calibration=mse", "quant.calibration has no effect: quant.method is none"),
        ("quant.percentile=99", "quant.percentile has no effect: quant.method is none"),
    ],
)
def test_what_is_idle(tmp_path: Path, override: str, message: str) -> None:
    with pytest.warns(RecipeWarning) as caught:
        found = read(tmp_path, DQN, "agent.cost_ticks=0", override)
    assert [str(warning.message) for warning in caught] == [message]
    assert found == read(tmp_path, DQN, "agent.cost_ticks=0")
    with pytest.warns(RecipeWarning, match=r"quant\.percentile has no effect: quant\.calibration is not percentile"):
        read(tmp_path, DQN, "quant.method=ptq", "quant.percentile=99")


def test_a_forecasters_command_refuses_it(tmp_path: Path) -> None:
    read(tmp_path, DQN)
    with pytest.raises(RecipeError, match=r"is the recipe of an agent; allowed here: that of a forecaster; python -m tftq\.run takes it$"):
        load_recipe(tmp_path / "agent.yaml")
