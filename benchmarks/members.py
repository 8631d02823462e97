"""The four members of an ensemble at the sizes of their recipes, untrained: what a model costs does not depend on its weights."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from tftq.agents.export import build_policy, quantize
from tftq.agents.policy import Policy, layer_sizes
from tftq.agents.recipe import AgentRecipe
from tftq.data.load import load_datasets
from tftq.data.windows import Datasets
from tftq.export.graph import build_forecaster
from tftq.export.pair_graph import build_pair
from tftq.export.publish import origin
from tftq.model.batch import gather
from tftq.model.tabulate import tabulate
from tftq.model.tft import TemporalFusionTransformer
from tftq.quant.calibration import calibrate
from tftq.quant.prepare import prepared_copy
from tftq.recipe.load import load_document, recipe_hash
from tftq.recipe.schema import Recipe
from tftq.spec.metadata import Origin
from tftq.train.build import build_model

ROOT = Path(__file__).parents[1]
RECIPES = {
    "reference": {"tft": "es225_ptq", "mamba2": "mamba2_ref", "ppo": "ppo_ref", "dqn": "dqn_ref"},
    "small": {"tft": "ptq_int8", "mamba2": "mamba2", "ppo": "ppo", "dqn": "dqn"},
}
CALIBRATION_WINDOWS = 32
SEED = 0


def write_members(sizes: str, folder: Path, *, gpu: bool = False) -> dict[str, Path]:
    """Write each member's files to `<folder>/<member>/`: fp32.onnx and int8_ptq.onnx, and the TFT's streaming pair of INT8 weights.

    Args:
        sizes: reference or small.
        folder: where to.
        gpu: write what is for a GPU instead: fp32.onnx, and of forecasters fp16.onnx and fp16_int8.onnx.

    Returns:
        The members' folders.
    """
    folders = {}
    for member, name in RECIPES[sizes].items():
        folders[member] = folder / member
        folders[member].mkdir(parents=True)
        for file, content in member_files(name, gpu=gpu):
            (folders[member] / file).write_bytes(content)
    return folders


def member_files(name: str, *, gpu: bool = False) -> Iterator[tuple[str, bytes]]:
    """The files of `recipes/<name>.yaml`, name and content; see `write_members`."""
    recipe = load_document(ROOT / "recipes" / f"{name}.yaml")
    assert isinstance(recipe, Recipe | AgentRecipe)
    data = load_datasets(recipe.data)
    source = origin(recipe.name, recipe_hash(recipe), recipe.data, data.train)
    torch.manual_seed(SEED)
    return _agent(recipe, data, source, gpu) if isinstance(recipe, AgentRecipe) else _forecaster(recipe, data, source, gpu)


def _forecaster(recipe: Recipe, data: Datasets, source: Origin, gpu: bool) -> Iterator[tuple[str, bytes]]:
    model, target = build_model(recipe.model, data).eval(), data.train.target_unit
    if isinstance(model, TemporalFusionTransformer):
        model, _ = tabulate(model)
    yield "fp32.onnx", build_forecaster(model, "fp32", target, source)
    if gpu:
        yield "fp16.onnx", build_forecaster(model, "fp16", target, source)
    prepared = prepared_copy(model, lstm=recipe.quant.lstm)
    calibrate(prepared, [gather(data.train, range(CALIBRATION_WINDOWS))])
    prepared.eval()
    if gpu:
        yield "fp16_int8.onnx", build_forecaster(prepared, "fp16_int8", target, source)
        return
    yield "int8_ptq.onnx", build_forecaster(prepared, "int8_ptq", target, source)
    if isinstance(prepared, TemporalFusionTransformer):
        yield from build_pair(prepared, "int8_ptq", target, source).items()


def _agent(recipe: AgentRecipe, data: Datasets, source: Origin, gpu: bool) -> Iterator[tuple[str, bytes]]:
    algorithm = recipe.agent.kind
    layers = [module for sizes in layer_sizes(data.train.inputs, recipe.agent.layers) for module in (nn.Linear(*sizes), nn.ReLU())]
    scaling = data.scaling.history.at(data.train.inputs.history_places)
    policy = Policy(data.train.inputs, scaling, nn.Sequential(*layers[:-1])).eval()
    yield "fp32.onnx", build_policy(policy, algorithm, "fp32", source)
    if not gpu:
        yield "int8_ptq.onnx", build_policy(quantize(policy, recipe.quant, data.train), algorithm, "int8_ptq", source)
