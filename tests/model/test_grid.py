import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tftq.model.grid import KnotGrid, table_product


def grid() -> KnotGrid:
    """Three variables: five knots from 0 to 1, three codes, and one that was constant."""
    return KnotGrid(torch.tensor([0.0, 0.0, 7.0]), torch.tensor([1.0, 2.0, 7.0]), [5, 3, 4])


def test_knots_of_neighbours_are_those_of_each() -> None:
    equal = KnotGrid(torch.tensor([7.0, 0.1, -3.0]), torch.tensor([9.0, 1.3, 7.0]), [3, 5, 5])
    assert torch.equal(equal.knots_of(slice(1, 3)), torch.stack([equal.knots(1), equal.knots(2)], dim=1))


def test_shares_by_hand() -> None:
    index, share = grid().locate(torch.tensor([[0.3, 2.0, 7.0]]), torch.tensor([[0.5, 0.3, 0.2]]))
    assert index.tolist() == [[1, 6, 8, 2, 7, 9]]
    # 0.3 lies a fifth of the way from knot 0.25 to knot 0.5; code 2 is the third row of its block.
    torch.testing.assert_close(share, torch.tensor([[0.4, 0.0, 0.2, 0.1, 0.3, 0.0]]))


def test_beyond_the_ends_the_end_value_counts() -> None:
    table = torch.arange(12.0)[:, None]
    for x, expected in ((-9.0, 0.0), (9.0, 4.0)):
        index, share = grid().locate(torch.tensor([[x, 0.0, 7.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
        assert table_product(index, share, table).item() == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3))
def test_no_row_twice_and_all_of_the_weight(values: list[float]) -> None:
    weights = torch.tensor([[0.2, 0.3, 0.5]])
    index, share = grid().locate(torch.tensor([values]), weights)
    assert len(set(index[0].tolist())) == 6 and index.min() >= 0 and index.max() < grid().rows
    assert bool((share >= 0).all())
    torch.testing.assert_close(share[:, :3] + share[:, 3:], weights)


def test_the_products_gradients_are_those_of_the_dense_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of rows that do not divide their number, against autograd through the dense row."""
    monkeypatch.setattr("tftq.model.grid.CHUNK_FLOATS", 12 * 7)
    torch.manual_seed(0)
    x, weights = torch.randn(50, 3) * 2, torch.rand(50, 3).softmax(-1).requires_grad_()
    table = torch.randn(12, 8, requires_grad=True)
    upstream = torch.randn(50, 8)
    results = []
    for dense in (False, True):
        index, share = grid().locate(x, weights)
        row = torch.zeros(50, 12).scatter(1, index, share) if dense else None
        output = table_product(index, share, table) if row is None else row @ table
        results.append((output, *torch.autograd.grad(output, (weights, table), upstream)))
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)
