from __future__ import annotations

import pytest
import torch
from torch import nn

from gpt1_ds.model import products
from gpt1_ds.model.lstm import LstmCell


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("continued", [True, False])
def test_the_cell_is_torchs(training: bool, continued: bool) -> None:
    torch.manual_seed(0)
    cell, theirs = LstmCell(24, 40).train(training), nn.LSTM(24, 40).train(training)
    theirs.load_state_dict(cell.state_dict())
    x_SBD, before = torch.randn(30, 3, 24), (torch.randn(1, 3, 40), torch.randn(1, 3, 40)) if continued else None
    (found, last), (wanted, their_last) = cell(x_SBD, before), theirs(x_SBD, before)
    assert torch.equal(found, wanted)
    assert all(torch.equal(one, other) for one, other in zip(last, their_last, strict=True))
    (found.square().sum() + last[1].sum()).backward()
    (wanted.square().sum() + their_last[1].sum()).backward()
    for name, weight in cell.named_parameters():
        assert torch.equal(weight.grad, theirs.get_parameter(name).grad), name  # type: ignore[arg-type]


def test_16_bits_are_computed_in_fp32_where_they_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SLOW", frozenset({torch.bfloat16}))
    torch.manual_seed(0)
    cell = LstmCell(24, 40).bfloat16()
    x_SBD = torch.randn(30, 3, 24).bfloat16()
    states_SBU, last = cell(x_SBD)
    assert (states_SBU.dtype, [part.dtype for part in last]) == (torch.bfloat16, [torch.float32] * 2)
    assert torch.equal(states_SBU, cell.float()(x_SBD.float())[0].bfloat16())


def test_a_gpu_multiplies_fp32_as_it_is() -> None:
    torch.backends.cudnn.allow_tf32 = True
    LstmCell(2, 2)
    assert not torch.backends.cudnn.allow_tf32, "in backward passes, too"
