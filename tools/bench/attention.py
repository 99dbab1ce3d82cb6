"""Row 6: causal attention with dropout 0.1, forward and backward, of 64 sequences x 12 heads x 512 x 64 on a GPU: ours,
both kinds, beside Megatron's and torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt1_ds.model import dropout
from gpt1_ds.model.kernels import attention
from gpt1_ds.model.kernels.inputs import Drop
from tools.bench.head import peak_bytes
from tools.bench.ours import connect, gpt1
from tools.bench.rows import Options, Ratio, Row, ratio, seconds, take_turns

SHARE = 0.1
AGREEMENT = 2e-2  # of outputs without dropout, relative
Way = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # q, k, v [G, S, H] and the share to drop -> [G, S, H]


def measure(options: Options) -> Row:
    rows, positions = (2, 64) if options.quick else (64, 512)
    model = gpt1(options, 1).model
    shape = (rows * model.heads, positions, model.head_dim)
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, device=options.device).bfloat16().requires_grad_() for _ in range(3))
    grad = torch.randn_like(q)
    ways: dict[str, Way] = {"ours, exact": exact_of(rows, model.heads), "ours, fused": attention.fused, "SDPA": sdpa}
    if options.device == "cuda":  # Megatron's has buffers and generators on a GPU only
        ways["Megatron"] = megatron_of(options, rows, model.heads)
    wanted = sdpa(q, k, v, 0.0).detach()
    apart = {name: float((way(q, k, v, 0.0).detach() - wanted).norm() / wanted.norm()) for name, way in ways.items()}
    assert max(apart.values()) < AGREEMENT, apart
    runs = {name: (lambda way=way: way(q, k, v, SHARE).backward(grad)) for name, way in ways.items()}
    memory = {name: peak_bytes(run, options.device) / 2**20 for name, run in runs.items()}
    work = {name: (lambda run=run: 1e3 * seconds(run, options.device)) for name, run in runs.items()}
    series = take_turns(work, options.rounds)
    ratios = [Ratio("SDPA / ours, fused", ratio(series, "SDPA", "ours, fused"))]
    for kind in ("fused", "exact"):
        if "Megatron" in series:
            found = ratio(series, "Megatron", f"ours, {kind}")
            ratios.append(Ratio(f"Megatron / ours, {kind}", found, 4 if kind == "fused" else None))
    return Row(
        number=6,
        title="causal attention with dropout 0.1, forward and backward",
        unit="ms",
        series=series,
        ratios=ratios,
        configuration={"rows": rows, "heads": model.heads, "positions": positions, "head width": model.head_dim},
        checks={"outputs apart from SDPA's, without dropout": apart, "peak MiB": memory},
    )


def exact_of(rows: int, heads: int) -> Way:
    def way(q_GSH: Tensor, k_GSH: Tensor, v_GSH: Tensor, share: float) -> Tensor:
        if not share:
            return attention.exact(q_GSH, k_GSH, v_GSH, None)
        key_BN, second_BN = dropout.site_keys(torch.arange(rows, device=q_GSH.device), 1, 0, heads)
        limit, scale = dropout.threshold(share), dropout.scale(share)
        mask = Drop(key_BN.flatten(), second_BN.flatten(), limit, scale, (q_GSH.shape[1] + 1) // 2)
        return attention.exact(q_GSH, k_GSH, v_GSH, mask)

    return way


def sdpa(q_GSH: Tensor, k_GSH: Tensor, v_GSH: Tensor, share: float) -> Tensor:
    q, k, v = (x.unsqueeze(0) for x in (q_GSH, k_GSH, v_GSH))
    return F.scaled_dot_product_attention(q, k, v, dropout_p=share, is_causal=True).squeeze(0)


def megatron_of(options: Options, rows: int, heads: int) -> Way:
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import TransformerConfig

    from gpt1_ds.engine.process_groups import ProcessGroups

    connect(options.device)
    parallel_state._set_global_memory_buffer()
    tensor_parallel.model_parallel_cuda_manual_seed(1, tp_rank=0, ep_rank=0, etp_rank=0)
    config = gpt1(options, 1)
    settings = TransformerConfig(
        num_layers=1, hidden_size=config.model.width, num_attention_heads=heads, attention_dropout=SHARE, bf16=True
    )
    groups = ProcessGroupCollection(tp=ProcessGroups(config).tensor_group)
    module: Any = DotProductAttention(settings, 1, AttnMaskType.causal, "self", pg_collection=groups)

    def way(q_GSH: Tensor, k_GSH: Tensor, v_GSH: Tensor, share: float) -> Tensor:
        module.train(share > 0)
        future_11SS = torch.ones(1, 1, *[q_GSH.shape[1]] * 2, dtype=torch.bool, device=q_GSH.device).triu(1)
        parts = (x.unflatten(0, (rows, heads)).permute(2, 0, 1, 3).contiguous() for x in (q_GSH, k_GSH, v_GSH))
        out_SBD = module(*parts, future_11SS)
        return out_SBD.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3).flatten(0, 1)

    return way
