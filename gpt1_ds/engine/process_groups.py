"""Where a rank stands: tensor, pipeline and data coordinates, and the process groups along each axis.

Rank order is (pipeline, data, tensor), tensor fastest: neighbours share matrices. It is DeepSpeed's
PipeModelDataParallelTopology and Megatron's default order at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, TypeVar

import deepspeed
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store
from torch.distributed import ProcessGroup
from torch.distributed.rendezvous import rendezvous

from gpt1_ds.common.errors import ConfigError, LaunchError, UserError
from gpt1_ds.common.files import explain, this_node
from gpt1_ds.config import Config
from gpt1_ds.engine import agreement
from gpt1_ds.engine.deepspeed.settings import allow_sequence_parallel
from gpt1_ds.launcher.accelerator import choose
from gpt1_ds.launcher.launch import STORE_VARIABLE
from gpt1_ds.launcher.network import choose_interface, explained, on_loopback, said_where_late

T = TypeVar("T")
AXES = ("tensor", "pipeline", "data")


@dataclass(frozen=True)
class Layout:
    """Sizes of the three axes; their product is the world."""

    tensor: int
    pipeline: int
    data: int

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """Returns (tensor, pipeline, data) rank of a global rank: AXES."""
        rest, tensor = divmod(rank, self.tensor)
        pipeline, data = divmod(rest, self.data)
        return tensor, pipeline, data

    def members(self, rank: int, *axes: str) -> list[int]:
        """Returns the ranks that differ from `rank` along `axes` only, itself among them; ascending."""
        tensors, stages, datas = (
            range(getattr(self, axis)) if axis in axes else [at]
            for axis, at in zip(AXES, self.coordinates(rank), strict=True)
        )
        return [
            (stage * self.data + data) * self.tensor + tensor for stage, data, tensor in product(stages, datas, tensors)
        ]


class ProcessGroups:
    """This rank's place in the layout. It is also the `mpu` that DeepSpeed asks about model and data parallelism."""

    def __init__(self, config: Config) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        replica = config.parallel.tensor * config.parallel.pipeline
        assert world % replica == 0, "the launcher validates the world size"
        self.layout = Layout(config.parallel.tensor, config.parallel.pipeline, world // replica)
        self.rank, self.world = rank, world
        self.tensor_rank, self.pipeline_rank, self.data_rank = self.layout.coordinates(rank)
        # The watch names the slow rank before a collective gives up on it; this is for when there is no watch
        guard = config.guard
        longest = max(guard.step_timeout, guard.save_timeout, guard.init_timeout, guard.lock_timeout)
        self.timeout = timedelta(seconds=longest + 30)
        self.tensor_group = self._group("tensor")
        self.data_group = self._group("data")
        self.model_group = self._group("tensor", "pipeline")
        self.control_group = dist.new_group(backend="gloo", timeout=self.timeout)  # small CPU messages, every rank
        if config.parallel.sequence:
            allow_sequence_parallel()

    def __str__(self) -> str:
        layout = self.layout
        return (
            f"rank {self.rank} of {self.world}: tensor {self.tensor_rank} of {layout.tensor}, pipeline "
            f"{self.pipeline_rank} of {layout.pipeline}, data {self.data_rank} of {layout.data}"
        )

    @property
    def is_first_stage(self) -> bool:
        return self.pipeline_rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pipeline_rank == self.layout.pipeline - 1

    @cached_property
    def stage_group(self) -> ProcessGroup:
        """Returns the ranks that hold the same layers. They make it together, when it is first used."""
        return self._group("tensor", "data")

    def gather(self, value: T) -> list[T]:
        """Returns every rank's value, in rank order, on every rank."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control_group)
        return values

    def share(self, value: T) -> T:
        """Returns rank 0's value, on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control_group)
        return box[0]

    def agree(self, action: Callable[[], T]) -> T:
        """Returns this rank's result of `action`. What a person can fix on any rank is raised alike on all of them."""
        problem, result = None, None
        try:
            result = action()
        except UserError as error:
            problem = error
        except OSError as error:
            problem = explain(error) or UserError(f"{error.filename or ''}: {error.strerror or error}")
        for found in self.gather(problem):
            if found is not None:
                raise found
        return result  # type: ignore[return-value]

    def compare(self, read: Mapping[str, object]) -> None:
        """Raises ConfigError alike on all ranks where what they `read` (where from -> its hash) is not the same."""
        ranks = self.gather((this_node(), {key: str(value) for key, value in read.items()}))
        way_out = "every host needs the same files there"
        line = agreement.first_difference([one for _, one in ranks], [host for host, _ in ranks], lambda _: way_out)
        if line is not None:
            raise ConfigError(line)

    def on_rank_0(self, action: Callable[[], T]) -> T:
        """Returns rank 0's result of `action`, on every rank; its error, too."""
        return self.share(self.agree(action if self.rank == 0 else lambda: None))  # type: ignore[return-value]

    def _group(self, *axes: str) -> ProcessGroup:
        """Returns the group of ranks that differ from this one along `axes` only. Only its members wait for each other
        while it is made, so that a thousand ranks do not make thousands of groups one after another.
        """
        members = self.layout.members(self.rank, *axes)
        group = dist.new_group(members, timeout=self.timeout, use_local_synchronization=True)
        assert isinstance(group, ProcessGroup), "every rank is a member of one group along each axis"
        return group

    # What DeepSpeed asks. Its "model parallel" group holds all ranks that share one copy of the model.
    def get_model_parallel_rank(self) -> int:
        return self.model_group.rank()

    def get_model_parallel_world_size(self) -> int:
        return self.model_group.size()

    def get_model_parallel_group(self) -> ProcessGroup:
        return self.model_group

    def get_tensor_model_parallel_rank(self) -> int:
        return self.tensor_rank

    def get_tensor_model_parallel_world_size(self) -> int:
        return self.layout.tensor

    def get_tensor_model_parallel_group(self) -> ProcessGroup:
        return self.tensor_group

    def get_data_parallel_rank(self) -> int:
        return self.data_rank

    def get_data_parallel_world_size(self) -> int:
        return self.layout.data

    def get_data_parallel_group(self) -> ProcessGroup:
        return self.data_group

    def get_data_parallel_group_ranks(self) -> list[int]:
        return self.layout.members(self.rank, "data")


def connect(
    timeout_seconds: float, device: torch.device | None = None, facts: Callable[[], Mapping[str, str]] | None = None
) -> torch.device:
    """Joins the other ranks (through the launcher's file, else MASTER_ADDR and MASTER_PORT), over NCCL on a GPU and
    gloo on a CPU; this rank's device, which is `device` or, where none is given, the one that `train.device=auto`
    finds. In a notebook a run on a CPU uses the process group that a loaded model has made; a run on a GPU ends that
    group first. Raises LaunchError for any other group, and ConfigError on all ranks where their `facts`
    (engine/agreement.py) differ.
    """
    device = device or choose(Config())
    timeout = timedelta(seconds=timeout_seconds)
    choose_interface()
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed's pipeline looks for it, too
    backend = "nccl" if device.type == "cuda" else "gloo"
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 and dist.is_initialized() and dist.group.WORLD in _ALONE and backend != "gloo":
        # loaded models ask theirs for its size and their rank in it, which it knows after its end
        dist.destroy_process_group()
        _ALONE.clear()
        _group_of_one.cache_clear()
    if dist.is_initialized():
        if world > 1 or dist.get_world_size() > 1 or dist.get_backend() != backend:
            raise LaunchError(
                f"this process has a process group already ({dist.get_backend()}): end it with "
                "torch.distributed.destroy_process_group(), and load models again"
            )
    else:
        with explained():
            dist.init_process_group(
                backend,
                store=_meet(rank, world, timeout, facts),
                rank=rank,
                world_size=world,
                timeout=timeout,
                device_id=device if device.type == "cuda" else None,
            )
    deepspeed.init_distributed(verbose=False)  # finds torch's group and adopts it
    return device


def _meet(rank: int, world: int, timeout: timedelta, facts: Callable[[], Mapping[str, str]] | None) -> Store:
    """Returns the store through which ranks make their groups, once they have found their `facts` to be the same."""
    if world == 1:
        return HashStore()
    if store_file := os.environ.get(STORE_VARIABLE):  # forks of one process, which were given one configuration
        return FileStore(store_file, world)
    with said_where_late(world):
        store = next(rendezvous("env://", rank, world, timeout=timeout))[0]
        store.set_timeout(timeout)
        # torchrun's agent keeps the store of ranks that it starts again, with the addresses of those before them
        store = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        if facts is not None:
            agreement.compare(PrefixStore("agreement", store), rank, world, facts())
    return PrefixStore("ranks", store)


_ALONE: list[ProcessGroup | None] = []  # the default group that `connect_alone` made last


def connect_alone() -> ProcessGroup:
    """Returns a process group of this process alone, without a port; for a checkpoint in a notebook or on a login
    node.
    """
    with on_loopback():
        if not dist.is_initialized():
            with explained():
                dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
            _ALONE[:] = [dist.group.WORLD]
        return _group_of_one(dist.group.WORLD)


@lru_cache(maxsize=1)
def _group_of_one(world: ProcessGroup) -> ProcessGroup:
    """Returns a group of this rank alone, made once for each `world`: a group has a thread, which stays."""
    group = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
    assert isinstance(group, ProcessGroup), "this process is a member"
    return group
