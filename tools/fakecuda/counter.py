"""What a GPU is asked to do: kernels, bytes, FLOPs, host syncs, copies between host and device, collectives; in order.

Every operation that torch dispatches passes through `Counter`. One that reads or writes tensors of the device is a
kernel, unless it only makes a view or allocates. (A few operations launch more than one, like the sort in the gradient
of an embedding: they count as one.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from tools.fakecuda.values import remember_truth, value_of
from tools.fakecuda.work import KERNELS, causal_flops, flops_of, foreach_launches

OURS = ("/gpt1_ds/", "/deepspeed/", "/megatron/")
NO_KERNEL = {  # besides views
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "detach_"),
    *("lift_fresh", "is_pinned", "is_same_size", "record_stream", "_has_same_storage_numel", "_unsafe_view"),
    *("_reshape_alias", "_to_copy_view", "sym_size", "sym_stride", "sym_numel", "dim", "view_as", "alias"),
    *("_record_function_enter_new", "_record_function_exit"),
}
WAITS = {"_local_scalar_dense", "item", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero"}
FUNCTIONAL = {  # how a compiled graph names a collective: how a call does
    **{"all_reduce": "allreduce", "all_gather_into_tensor": "allgather_base"},
    "reduce_scatter_tensor": "reduce_scatter_base",
}


@dataclass(frozen=True)
class Kernel:
    """One operation of the device. `phase` is what the engine said it was about; `place` the innermost line of ours."""

    name: str
    launches: int
    read: int  # bytes
    written: int
    flops: int
    phase: str
    place: str
    callers: tuple[str, ...]  # functions of this package on the stack, innermost first


@dataclass(frozen=True)
class Event:
    """A sync or a copy: what waits, where it is asked for."""

    what: str
    bytes: int
    phase: str
    place: str


@dataclass(frozen=True)
class Collective:
    """What all members of a group must issue alike, but for a send and its receive. `ranks` are those of its group;
    `peer` is the other rank of a send or receive; `after` counts the kernels that were issued before it.
    """

    kind: str
    type: str
    bytes: int
    ranks: tuple[int, ...]
    devices: tuple[str, ...]
    peer: int | None
    backend: str
    phase: str
    place: str
    after: int


Launch = Kernel | Collective
Where = tuple[str, tuple[str, ...]]  # place and callers of a kernel


@dataclass
class Counts:
    kernels: list[Kernel] = field(default_factory=list)
    syncs: list[Event] = field(default_factory=list)
    copies: list[Event] = field(default_factory=list)  # host to device
    collectives: list[Collective] = field(default_factory=list)
    graphs: list[range] = field(default_factory=list)  # the kernels that each CUDA graph launches

    @property
    def host_launches(self) -> int:
        return self.launches + sum(1 - sum(self.kernels[n].launches for n in graph) for graph in self.graphs)

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def bytes(self) -> int:
        return sum(kernel.read + kernel.written for kernel in self.kernels)

    @property
    def flops(self) -> int:
        return sum(kernel.flops for kernel in self.kernels)


active: list[Counter] = []
BACKENDS: dict[str, str] = {}  # by the name of a group: what the program asked for


def counting(kind: str, what: str) -> None:
    """A sync that no operation shows."""
    if active:
        active[-1].event(kind, what, 0)


def launched(launches: Iterable[Launch]) -> None:
    """By a compiled graph, in this order: no operation shows them."""
    if active:
        active[-1].add(launches)


class Counter(TorchDispatchMode):
    """Counts while it is entered, under a FakeTensorMode. It also answers for the values that fake tensors lack."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.phase = Counts(), ""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions are compiled under this mode, too: compiled.py tells what they launch."""
        return True

    def __enter__(self) -> Counter:
        active.append(self)
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        active.remove(self)
        super().__exit__(*problem)

    def add(self, launches: Iterable[Launch]) -> None:
        counts = self.counts
        for one in launches:
            if isinstance(one, Kernel):
                counts.kernels.append(replace(one, phase=self.phase))
            else:
                counts.collectives.append(replace(one, phase=self.phase, after=len(counts.kernels)))

    def event(self, kind: str, what: str, size: int) -> None:
        into = self.counts.syncs if kind == "sync" else self.counts.copies
        into.append(Event(what, size, self.phase, _where()[0]))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ("prim", "profiler"):  # questions about a tensor
            return func(*args, **kwargs)
        name = func.__name__.partition(".")[0]
        if func.namespace in ("c10d", "_c10d_functional"):
            if name != "wait_tensor":
                self.add([collective(name, args, kwargs, _where())])
            return func(*args, **kwargs)
        inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if name in WAITS and any(tensor.device.type == "cuda" for tensor in inputs):
            self.event("sync", name, 0)
        if name in ("_local_scalar_dense", "item"):
            return value_of(args[0])
        if name == "equal":
            return True
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        remember_truth(name, args, outputs)
        if func.is_view or name in NO_KERNEL:
            return result
        self._count(func, name, args, kwargs, inputs, outputs, result)
        return result

    def _count(
        self, func: Any, name: str, args: Any, kwargs: Any, inputs: list[Tensor], outputs: list[Tensor], result: Any
    ) -> None:
        written = outputs or _written(func, args, kwargs)
        devices = {tensor.device.type for tensor in (*inputs, *written)}
        if "cuda" not in devices:
            return
        if name in ("copy_", "_to_copy", "_copy_from") and len(devices) > 1:
            source = args[1] if name == "copy_" else args[0]
            if source.device.type == "cpu":
                self.event("copy", name, _bytes(source))
            elif not kwargs.get("non_blocking"):
                self.event("sync", f"{name} to the host", _bytes(source))
            return
        masked = name in ("index", "index_put_") and any(x.dtype == torch.bool for x in _leaves(args[1]))
        if masked and not (name == "index_put_" and args[2].numel() == 1):  # one value: torch fills and does not wait
            self.event("sync", f"{name} with a mask", 0)
        self.add([_kernel(func, name, args, kwargs, inputs, written, result, _where())])


