"""Initial weights by name: what each kind of parameter starts from."""

import math

import torch
from torch import Tensor, nn

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.config import ModelConfig
from gpt1_ds.model.names import ParameterInfo, initial_value

UNITS, WIDTH = 256, 48


LSTM = ModelConfig(kind="lstm", layers=1, width=WIDTH, units=UNITS)


def drawn(name: str, model: ModelConfig = LSTM) -> Tensor:
    return initial_value(ParameterInfo.whole(architecture(model, 300).parameters[name]), seed=3)


def test_an_lstm_remembers_from_the_start() -> None:
    """Read through torch's own cell: with inputs of 0 its forget gates are at sigmoid(1)."""
    cell = nn.LSTM(WIDTH, UNITS)
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            parameter.copy_(drawn(f"lstm.cell.{name}"))
        before = torch.ones(1, 1, UNITS)
        _, (_, after) = cell(torch.zeros(1, 1, WIDTH), (torch.zeros(1, 1, UNITS), before))
    torch.testing.assert_close(after, torch.full_like(after, 1 / (1 + math.exp(-1))))


def test_an_lstms_matrices_are_uniform_and_its_output_is_like_all_others() -> None:
    for name in ("weight_ih_l0", "weight_hh_l0"):
        values = drawn(f"lstm.cell.{name}")
        bound = 1 / math.sqrt(UNITS)
        assert 0.99 * bound < float(values.abs().max()) <= bound
        assert abs(float(values.mean())) < bound / 50
        assert math.isclose(float(values.std()), bound / math.sqrt(3), rel_tol=0.02)
    assert math.isclose(float(drawn("lstm.out.weight").std()), 0.02, rel_tol=0.03)
    assert not drawn("lstm.out.bias").any()
    assert not drawn("blocks.0.mlp.up.bias", ModelConfig()).any()
