"""How the model is cut over the ranks. The data-parallel size is what is left of the world."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

BUCKET_ELEMENTS = 25_000_000  # of a reduce or gather; DeepSpeed's 5e8 default allocates 2 GB up front in a pipeline

# DeepSpeed keys that this program sets itself, because another value would run and be wrong.
OWNED_DEEPSPEED_KEYS = {
    "train_batch_size": "train.global_batch",
    "train_micro_batch_size_per_gpu": "train.micro_batch",
    "gradient_accumulation_steps": "train.global_batch and train.micro_batch",
    "optimizer": "optimizer.*",
    "scheduler": "schedule.*",
    "gradient_clipping": "optimizer.clip",
    "fp16": "train.precision",
    "bf16": "train.precision",
    "torch_autocast": "train.precision",
    "data_types": "train.precision",
    "pipeline": "parallel.pipeline and train.recompute",
    "activation_checkpointing": "train.recompute",
    "tensor_parallel": "parallel.tensor",
    "wandb": "tracking.*",
    "zero_allow_untested_optimizer": "optimizer.name",
}
OWNED_ZERO_KEYS = {
    "stage": "parallel.zero",
    "offload_optimizer": "nothing: offload is out of scope",
    "offload_param": "nothing: offload is out of scope",
    "round_robin_gradients": "nothing: it reorders the optimizer's partitions",
    "zero_quantized_weights": "nothing: it changes the numbers",
    "zero_quantized_gradients": "nothing: it changes the numbers",
    "compute_grad_norm": "nothing: the norm is always computed",
    "overlap_comm": "train.device: reductions overlap on CUDA",
}


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    tensor: int = 1  # ranks that share each matrix (Megatron tensor parallelism)
    pipeline: int = 1  # stages that share the layers (DeepSpeed pipeline)
    zero: int = 1  # ZeRO stage: 0 nothing, 1 optimizer, 2 + gradients, 3 + weights are cut over data ranks
    sequence: bool = False  # also cut activations between matrices along the sequence (CUDA, tensor > 1)
    assembly: Literal["auto", "pipeline", "dense"] = "auto"  # auto: DeepSpeed's pipeline engine when pipeline > 1
    deepspeed: dict[str, Any] = field(default_factory=dict)  # further DeepSpeed settings, passed through

    @property
    def pipelined(self) -> bool:
        return self.pipeline > 1 if self.assembly == "auto" else self.assembly == "pipeline"

    def problems(self) -> Iterator[str]:
        for key in ("tensor", "pipeline"):
            if getattr(self, key) < 1:
                yield f"parallel.{key}={getattr(self, key)} must be at least 1"
        if not 0 <= self.zero <= 3:
            yield f"parallel.zero={self.zero} is not a ZeRO stage; choose 0, 1, 2 or 3"
        elif self.pipelined and self.zero != 1:
            why = "DeepSpeed's pipeline engine has no ZeRO 2 and 3" if self.zero > 1 else "its gradient norm is wrong"
            yield f"parallel.zero={self.zero} cannot run in a pipeline ({why}); use parallel.zero=1"
        if self.assembly == "dense" and self.pipeline > 1:
            yield f"parallel.assembly=dense cannot run parallel.pipeline={self.pipeline}; leave assembly out"
        if self.sequence and self.tensor == 1:
            yield "parallel.sequence=true needs parallel.tensor above 1; leave it out"
        for key, owner in OWNED_DEEPSPEED_KEYS.items():
            if key in self.deepspeed:
                yield f"parallel.deepspeed.{key} is set by {owner}; remove it"
        zero = self.deepspeed.get("zero_optimization", {})
        if not isinstance(zero, dict):
            yield f"parallel.deepspeed.zero_optimization={zero!r} is not a mapping"
            return
        for key, owner in OWNED_ZERO_KEYS.items():
            if key in zero:
                yield f"parallel.deepspeed.zero_optimization.{key} is set by {owner}; remove it"
