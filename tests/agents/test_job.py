"""The run of an agent: one small one from the recipe to the report, and what stops it before it begins."""

import builtins
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnxruntime as ort
import pytest
import torch

from tests.report.reader import Reader
from tests.runs import ROOT, Run
from tftq import cli
from tftq.agents.job import run_agent
from tftq.agents.recipe import AGENT, AgentRecipe
from tftq.agents.report import write_report
from tftq.agents.rewards import cross_positions
from tftq.console import Console
from tftq.data.load import load_datasets
from tftq.errors import AgentError, PlanError, RunFolderError
from tftq.recipe.load import load, recipe_hash
from tftq.spec.metadata import read_metadata

SMALL = ("data.lookback=4", "agent.layers=[16]", "agent.steps=200", "agent.evaluations=2", "quant.calibration_windows=64")
DQN = (*SMALL, "agent.learning_starts=50", "agent.batch_size=8", "agent.buffer_size=100")


def recipe(*overrides: str) -> AgentRecipe:
    return load(AGENT, ROOT / "recipes" / "dqn.yaml", [*DQN, *overrides])


@pytest.fixture(scope="module")
def agent_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """recipes/dqn.yaml, smaller still, on the shipped bars."""
    folder = tmp_path_factory.mktemp("agent")
    console = Console(file=io.StringIO(), width=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_agent(recipe(f"out={folder / 'run'}"), console=console)
    assert isinstance(console.file, io.StringIO)
    return Run(folder / "run", console.file.getvalue(), json.loads((folder / "run" / "summary.json").read_text()))


def test_it_leaves_a_whole_folder(agent_run: Run) -> None:
    files = {str(path.relative_to(agent_run.folder)) for path in agent_run.folder.rglob("*") if path.is_file()}
    exports = {f"exports/{kind}.{end}" for kind in ("fp32", "int8_ptq") for end in ("onnx", "export.json")}
    assert files == exports | {
        *(".lock", "recipe.yaml", "env.json", "metrics.jsonl", "memory.jsonl", "summary.json", "report.html"),
        "checkpoints/last.pt",
    }
    published = agent_run.folder.parent / "exports" / "dqn"
    assert {path.name for path in published.iterdir()} == {Path(name).name for name in exports}
    environment = json.loads((agent_run.folder / "env.json").read_text())
    assert {"stable-baselines3", "gymnasium"} <= environment["packages"].keys()


def test_its_summary(agent_run: Run) -> None:
    found = agent_run.summary
    assert (found["name"], found["status"], found["kind"], found["steps"]) == ("dqn", "ok", "dqn", 200)
    assert found["trained_parameters"] == (4 * 225 + 2) * 16 + 17 * 3
    assert found["val"]["baselines"]["flat"]["net_return"] == 0
    assert found["val"]["baselines"]["buy and hold"]["turnover"] == 2
    memory = found["memory"]
    assert (memory["source"], memory["checkpoints_recorded"], memory["checkpoints_expected"]) == ("counter", 18, 18)
    assert memory["peak_bytes"] == pytest.approx(memory["planned_peak_bytes"], rel=0.1)
    assert found["models"]["fp32"]["agreement"] == 1.0
    assert found["models"]["fp32"]["val"] == {name: value for name, value in found["val"].items() if name != "baselines"}
    assert found["models"]["int8_ptq"]["int8_weight_share"] == 1.0
    assert found["models"]["int8_ptq"]["rss_bytes"] > 0


def test_its_file_takes_raw_bars_and_says_where_it_comes_from(agent_run: Run) -> None:
    path = agent_run.folder / "exports" / "int8_ptq.onnx"
    resolved = load(AGENT, agent_run.folder / "recipe.yaml")
    origin = read_metadata(path).origin
    assert (origin.recipe, origin.recipe_hash, origin.step_ns) == ("dqn", recipe_hash(resolved), 60_000_000_000)
    beside = ("path", "cache", "validation", "test", "lookback", "horizon")
    assert origin.data == {name: value for name, value in resolved.data.model_dump(mode="json").items() if name not in beside}
    history, position = cross_positions(load_datasets(resolved.data).validation, torch.arange(2))
    (scores,) = ort.InferenceSession(path).run(["scores"], {"history": history.numpy(), "position": position.numpy()})
    assert scores.shape == (6, 3)


def test_what_it_tells_and_its_page(agent_run: Run) -> None:
    assert "evaluation 2: 200 steps" in agent_run.printed
    assert "int8_ptq: passed the gate" in agent_run.printed
    assert "buy and hold" in agent_run.printed
    shown = Reader((agent_run.folder / "report.html").read_text(encoding="utf-8")).text
    for words in (
        "trained by DQN in 200 steps",
        "chance for the most part",
        "agreement with the trained policy",
        "buy and hold",
        "The gate",
    ):
        assert words in shown


def test_the_page_says_whether_the_baselines_were_beaten(agent_run: Run, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(agent_run.folder, tmp_path / "run"))
    for net, words in ((-1.0, "did not beat buying and holding"), (1.0, "earned more than buying and holding")):
        changed = {**agent_run.summary, "val": {**agent_run.summary["val"], "net_return": net}}
        (folder / "summary.json").write_text(json.dumps(changed))
        page = write_report(folder).read_text(encoding="utf-8")
        assert words in page and f'class="verdict {"good" if net > 0 else "bad"}"' in page
        ElementTree.fromstring(page)  # well-formed to the letter


def test_what_is_for_forecasters_says_so(agent_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    model = agent_run.folder / "exports" / "fp32.onnx"
    assert cli.main(["predict", str(model), str(ROOT / "test_data" / "ES_FUT_small.parquet"), "--last"]) != 0
    assert f"{model}: a policy, which takes positions and forecasts nothing" in capsys.readouterr().err
    assert cli.main(["compare", str(agent_run.folder)]) != 0
    assert f"{agent_run.folder}: the run of an agent, which forecasts nothing" in capsys.readouterr().err


def test_what_stops_it_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFolderError, match=r"the run of an agent cannot be resumed: the transitions it learns from are not kept"):
        run_agent(recipe(f"out={tmp_path / 'a'}"), resume=True)
    with pytest.raises(PlanError, match=r"the planned peak of validate is above memory\.budget_mb 1"):
        run_agent(recipe(f"out={tmp_path / 'a'}", "memory.budget_mb=1"), console=Console(file=io.StringIO()))
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("stable_baselines3"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    for module in [name for name in sys.modules if name.startswith("tftq.agents.train") or name.startswith("tftq.agents.replay")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(AgentError, match=r"stable_baselines3 is not installed, and agents are trained with it: pip install 'tftq\[rl\]'"):
        run_agent(recipe(f"out={tmp_path / 'a'}"))
    assert not (tmp_path / "a").exists()


def test_the_command_line_takes_an_agents_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[AgentRecipe, bool]] = []
    monkeypatch.setattr("tftq.agents.job.run_agent", lambda recipe, resume: asked.append((recipe, resume)))
    path = str(ROOT / "recipes" / "ppo.yaml")
    assert cli.main(["run", path, "agent.ent_coef=0", "--resume"]) == 0
    assert asked == [(load(AGENT, Path(path), ["agent.ent_coef=0"]), True)]
    assert cli.main(["validate", path]) == 0
    assert "kind: ppo" in capsys.readouterr().out


@pytest.mark.parametrize("budget", [4096, 1])
def test_its_plan(budget: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(ROOT / "recipes" / "dqn.yaml"), *DQN, f"memory.budget_mb={budget}", "--json"]) == (0 if budget > 1 else 1)
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is (budget > 1)
    assert [phase["title"] for phase in found["phases"]] == ["train", "validate", "export fp32", "export int8_ptq"]
    train = found["phases"][0]["components"]
    assert train["gradients"] == 4 * found["trained_parameters"]
    assert train["workspace"] == found["transitions_bytes"] == 14 * 100
    assert cli.main(["plan", str(ROOT / "recipes" / "dqn.yaml"), *DQN]) == 0
    assert "14,483 trained parameters" in capsys.readouterr().out


def test_a_run_that_fails_says_so_in_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise AgentError("no such luck")

    monkeypatch.setattr("tftq.agents.job._trainer", lambda: fails)
    with pytest.raises(AgentError, match="no such luck"):
        run_agent(recipe(f"out={tmp_path / 'run'}"), console=Console(file=io.StringIO()))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed: AgentError: no such luck"
