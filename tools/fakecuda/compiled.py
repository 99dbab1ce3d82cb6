"""Regions that torch.compile compiles: lowered for the fake GPU, counted, never run.

Dynamo, autograd and inductor work as on a real H100, down to the source of the kernels. In the place of the module that
this source would become stands a function that tells the counter what it launches and gives outputs without values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tools.fakecuda import counter
from tools.fakecuda.counter import Kernel, Launch

TARGET, SHARED_MEMORY = ("cuda", 90, 32), 232_448  # an H100, as Triton names it; bytes of a program at most
OF_DEVICE = (  # what Dynamo has kept of torch.cuda since it was imported
    *("device", "stream", "current_stream", "current_device", "set_device", "device_count"),
    *("synchronize", "get_device_properties", "memory_allocated", "is_bf16_supported"),
)
TRITON = re.compile(r"^ +(triton_\w+)\.run\(", re.MULTILINE)
LAST_SUM = re.compile(r"\.view\((\d+), (\d+)\)\.sum\(dim=0\)")  # of a kernel's partial sums: [parts, elements], fp32
FRAME = re.compile(r'File "[^"]*/gpt1_ds/(?:\w+/)*(\w+\.py)", line (\d+), in (\w+)')


def install() -> None:
    """From now on what is compiled is counted. Goes after device.install()."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import compile_fx, config
    from torch._inductor.graph import GraphLowering
    from triton.runtime import driver

    for name in OF_DEVICE:
        setattr(CudaInterface, name, staticmethod(getattr(torch.cuda, name)))
    for name in ("exchange_device", "maybe_exchange_device"):
        setattr(CudaInterface, name, staticmethod(getattr(torch.cuda, f"_{name}")))
    driver.set_active(_Driver())
    config.force_disable_caches = True
    config.compile_threads = 1  # no process is started
    config.joint_graph_constant_folding = False  # it computes on the device
    config.shape_padding = False  # it measures there
    torch._dynamo.config.automatic_dynamic_shapes = False  # bytes of symbols are none: each shape gets a graph
    torch._dynamo.config.recompile_limit = 1000  # of one function, called with so many shapes
    compile_fx.get_input_idxs_to_check = lambda *_: ()  # whether their addresses are aligned: they have none
    GraphLowering.compile_to_module = _module  # type: ignore[method-assign]


class _Driver:
    """What Triton is told of the device that it compiles for."""

    utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": SHARED_MEMORY})

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*TARGET)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def _module(graph: Any) -> SimpleNamespace:
    """In the place of the module that inductor makes of a graph."""
    source = graph.codegen()[0].value
    if "tl.atomic_add(" in source:
        raise RuntimeError("compiled code adds up in the order in which threads come: each pass has other bits")
    launches = [*_launches(graph, source)]
    make = [_maker(output) for output in graph.graph_outputs]

    def call(inputs: list[Any]) -> list[Tensor | None]:
        inputs.clear()  # who compiles takes them over
        counter.launched(launches)
        return [one() for one in make]

    return SimpleNamespace(call=call, __file__="", key="", path="")


def _maker(output: Any) -> Callable[[], Tensor | None]:
    """Makes an output of a graph anew at each call, also one that is a view of an input."""
    from torch._inductor import ir

    if isinstance(output, ir.NoneAsConstantBuffer):
        return lambda: None
    size, stride = ([int(length) for length in lengths] for lengths in (output.get_size(), output.get_stride()))
    kind, device = output.get_dtype(), output.get_device()
    return lambda: torch.empty_strided(size, stride, dtype=kind, device=device)


def _launches(graph: Any, source: str) -> Iterator[Launch]:
    """In the order of the source."""
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode

    names = iter(TRITON.findall(source))
    for node in graph.scheduler.nodes:
        if isinstance(node, NopKernelSchedulerNode) or node.get_name() in graph.scheduler.removed_ops:
            continue
        if isinstance(node, ExternKernelSchedulerNode):
            yield from _extern(node.node)
        else:
            yield _triton(next(names), node)
    assert not [*names], "one Triton kernel for each node of the schedule"
    for parts, elements in LAST_SUM.findall(source):
        yield Kernel("sum", 1, 4 * int(parts) * int(elements), 4 * int(elements), 0, "", "compiled", ())


def _triton(name: str, node: Any) -> Kernel:
    read, written = (
        sum(node.get_read_write_buffer_accesses(include_reads=reads, include_writes=not reads).values())
        for reads in (True, False)
    )
    origins = [origin for part in node.get_nodes() for origin in part.node.origins]
    place, callers = _where(origins)
    return Kernel(name, 1, read, written, 0, "", place, callers)


def _extern(operation: Any) -> Iterator[Launch]:
    """What the graph calls and did not generate: counted as where it is called one by one."""
    from torch._inductor import ir

    if isinstance(operation, (ir.MultiOutput, ir._WaitKernel)):
        return
    # the node of a collective in place may be the wait after it
    named = [
        origin
        for origin in operation.origins
        if origin.op == "call_function"
        and operation.op_overload
        and _name(origin.target) == _name(operation.op_overload)
    ]
    call = named[0] if named else operation.get_origin_node()
    args, kwargs, result = torch.fx.node.map_arg((call.args, call.kwargs, call), _value)
    yield counter.launch(call.target, args, kwargs, result, _where([call]))


def _name(target: Any) -> str:
    """Returns the name of an operation. A collective may be done in place although the graph has the other form."""
    return str(target.__name__).partition(".")[0].strip("_")


def _value(node: torch.fx.Node) -> Any:
    return node.meta["val"]


def _where(origins: Sequence[torch.fx.Node]) -> tuple[str, tuple[str, ...]]:
    """(innermost line of this package, its functions, innermost first) of the call that a kernel began with."""
    for origin in origins:
        frames = FRAME.findall(origin.meta.get("stack_trace") or "")[::-1]
        if frames:
            file, line, function = frames[0]
            return f"{file}:{line} {function}", tuple(f"{file}:{function}" for file, _, function in frames)
    return "compiled", ()
