"""How the model is cut over the ranks. The data-parallel size is what is left of the world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

# DeepSpeed keys that may be set, and the smallest whole number that each takes (None: true or false). A test shows that
# losses stay as they are.
DEEPSPEED_KEYS = {
    "dump_state": None,  # its configuration goes into the log
    "steps_per_print": 1,  # steps between its own lines in the log
    "wall_clock_breakdown": None,  # seconds of each part of a step go into the log; slower
}
ZERO_KEYS: dict[str, int | None] = {
    "allgather_bucket_size": 1,  # elements of a message in which weights are gathered
    "reduce_bucket_size": 1,  # elements of a message in which gradients are reduced
    "stage3_max_live_parameters": 0,  # elements of weights that a rank keeps gathered
    "stage3_max_reuse_distance": 0,  # elements between two uses of a weight that stays gathered
    "stage3_param_persistence_threshold": 0,  # elements up to which a weight is kept whole
    "stage3_prefetch_bucket_size": 0,  # elements of weights that are gathered ahead
    "sub_group_size": 1,  # elements that are updated together
}


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    tensor: int = 1  # ranks that share each matrix (Megatron tensor parallelism)
    pipeline: int = 1  # stages that share the layers (DeepSpeed pipeline)
    zero: int = 1  # ZeRO stage: 0 nothing, 1 optimizer, 2 + gradients, 3 + weights are cut over data ranks
    sequence: bool = False  # also cut activations between matrices along the sequence (CUDA, tensor > 1)
    assembly: Literal["auto", "pipeline", "dense"] = "auto"  # auto: DeepSpeed's pipeline engine when pipeline > 1
    deepspeed: dict[str, Any] = field(default_factory=dict)  # message sizes and logs of DeepSpeed that were tested

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
        zero = self.deepspeed.get("zero_optimization", {})
        if not isinstance(zero, dict):
            yield f"parallel.deepspeed.zero_optimization={zero!r} is not a mapping"
            return
        others = {key: value for key, value in self.deepspeed.items() if key != "zero_optimization"}
        yield from _refused("parallel.deepspeed", others, DEEPSPEED_KEYS, OWNED_DEEPSPEED_KEYS)
        yield from _refused("parallel.deepspeed.zero_optimization", zero, ZERO_KEYS, OWNED_ZERO_KEYS)


def _refused(
    section: str, given: dict[str, Any], allowed: Mapping[str, int | None], owned: Mapping[str, str]
) -> Iterator[str]:
    """Yields a line for each setting that is this program's own, was not tested, or has a value of another kind."""
    for key, value in given.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if key in owned:
            yield f"{section}.{key} is set by {owned[key]}; remove it"
        elif key not in allowed:
            yield f"{section}.{key} was not tested with this program; remove it, or take one of {', '.join(allowed)}"
        elif (least := allowed[key]) is None:
            if not isinstance(value, bool):
                yield f"{section}.{key}={value!r} is neither true nor false; give one of the two"
        elif not is_number or not least <= value < 1 << 62 or value % 1:
            yield f"{section}.{key}={value!r} is no whole number of at least {least}; give one"
