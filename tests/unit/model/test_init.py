"""Initial weights by name: what each kind of parameter starts from."""

import math

import torch
from torch import Tensor, nn

from gpt1_ds.model.init import initial_value
from gpt1_ds.model.names import ParameterInfo

UNITS, WIDTH = 256, 48


def drawn(name: str, *shape: int) -> Tensor:
    return initial_value(ParameterInfo(name, shape), seed=3)


def test_an_lstm_remembers_from_the_start() -> None:
    """Read through torch's own cell: with inputs of 0 its forget gates are at sigmoid(1)."""
    cell = nn.LSTM(WIDTH, UNITS)
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            parameter.copy_(drawn(f"lstm.cell.{name}", *parameter.shape))
        before = torch.ones(1, 1, UNITS)
        _, (_, after) = cell(torch.zeros(1, 1, WIDTH), (torch.zeros(1, 1, UNITS), before))
    torch.testing.assert_close(after, torch.full_like(after, 1 / (1 + math.exp(-1))))


def test_an_lstms_matrices_are_uniform_and_its_output_is_like_all_others() -> None:
    for name, columns in (("weight_ih_l0", WIDTH), ("weight_hh_l0", UNITS)):
        values = drawn(f"lstm.cell.{name}", 4 * UNITS, columns)
        bound = 1 / math.sqrt(UNITS)
        assert 0.99 * bound < float(values.abs().max()) <= bound
        assert abs(float(values.mean())) < bound / 50
        assert math.isclose(float(values.std()), bound / math.sqrt(3), rel_tol=0.02)
    assert math.isclose(float(drawn("lstm.out.weight", WIDTH, UNITS).std()), 0.02, rel_tol=0.03)
    assert not drawn("lstm.out.bias", WIDTH).any()
    assert not drawn("blocks.0.mlp.up.bias", WIDTH).any()
