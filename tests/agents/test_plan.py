"""What agents need, from their recipes alone."""

from pathlib import Path

import pytest

from tftq.agents.plan import buffer_bytes, plan_policy_export, trained_parameters
from tftq.agents.recipe import AGENT, PpoRecipe
from tftq.data.features.table import BAR_COLUMNS, CLOCK_COLUMNS
from tftq.recipe.load import load
from tftq.spec.inputs import Column, Inputs

RECIPES = Path(__file__).parents[2] / "recipes"
COLUMNS = (*(Column(name, "observed") for name in BAR_COLUMNS), *(Column(name, "known") for name in CLOCK_COLUMNS))


@pytest.mark.parametrize(("recipe", "megabytes"), [("dqn_ref", 6), ("ppo_ref", 145)])
def test_the_reference_agents_are_of_the_size_they_should_have(recipe: str, megabytes: float) -> None:
    """FP32 parameters, gradients and Adam's two moments of what is trained, sixteen bytes a number."""
    found = load(AGENT, RECIPES / f"{recipe}.yaml")
    inputs = Inputs(COLUMNS, found.data.lookback, horizon=1)
    assert len(inputs.history) == 225
    assert 16 * trained_parameters(found.agent, inputs) / 1e6 == pytest.approx(megabytes, rel=0.01)


def test_sizes_worked_out_by_hand() -> None:
    inputs = Inputs(COLUMNS[:3], lookback=4, horizon=1)  # 13 numbers are seen
    agent = PpoRecipe(kind="ppo", layers=(5, 2), n_steps=50)
    actor, critic = 14 * 5 + 6 * 2 + 3 * 3, 14 * 5 + 6 * 2 + 3 * 1
    assert trained_parameters(agent, inputs) == actor + critic
    assert buffer_bytes(agent, inputs) == 50 * 13 * 4
    assert plan_policy_export(agent, inputs, "fp32").peak_bytes == 2 * 4 * actor + 2 * 4 * actor
    assert plan_policy_export(agent, inputs, "int8_ptq").peak_bytes == 2 * 4 * actor + 2 * actor