def launch(func: Any, args: Any, kwargs: Any, result: Any, where: Where) -> Launch:
    """Records a call that a compiled graph makes: an operation of torch's or of ours, or a collective."""
    name = func.__name__.partition(".")[0]
    if func.namespace == "_c10d_functional":
        return collective(name, args, kwargs, where, result)
    written = _leaves(result) or _written(func, args, kwargs)
    return _kernel(func, name, args, kwargs, _leaves((args, kwargs)), written, result, where)


def _kernel(
    func: Any, name: str, args: Any, kwargs: Any, inputs: list[Tensor], written: list[Tensor], result: Any, where: Where
) -> Kernel:
    reads = [tensor for tensor in inputs if tensor.device.type == "cuda"]
    if name in ("fill_", "zero_", "copy_"):
        reads = reads[1:]
    if name == "_foreach_copy_":
        reads = reads[len(args[0]) :]
    read = sum(map(_bytes, reads)) - sum(_bytes(value) for key, value in kwargs.items() if key == "out")
    if name == "embedding":
        read = sum(map(_bytes, written)) + _bytes(args[1])
    flops = causal_flops(name, written) if func.namespace == "gpt1_ds" else flops_of(name, args, kwargs, result)
    launches = foreach_launches(name, args) if name.startswith(("_foreach", "_fused")) else KERNELS.get(name, 1)
    return Kernel(name, launches, read, sum(map(_bytes, written)), flops, "", *where)


def collective(name: str, args: Any, kwargs: Any, where: Where, result: Any = ()) -> Collective:
    """`result` where the call makes its output itself."""
    parts = [_leaves(value) for value in (*args, *kwargs.values(), result)]
    largest = max(parts, key=lambda tensors: sum(map(_bytes, tensors)))  # of inputs and outputs
    ranks = tuple(dist.get_process_group_ranks(group := _group(args, kwargs)))
    kind = name.strip("_")
    return Collective(
        kind=FUNCTIONAL.get(kind, kind),
        type=str(largest[0].dtype).removeprefix("torch.") if largest else "",
        bytes=sum(map(_bytes, largest)),
        ranks=ranks,
        devices=tuple(sorted({tensor.device.type for tensors in parts for tensor in tensors})),
        peer=ranks[args[2]] if name in ("send", "recv_") else None,
        backend=BACKENDS.get(group.group_name, ""),
        phase="",
        place=where[0],
        after=0,
    )


def _group(args: Any, kwargs: Any) -> ProcessGroup:
    """The one among a collective's arguments: boxed, or by its name."""
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, ProcessGroup):
            return leaf
        if isinstance(leaf, torch.ScriptObject) and "ProcessGroup" in str(leaf._type()):
            return ProcessGroup.unbox(leaf)
        if isinstance(leaf, str) and leaf in BACKENDS:
            return dist.distributed_c10d._resolve_process_group(leaf)
    raise AssertionError(f"no group among {args}")


def _leaves(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Returns the bytes that are in memory: an expanded dimension is read once."""
    size = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride else min(length, 1)
    return size


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Returns what an operation that returns nothing writes to, as its schema says."""
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += _leaves(args[place] if place < len(args) else kwargs.get(argument.name))
    return found


def _where() -> Where:
    """(file and line of the innermost frame of this package or its libraries, functions of this package)."""
    frame, place, callers = sys._getframe(2), "", []
    while frame is not None:
        path = frame.f_code.co_filename
        if any(part in path for part in OURS):
            file = path.rpartition("/")[2]
            place = place or f"{file}:{frame.f_lineno} {frame.f_code.co_name}"
            if "/gpt1_ds/" in path:
                callers.append(f"{file}:{frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return place or "autograd", tuple(callers)
