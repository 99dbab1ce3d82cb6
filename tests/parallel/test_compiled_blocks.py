"""Every block is one graph, which all blocks share, for training and for evaluation, whatever the layout and length."""

from __future__ import annotations

from typing import Any

import pytest

from gpt1_ds.launcher import launch

LENGTHS = (16, 24, 12)
MODEL = ["model.layers=2", "model.width=32", "model.heads=4", "model.context=48", "parallel.zero=0"]
LAYOUTS = {
    "one rank": (1, []),
    "recompute": (1, ["train.recompute=block"]),
    "tp2-recompute": (2, ["parallel.tensor=2", "train.recompute=block"]),
    "tp2-sequence": (2, ["parallel.tensor=2", "parallel.sequence=true"]),
}


def compiled_here(engine: Any, config: Any) -> list[tuple[int, float]]:
    """Runs on every rank: the graphs made by the end of each length, and the largest relative difference from eager."""
    import torch
    from torch._dynamo import trace_rules
    from torch._dynamo.testing import CompileCounterWithBackend

    from gpt1_ds.model.transformer import Block

    # sequence parallelism asks CUDA for its device; what stands there on a CPU is no function of torch, but inlined
    trace_rules.get_torch_obj_rule_map().pop(torch.cuda.current_device, None)
    blocks = [module for module in engine.module.modules() if isinstance(module, Block)]
    wanted = {length: results(engine, blocks, length) for length in LENGTHS}
    counter = CompileCounterWithBackend("aot_eager")
    for block in blocks:
        block.compile(backend=counter, fullgraph=True)  # a graph that breaks raises
    found = []
    for length, want in wanted.items():
        got = results(engine, blocks, length)
        assert all(torch.isfinite(one).all() for one in got)
        errors = [float((a - b).norm() / b.norm()) for a, b in zip(got, want, strict=True)]
        found.append((counter.frame_count, max(errors)))
    return found


def results(engine: Any, blocks: list[Any], length: int) -> list[Any]:
    """Training's output and gradients, then evaluation's output."""
    import numpy as np
    import torch

    from gpt1_ds.model.dropout import row_keys
    from gpt1_ds.model.states import States
    from gpt1_ds.objectives.base import row_facts

    draw = torch.Generator().manual_seed(length)
    x_SBD, weight_SBD = (torch.randn(length, 3, blocks[0].mlp_norm.weight.numel(), generator=draw) for _ in range(2))
    facts_BF = torch.from_numpy(row_facts(row_keys(1, 2, np.arange(3))))
    parameters = [parameter for block in blocks for parameter in block.parameters()]
    engine.module.train()
    trained = x_SBD.requires_grad_()
    for block in blocks:
        trained = block(States(trained, facts_BF)).last
    gradients = torch.autograd.grad((trained * weight_SBD).sum(), [x_SBD, *parameters])
    engine.module.eval()
    evaluated = x_SBD.detach()
    with torch.no_grad():
        for block in blocks:
            evaluated = block(States(evaluated, facts_BF)).last
    return [trained.detach(), *gradients, evaluated]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_block_is_one_graph(layout: str) -> None:
    ranks, overrides = LAYOUTS[layout]
    arguments = ([*MODEL, *overrides], 50, compiled_here)
    for found in launch.run("tests.helpers.engines:on_engine", arguments, ranks):
        counts = [graphs for graphs, _ in found]
        assert counts[0] == 2, "one for training, one for evaluation, shared by both blocks"
        assert counts[1:] == [4] * (len(LENGTHS) - 1), "and one each for all other lengths"
        assert max(error for _, error in found) < 1e-5
