"""The schema of the recipe of an ensemble."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from tftq.recipe.fields import Count, FilePath, Names, Positive, Section, Switch, Text, Tick, Ticks, Whole, contradiction, frozen
from tftq.recipe.recipe_type import RecipeType, UnusedOption, register
from tftq.recipe.schema import JobRecipe
from tftq.spec.formats import Format
from tftq.spec.quantiles import quantile_name

STANDARD_INPUT = Path("-")
OWN = "ensemble"  # the name under which the ensemble's own answers stand
BUY_AND_HOLD, NO_CHANGE = "buy and hold", "no change"  # and those of the baselines


class QuantilesOutput(Section):
    """A forecast: [1, horizon, levels], or [1, levels] of the next step."""

    kind: Literal["quantiles"]
    name: Text
    levels: Annotated[tuple[Annotated[float, Gt(0), Lt(1)], ...], BeforeValidator(frozen)] = (0.1, 0.5, 0.9)

    @field_validator("levels")
    @classmethod
    def _ordered_with_the_median(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        if 0.5 not in levels or not all(low < high for low, high in pairwise(levels)):
            raise contradiction(f"found {list(levels)}; allowed: strictly increasing, 0.5 among them")
        if len(set(map(quantile_name, levels))) < len(levels):
            raise contradiction(f"found {list(levels)}; allowed: levels far enough apart to be called by different names")
        return levels


class ScoresOutput(Section):
    """A score for each of some positions, [1, positions]: the highest is taken."""

    kind: Literal["scores"]
    name: Text
    positions: Annotated[tuple[Annotated[float, Ge(-1), Le(1)], ...], BeforeValidator(frozen), MinLen(1)] = (-1.0, 0.0, 1.0)


class PositionOutput(Section):
    """The position itself, from -1 to 1, [1] or [1, 1]."""

    kind: Literal["position"]
    name: Text


Columns = Annotated[Names, MinLen(1)]
Seconds = Annotated[float, Ge(1e-9), Le(100_000_000)]  # a nanosecond to three years


class ForeignRecipe(Section):
    """The inputs and the output of a file that another tool made, which does not describe them itself."""

    lookback: Count  # bars of its history inputs
    warmup: Whole = 50  # bars of each segment that only feed features
    horizon: Count | None = None  # steps of its future inputs
    history: Annotated[dict[Text, Columns], MinLen(1)]  # input -> its columns in order: [1, lookback, columns], or all in a row
    future: dict[Text, Columns] = Field({})  # the same of the clock's columns over the horizon
    output: Annotated[QuantilesOutput | ScoresOutput | PositionOutput, Field(discriminator="kind")]

    @field_validator("future")
    @classmethod
    def _over_a_horizon(cls, future: dict[str, tuple[str, ...]], info: ValidationInfo) -> dict[str, tuple[str, ...]]:
        if future and "horizon" in info.data and info.data["horizon"] is None:
            raise contradiction("needs the horizon; set horizon beside it")
        if not future and info.data.get("horizon") is not None:
            raise contradiction("none, so that horizon has no effect; name the inputs over the horizon, or leave horizon out")
        return future


class MemberRecipe(Section):
    """One member."""

    path: FilePath  # a model, a folder of models, or the folder of a streaming pair
    weight: Annotated[Positive, Le(1_000_000)] = 1.0  # in the rule, beside the others': their sum must stay a number
    format: Format | None = None  # of a folder's models; null: the streaming pair, else the first that tftq predict would take
    foreign: ForeignRecipe | None = None


class RuleRecipe(Section):
    """How the members' answers are combined."""

    kind: Literal["weighted_quantiles", "median", "sign_vote", "risk_weighted"] = "risk_weighted"
    minimum: Count = 1  # members whose answers the rule must be able to use at a bar


class EnsembleMemoryRecipe(Section):
    """The memory that the members may take together."""

    budget_mb: Count = 932
    residency: Literal["all", "lazy"] = "all"  # lazy: loaded when asked, the least recently used unloaded to make room
    shared_allocator: Switch = True  # all share one arena of working memory; lazily each has its own, freed with it

    @property
    def shared(self) -> bool:
        """Return whether the members compute in one arena."""
        return self.shared_allocator and self.residency == "all"


