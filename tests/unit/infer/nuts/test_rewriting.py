"""Rewritten graphs compute the same."""

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from zoo.infer.nuts.rewriting import MIN_PRODUCT, faster, is_narrow

aten = torch.ops.aten
MATRIX = torch.from_numpy(np.random.default_rng(0).normal(size=(MIN_PRODUCT // 8, 8)))


def rewritten(function, example):
    graph = make_fx(function)(example)
    return graph, faster(graph, example)


def targets(graph):
    return {node.target for node in graph.graph.nodes}


@pytest.mark.parametrize(("rows", "is_left_alone"), [(len(MATRIX), False), (4, True)])
def test_only_products_with_large_matrices_are_those_of_matrices(rows, is_left_alone):
    point = torch.linspace(-1, 1, 8, dtype=torch.float64)
    before, after = rewritten(lambda x: MATRIX[:rows] @ x, point)
    assert (aten.mv.default in targets(after)) is is_left_alone
    assert (aten.mm.default in targets(after)) is not is_left_alone
    np.testing.assert_allclose(after(point).numpy(), before(point).numpy(), rtol=1e-13)
    assert aten.mv.default in targets(before)  # which stays as it is


def test_tangent_is_right_within_its_roundings():
    """Exponential, sum and quotient of at most 2, and a difference: 7 of 1.1e-16."""
    x = torch.cat([torch.linspace(-40, 40, 4001), torch.tensor([-1e3, 1e3, 0.0, 1e-9])]).double()
    _, after = rewritten(torch.tanh, x)
    assert aten.tanh.default not in targets(after)
    np.testing.assert_allclose(after(x).numpy(), np.tanh(x.numpy()), rtol=0, atol=8e-16)


@pytest.mark.parametrize(("width", "narrow"), [(8, True), (9, False)])
def test_vectors_are_narrow_if_rows_are(width, narrow):
    x = torch.ones(width, dtype=torch.float64)
    column = torch.ones(50, 1, dtype=torch.float64)
    assert is_narrow(rewritten(lambda x: torch.exp(column * x).sum(), x)[1]) is narrow
    assert not is_narrow(rewritten(torch.exp, x)[1])  # one row
