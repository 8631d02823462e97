"""The laws that hold between the forms of one model."""

import pytest
import torch

from tests.model.small import example, small_model
from tftq.model.curves import KnotCurves, TableCurves
from tftq.model.folding import fold
from tftq.model.tabulate import tabulate
from tftq.model.tft import TemporalFusionTransformer
from tftq.model.variable_selection import PaperVariableSelection, VariableSelection


@pytest.mark.parametrize("static", [True, False])
def test_folded_equals_paper(static: bool) -> None:
    paper = small_model("paper", static=static).eval()
    folded = fold(paper)
    assert not folded.training
    inputs = example(paper.inputs)
    torch.testing.assert_close(folded(*inputs), paper(*inputs), rtol=1e-5, atol=1e-5)
    assert sum(p.numel() for p in folded.parameters()) < sum(p.numel() for p in paper.parameters())


def test_a_folded_model_folds_to_itself() -> None:
    model = small_model("folded")
    assert fold(model) is model


@pytest.mark.parametrize("form", ["paper", "folded"])
def test_checkpointed_equals_stacked_gradients_too(form: str) -> None:
    """Case M7, second half: chunks of two of seven variables, against all of them stacked and kept."""

    def run(chunk: int | None) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model = small_model(form).eval()  # type: ignore[arg-type]
        for module in model.modules():
            if hasattr(module, "chunk"):
                module.chunk = chunk
        forecast = model(*example(model.inputs))
        forecast.square().mean().backward()
        return forecast.detach(), [parameter.grad for parameter in model.parameters()]

    (chunked, chunked_gradients), (stacked, stacked_gradients) = run(2), run(None)
    torch.testing.assert_close(chunked, stacked, rtol=1e-5, atol=1e-5)
    for one, other in zip(chunked_gradients, stacked_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def knots_and_folded() -> tuple[TemporalFusionTransformer, TemporalFusionTransformer]:
    knots, folded = small_model("knots", static=False).eval(), small_model("folded", static=False).eval()
    missing, unexpected = folded.load_state_dict(knots.state_dict(), strict=False)
    assert not missing and all(".grid." in key for key in unexpected)
    return knots, folded


def test_knots_equal_folded_at_the_knots() -> None:
    knots, folded = knots_and_folded()
    curves = knots.history_selection.curves
    x = torch.stack([curves.grid.knots(v)[torch.arange(32) % curves.grid.counts[v]] for v in range(5)], dim=1)
    weights = torch.rand(32, 5)
    torch.testing.assert_close(curves.mix(x, weights), folded.history_selection.curves.mix(x, weights), rtol=1e-5, atol=1e-5)


def test_knots_are_within_the_bound_of_folded_between_the_knots() -> None:
    """A line through two points of f errs by at most h²/8 · max|f''|; the second derivative is taken from a fine grid."""
    knots, folded = knots_and_folded()
    curve, true = knots.history_selection.curves, folded.history_selection.curves
    assert isinstance(curve, KnotCurves)
    step = 6 / 15
    for variable in range(curve.real):
        fine = torch.linspace(-3, 3, 6001, dtype=torch.float64)
        values = true.double().evaluate(variable, fine)  # [6001, hidden]
        bound = step**2 / 8 * (values.diff(n=2, dim=0) / 0.001**2).abs().max()
        x = torch.zeros(500, 5)
        x[:, variable] = torch.rand(500) * 6 - 3
        weights = torch.zeros(500, 5)
        weights[:, variable] = 1
        error = (curve.mix(x, weights) - true.double().evaluate(variable, x[:, variable].double()).float()).abs().max()
        assert 0 < error <= bound + 1e-5
        true.float()


def test_more_knots_halve_twice_the_error() -> None:
    errors = []
    for count in (17, 33, 65):
        model = small_model("knots", knots=count).eval()
        exact = small_model("folded").eval()
        exact.load_state_dict(model.state_dict(), strict=False)
        errors.append((model(*example(model.inputs)) - exact(*example(model.inputs))).abs().mean())
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


@pytest.mark.parametrize("static", [True, False])
def test_tabulating_knots_is_exact(static: bool) -> None:
    model = small_model("knots", static=static).eval()
    table, report = tabulate(model)
    assert torch.equal(table(*example(model.inputs)), model(*example(model.inputs)))
    assert all(line.error == 0 for line in report)
    assert len(report) == (2 if static else 0) + 5 + 2


@pytest.mark.parametrize("form", ["paper", "folded"])
def test_tabulating_keeps_every_curve_within_the_tolerance(form: str) -> None:
    model = small_model(form).eval()  # type: ignore[arg-type]
    table, report = tabulate(model, tolerance=0.02)
    assert all(line.error <= 0.02 for line in report)
    curves, true = table.history_selection.curves, fold(model).history_selection.curves
    assert isinstance(curves, TableCurves)
    x = torch.rand(300, 5) * 6 - 3
    x[:, 3], x[:, 4] = torch.randint(3, (300,)), torch.randint(2, (300,))
    for variable in range(5):
        alone = torch.zeros(300, 5)
        alone[:, variable] = 1
        # 0.02 at the probes; a quarter more for the points between them
        assert (curves.mix(x, alone) - true.evaluate(variable, x[:, variable])).abs().max() <= 0.025


def test_fewer_knots_for_a_looser_tolerance() -> None:
    model = small_model("folded")
    loose, tight = (sum(line.knots for line in tabulate(model, tolerance=t)[1]) for t in (0.2, 0.01))
    assert loose < tight


@pytest.mark.parametrize("form", ["paper", "folded", "knots"])
def test_a_categorys_table_row_equals_its_grn(form: str) -> None:
    model = small_model(form, static=False).eval()  # type: ignore[arg-type]
    table = tabulate(model)[0].history_selection.curves
    assert isinstance(table, TableCurves)
    first_row = sum(table.grid.counts[:3])  # `state` is the fourth of the arranged variables
    selection = model.history_selection
    for code in range(3):
        if isinstance(selection, PaperVariableSelection):  # its published GRN, through weights that select it alone
            embedded = selection.category_embedding[code]
            hidden = torch.nn.functional.elu(embedded @ selection.input_weight[3] + selection.input_bias[3, 0])
            hidden = hidden @ selection.intermediate_weight[3] + selection.intermediate_bias[3, 0]
            gated = torch.nn.functional.glu(hidden @ selection.gate_weight[3] + selection.gate_bias[3, 0], dim=-1)
            expected = torch.nn.functional.layer_norm(embedded + gated, (16,), eps=1e-3)
        else:
            assert isinstance(selection, VariableSelection)
            expected = selection.curves.evaluate(3, torch.tensor([float(code)]))[0]
        torch.testing.assert_close(table.values[first_row + code], expected, rtol=1e-5, atol=1e-5)
