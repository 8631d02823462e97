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


def trained_once(form: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A forecast in training mode, dropout on, and the gradients of its mean square."""
    model = small_model(form)  # type: ignore[arg-type]
    torch.manual_seed(3)
    forecast = model(*example(model.inputs))
    forecast.square().mean().backward()
    return forecast.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("form", ["paper", "folded", "knots"])
def test_recomputed_equals_kept_bit_for_bit_dropout_included(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recomputed, gradients = trained_once(form)
    for module in ("curves", "variable_selection", "tft"):
        monkeypatch.setattr(f"tftq.model.{module}.recompute", lambda function, *arguments: function(*arguments))
    kept, kept_gradients = trained_once(form)
    assert torch.equal(recomputed, kept)
    for one, other in zip(gradients, kept_gradients, strict=True):
        assert torch.equal(one, other)


def test_groups_of_variables_equal_the_textbooks_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of two of seven variables, against all embeddings and GRNs stacked [rows, variables, hidden]."""
    monkeypatch.setattr("tftq.model.curves.GROUP", 2)
    selection = small_model("paper", static=False).eval().history_selection
    assert isinstance(selection, PaperVariableSelection) and [len(weight) for weight in selection.gate_weights] == [2, 1, 2]
    codes = torch.randint(0, 2, (6, 2)).float()
    x = torch.cat([torch.randn(6, 3), codes], dim=1)[:, torch.argsort(selection.order)]  # [rows, variables]

    arranged = selection.arrange(x)
    first_code = [0, selection.columns[3].categories]
    embedded = [arranged[:, v, None] * selection.embedding_weight[v] + selection.embedding_bias[v] for v in range(3)]
    embedded += [selection.category_embedding[arranged[:, 3 + c].long() + first_code[c]] for c in range(2)]
    stack = torch.stack(embedded, dim=1)  # [rows, variables, hidden]
    one = {name: torch.cat(list(getattr(selection, f"{name}_weights"))) for name in ("input", "intermediate", "gate")}
    hidden = torch.nn.functional.elu(torch.einsum("nvh,vho->nvo", stack, one["input"]) + selection.input_bias[:, 0])
    hidden = torch.einsum("nvh,vho->nvo", hidden, one["intermediate"]) + selection.intermediate_bias[:, 0]
    gated = torch.nn.functional.glu(torch.einsum("nvh,vho->nvo", hidden, one["gate"]) + selection.gate_bias[:, 0], dim=-1)
    values = torch.nn.functional.layer_norm(stack + gated, (16,), eps=1e-3)
    flat = stack.flatten(1)
    joint = flat @ torch.cat(list(selection.joint_input_weights), dim=1).T + selection.joint_input_bias
    skip = flat @ torch.cat(list(selection.joint_skip_weights), dim=1).T + selection.joint_skip_bias
    weights = selection.joint.finish(joint, skip, None).softmax(-1)  # [rows, variables]
    torch.testing.assert_close(selection(x), torch.einsum("nv,nvh->nh", weights, values), rtol=1e-5, atol=1e-5)


def test_gates_in_common_are_one_weight_for_all_variables() -> None:
    own, common = small_model("knots"), small_model("knots", shared_gates=True)
    curves = common.history_selection.curves
    assert [tuple(weight.shape) for weight in curves.gate_weights] == [(1, 16, 32)]
    state = common.state_dict()
    gates = {name: weight for name, weight in own.state_dict().items() if "gate_weights" in name}
    # Every variable given the same gate computes the same.
    state |= {name: state[name.rpartition(".")[0] + ".0"].clone().expand_as(weight) for name, weight in gates.items() if name not in state}
    state |= {name: state[name].expand_as(weight) for name, weight in gates.items()}
    own.load_state_dict(state)
    inputs = example(own.inputs)
    torch.testing.assert_close(common.eval()(*inputs), own.eval()(*inputs), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(tabulate(common)[0](*inputs), common(*inputs), rtol=1e-5, atol=1e-6)


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
            weights = (group[1][0] for group in (selection.input_weights, selection.intermediate_weights, selection.gate_weights))
            input_weight, intermediate_weight, gate_weight = weights  # the first of the categorical group
            hidden = torch.nn.functional.elu(embedded @ input_weight + selection.input_bias[3, 0])
            hidden = hidden @ intermediate_weight + selection.intermediate_bias[3, 0]
            gated = torch.nn.functional.glu(hidden @ gate_weight + selection.gate_bias[3, 0], dim=-1)
            expected = torch.nn.functional.layer_norm(embedded + gated, (16,), eps=1e-3)
        else:
            assert isinstance(selection, VariableSelection)
            expected = selection.curves.evaluate(3, torch.tensor([float(code)]))[0]
        torch.testing.assert_close(table.values[first_row + code], expected, rtol=1e-5, atol=1e-5)