class BarsToAnswer(Section):
    """The bars to answer."""

    path: FilePath  # parquet or CSV; - is standard input, a JSON object or a CSV line per bar
    last: Count | None = None  # of a file: the newest bars alone; null: all
    unseen: Switch = False  # of a file: the bars alone that lie after those that any member was trained on
    symbol: Text | None = None
    step_s: Seconds | None = None  # between bars; null: as the members were trained; at least one file must state it
    time_zone: Text | None = None  # of timestamps that carry none; null: the members', whose clock the calendar columns show in any case
    duplicates: Literal["refuse", "drop"] = "refuse"
    missing: Literal["refuse", "drop"] = "refuse"
    bad_lines: Literal["refuse", "skip"] = "refuse"  # on standard input: end at an impossible bar, or leave it out and count it

    @property
    def streamed(self) -> bool:
        """Return whether they come on standard input."""
        return self.path == STANDARD_INPUT

    @field_validator("unseen")
    @classmethod
    def _one_span(cls, unseen: bool, info: ValidationInfo) -> bool:
        if unseen and info.data.get("last") is not None:
            raise contradiction("data.last names the bars already; leave one of them out")
        return unseen


class EnsembleRecipe(JobRecipe):
    """The recipe of an ensemble's run."""

    members: Annotated[dict[Text, MemberRecipe], MinLen(1)]
    rule: RuleRecipe = RuleRecipe()
    memory: EnsembleMemoryRecipe = EnsembleMemoryRecipe()
    threads: Count = 1  # of a bar: for members run at once, and the rest within an operator of each
    data: BarsToAnswer
    tick: Tick = 0.25  # of the backtest: the smallest step of the price
    cost_ticks: Ticks = 0.5  # of the backtest: the cost of changing the position by 1; a flip changes two
    save_every: Count | None = None  # bars, after which --resume can continue; null: 1 on standard input, 500 of a file

    @property
    def at_once(self) -> int:
        """Return the number of members run at a time; one, where they make room for each other."""
        return 1 if self.memory.residency == "lazy" else min(self.threads, len(self.members))

    @field_validator("members")
    @classmethod
    def _names_of_their_own(cls, members: dict[str, MemberRecipe]) -> dict[str, MemberRecipe]:
        if OWN in members:
            raise contradiction(f"{OWN} is the name of all of them together; allowed: any other", OWN)
        for name in (BUY_AND_HOLD, NO_CHANGE):
            if name in members:
                raise contradiction(f"{name} is the name of what members are judged beside; allowed: any other", name)
        return members

    @field_validator("rule")
    @classmethod
    def _enough_members(cls, rule: RuleRecipe, info: ValidationInfo) -> RuleRecipe:
        members = info.data.get("members")
        if members is not None and rule.minimum > len(members):
            raise contradiction(f"found {rule.minimum}; allowed: at most the {len(members)} members there are", "minimum")
        return rule


ENSEMBLE = register(
    RecipeType(
        schema=EnsembleRecipe,
        of="an ensemble",
        command="tftq ensemble",
        key="members",
        unused=(
            UnusedOption(("data", "last"), lambda recipe: recipe.data.streamed, "standard input is answered as it comes"),
            UnusedOption(("data", "unseen"), lambda recipe: recipe.data.streamed, "standard input is answered as it comes"),
            UnusedOption(
                ("memory", "shared_allocator"),
                lambda recipe: recipe.memory.residency == "lazy",
                "memory.residency is lazy, and an arena of its own goes with each member that is unloaded",
            ),
            UnusedOption(("data", "bad_lines"), lambda recipe: not recipe.data.streamed, "data.path is a file, not standard input"),
        ),
        not_hashed=(
            ("name",),
            ("out",),
            ("memory", "budget_mb"),
            ("memory", "residency"),
            ("memory", "shared_allocator"),
            ("threads",),
            ("data", "bad_lines"),  # a line that is left out changes no answer before it
            ("tick",),  # the backtest is made of all answers when a run ends
            ("cost_ticks",),
            ("save_every",),
        ),
    )
)
