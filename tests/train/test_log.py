"""The bar on a terminal, and a line an epoch elsewhere."""

import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.train.stand_ins import tiny_trainer
from tftq.recipe.schema import ValidateRecipe
from tftq.train.log import TrainingBar


def test_a_terminal_sees_loss_rate_and_memory() -> None:
    screen = io.StringIO()
    with TrainingBar("training", 3, 8, torch.device("cpu"), Console(file=screen, force_terminal=True, width=120)) as bar:
        bar.start_epoch(2, 5)
        bar.update(0.125, 1e-3)
        bar._progress.refresh()
        training = screen.getvalue()
        bar.start_validation(10)
        bar.validated(4)
        bar._progress.refresh()
    for text in ("training 2/3", "6/8", "loss 0.125", "lr 0.001", "process", "MiB"):
        assert text in training
    assert "training: validating" in screen.getvalue() and "4/10" in screen.getvalue()


def test_anything_else_sees_a_line_an_epoch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny_trainer(tmp_path, validate=ValidateRecipe(every=2)).fit()
    out, err = capfd.readouterr()
    assert out == ""
    words = r"training {}/3: loss 0\.\d+{}, \d+ windows/s\n"
    validated = r", validation loss 0\.\d+"
    expected = words.format(1, "") + words.format(2, validated) + words.format(3, validated)
    assert re.fullmatch(expected, err)
