"""An encoder-decoder whose stacks share their weights: that of two stacks with equal weights, gradients summed."""

from __future__ import annotations

import pytest
import torch

from gpt1_ds.architecture.count import counts, parameters
from gpt1_ds.config import load
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model import names
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.names import initial_value
from gpt1_ds.objectives.source_target import halves
from gpt1_ds.plan.stages import stages
from tools.families import FAMILIES

SMALL = [*FAMILIES["t5"], "model.width=16", "model.heads=2", "model.context=8", "model.vocab_size=300"]


def _model(*arguments: str) -> tuple[DenseModel, dict[str, torch.nn.Parameter]]:
    model = DenseModel(load([], [*SMALL, *arguments]), 300, TensorParallel(connect_alone())).train()
    return model, {names.info(parameter).name: parameter for parameter in model.parameters()}


def _owner(name: str) -> str:
    """Of whom a decoder's block has the weight."""
    return name if "cross" in name or name.startswith("decoder_norm") else name.replace("decoder.", "encoder.")


def test_loss_and_gradients() -> None:
    (shared, own), (apart, twice) = _model("model.shared=true"), _model()
    assert own.keys() == {_owner(name) for name in twice}
    for parameter in own.values():
        value = initial_value(names.info(parameter), 1)
        parameter.data[: len(value)] = value
    for name, parameter in twice.items():
        parameter.data.copy_(own[_owner(name)].data)
    batch = halves(load([], SMALL).model)
    inputs = [torch.from_numpy(part) for part in (*batch.inputs, batch.labels[0], batch.labels[1])]
    facts_BF = torch.tensor([[7, 4, 4]])  # dropout is on
    losses = [model(*inputs[:2], facts_BF, *inputs[2:]) for model in (shared, apart)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    sums = {name: torch.zeros_like(parameter) for name, parameter in own.items()}
    for name, parameter in twice.items():
        sums[_owner(name)] += parameter.grad
    for name, parameter in own.items():
        assert parameter.grad.any(), name
        torch.testing.assert_close(parameter.grad, sums[name], rtol=1e-5, atol=1e-6)


def test_counts() -> None:
    shared, apart = (load([], [*SMALL, *arguments]).model for arguments in (["model.shared=true"], []))
    block = 4 * 16 * 16 + 3 * 16 * 64 + 2 * 16
    assert parameters(apart, 300) - parameters(shared, 300) == 2 * block
    assert counts(apart, 300)["transformer"] - counts(shared, 300)["transformer"] == 2 * block


@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_stages_hold_copies(pipeline: int) -> None:
    """A pipeline has the memory of two stacks, where it parts them; their gradients are summed."""
    arguments = [f"parallel.pipeline={pipeline}", "train.global_batch=4", "train.micro_batch=1"]
    shared, apart = (stages(load([], [*SMALL, *arguments, *more]), 300) for more in (["model.shared=true"], []))
    block = 4 * 16 * 16 + 3 * 16 * 64 + 2 * 16
    alone = 2 * block * (pipeline == 1)
    assert sum(one.parameters for one in apart) - sum(one.parameters for one in shared) == alone
    table = 384 * 16 * (pipeline > 1)
    assert shared[0].replicated == table + (3 - pipeline // 2) * block * (pipeline > 1)
    assert apart[0].replicated == table
