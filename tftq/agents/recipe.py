"""The schema of the recipe of an agent: a policy trained by reinforcement learning on the bars that forecasters learn from."""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from tftq.recipe.fields import Count, Fraction, NotNegative, Positive, Section, Switch, Tick, Ticks, Whole, contradiction, frozen
from tftq.recipe.recipe_type import RecipeType, UnusedOption, register
from tftq.recipe.schema import BarsRecipe, Calibration, MemoryRecipe, RunRecipe
from tftq.spec.formats import Format, method_formats


class AgentBarsRecipe(BarsRecipe):
    """Price bars; a position earns the return of the bar that follows the window."""

    horizon: Annotated[Count, Le(1)] = 1


class _AnyAgent(Section):
    layers: Annotated[tuple[Count, ...], BeforeValidator(frozen), MinLen(1)] = (64, 64)  # widths of the hidden layers
    steps: Count = 10_000  # bars that it trades to learn
    evaluations: Count = 5  # on the validation bars, evenly over the steps, the last one at the end
    lr: Positive = 3e-4
    gamma: Annotated[float, Ge(0), Lt(1)] = 0.9  # discount of the next bar's reward
    batch_size: Count = 64  # transitions to an update
    cost_ticks: Ticks = 0.5  # cost of changing a unit of position, in ticks; a flip from long to short changes two
    tick: Tick = 0.25  # the least step of the price

    @field_validator("evaluations")
    @classmethod
    def _no_more_than_steps(cls, evaluations: int, info: ValidationInfo) -> int:
        steps = info.data.get("steps", evaluations)
        if evaluations > steps:
            raise contradiction(f"found {evaluations}; allowed: at most agent.steps {steps}")
        return evaluations


class DqnRecipe(_AnyAgent):
    """Deep Q-learning (Mnih et al. 2015): the value of every position, learned from replayed transitions."""

    kind: Literal["dqn"]
    buffer_size: Count = 10_000  # transitions that are kept to learn from
    learning_starts: Whole = 1_000  # steps before the first update
    train_freq: Count = 4  # steps to an update
    target_update_interval: Count = 1_000  # steps from one copy of the network to its target network to the next
    exploration_fraction: Fraction = 0.5  # of the steps, over which random positions grow rare
    exploration_final_eps: Fraction = 0.05  # share of random positions from there on

    @field_validator("buffer_size")
    @classmethod
    def _holds_a_batch(cls, buffer_size: int, info: ValidationInfo) -> int:
        batch = info.data.get("batch_size", 1)
        if buffer_size < batch:
            raise contradiction(f"found {buffer_size}; allowed: at least agent.batch_size {batch}")
        return buffer_size

    @field_validator("train_freq")
    @classmethod
    def _leaves_evaluations_apart(cls, train_freq: int, info: ValidationInfo) -> int:
        steps, evaluations = (info.data.get(name) for name in ("steps", "evaluations"))
        if steps is not None and evaluations is not None and evaluations * train_freq > steps:
            raise contradiction(f"found {train_freq}; allowed: at most {steps // evaluations}, agent.steps to an evaluation")
        return train_freq

    @field_validator("learning_starts")
    @classmethod
    def _learns_at_all(cls, learning_starts: int, info: ValidationInfo) -> int:
        steps = info.data.get("steps")
        if steps is not None and learning_starts >= steps:
            raise contradiction(f"found {learning_starts}, so that nothing is learned; allowed: below agent.steps {steps}")
        return learning_starts


class PpoRecipe(_AnyAgent):
    """Proximal policy optimization (Schulman et al. 2017): a policy and a critic, learned from rollouts of that policy."""

    kind: Literal["ppo"]
    n_steps: Annotated[Count, Ge(2)] = 250  # of a rollout
    batch_size: Annotated[Count, Ge(2)] = 50  # transitions to an update; their advantages are normalised by their own spread
    n_epochs: Count = 4  # updates that each transition of a rollout takes part in
    clip_range: Annotated[float, Gt(0), Lt(1)] = 0.2  # how far from 1 the ratio of new to old probabilities may move
    ent_coef: NotNegative = 0.01  # weight of the entropy in the loss
    vf_coef: NotNegative = 0.5  # weight of the critic's loss
    gae_lambda: Fraction = 0.95  # of generalized advantage estimation

    @field_validator("n_steps")
    @classmethod
    def _fills_the_steps(cls, n_steps: int, info: ValidationInfo) -> int:
        steps, batch, evaluations = (info.data.get(name) for name in ("steps", "batch_size", "evaluations"))
        if steps is not None and steps % n_steps:
            rounded = [count for count in (steps - steps % n_steps, steps + n_steps - steps % n_steps) if count]
            advice = " or ".join(map(str, rounded))
            raise contradiction(f"agent.steps {steps} are no whole number of rollouts of {n_steps}; allowed with it: agent.steps {advice}")
        if batch is not None and n_steps % batch:
            raise contradiction(f"found {n_steps}; allowed: a multiple of agent.batch_size {batch}")
        if steps is not None and evaluations is not None and evaluations > steps // n_steps:
            raise contradiction(f"{steps // n_steps} rollouts are fewer than agent.evaluations {evaluations}; allowed: no more evaluations")
        return n_steps


class AgentQuantRecipe(Section):
    """Quantization to integers, after training."""

    method: Literal["none", "ptq"] = "none"
    calibration_windows: Count = 256  # each with every position held
    calibration: Calibration = "minmax"  # how a range follows from the observed values
    percentile: Annotated[float, Gt(50), Le(100)] = 99.99  # of calibration percentile: values beyond it, at each end, are left out

    @property
    def formats(self) -> tuple[Format, ...]:
        """Return the formats that the method makes, its result last."""
        return method_formats(self.method, "int8")


class AgentExportRecipe(Section):
    """The ONNX models that a run leaves: those that `quant.method` makes."""

    publish: Switch = True  # also copy them to exports/<name>/


class AgentRecipe(RunRecipe):
    """Everything that the run of an agent does."""

    data: AgentBarsRecipe
    agent: Annotated[DqnRecipe | PpoRecipe, Field(discriminator="kind")]
    quant: AgentQuantRecipe = AgentQuantRecipe()
    export: AgentExportRecipe = AgentExportRecipe()
    memory: MemoryRecipe = MemoryRecipe()


_UNUSED: tuple[UnusedOption[AgentRecipe], ...] = (
    UnusedOption(("agent", "tick"), lambda recipe: recipe.agent.cost_ticks == 0, "agent.cost_ticks is 0"),
    UnusedOption(("quant", "calibration_windows"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "calibration"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "percentile"), lambda recipe: recipe.quant.method == "none", "quant.method is none"),
    UnusedOption(("quant", "percentile"), lambda recipe: recipe.quant.calibration != "percentile", "quant.calibration is not percentile"),
)

AGENT = register(
    RecipeType(
        schema=AgentRecipe,
        of="an agent",
        command="python -m tftq.run",
        key="agent",
        unused=_UNUSED,
        not_hashed=(("name",), ("out",), ("data", "cache")),
    )
)
