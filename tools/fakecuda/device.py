"""The fake device: an H100 to whoever asks torch.cuda; its tensors have a shape, a type and a device but no values.

It needs the CUDA build of torch, no driver. Only a process that does nothing else may call `install`; ranks.py forks
one for each rank.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tools.fakecuda.counter import counting
from tools.fakecuda.values import value_of

NAME, DEVICES, MEMORY = "NVIDIA H100 80GB HBM3", 8, 80 << 30
SHIM = "FAKECUDA_SHIM"  # names the compiled shim where it lies outside the environment
REAL_ATTENTION = torch.nn.functional.scaled_dot_product_attention
PROPERTIES = SimpleNamespace(
    **{"name": NAME, "major": 9, "minor": 0, "total_memory": MEMORY, "multi_processor_count": 132, "warp_size": 32},
    **{"max_threads_per_multi_processor": 2048, "regs_per_multiprocessor": 65536, "L2_cache_size": 50 << 20},
    **{"shared_memory_per_block": 49152, "shared_memory_per_block_optin": 232448, "gcnArchName": ""},
    **{"shared_memory_per_multiprocessor": 233472, "max_threads_per_block": 1024, "clock_rate": 1980000},
    **{"memory_clock_rate": 2619000, "memory_bus_width": 5120, "is_integrated": 0, "is_multi_gpu_board": 0},
    **{"uuid": "0", "pci_bus_id": 0, "pci_device_id": 0, "pci_domain_id": 0},
)


def shim_path() -> Path:
    return Path(os.environ.get(SHIM, Path(sys.prefix, "fakecuda.so")))


def missing() -> str | None:
    """Why there can be no fake device in this environment; None where there can."""
    if not torch.version.cuda:
        return f"torch {torch.__version__} has no CUDA; bash tools/fakecuda.sh makes an environment that has"
    if not shim_path().exists():
        return f"{shim_path()} is missing; bash tools/fakecuda.sh compiles it"
    return None


class Nothing:
    """A stream, an event, a context: takes every call and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = self.stream_id = self.device_index = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._nothing

    def _nothing(self, *_: Any, **__: Any) -> Nothing:
        return self

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it."""

    def synchronize(self) -> None:
        counting("sync", "synchronize of a stream or event")

    def query(self) -> bool:
        """The device is behind the host: nothing is done yet."""
        return False

    def elapsed_time(self, _: Nothing) -> float:
        return 1.0


def install() -> None:
    """Make this process see DEVICES H100s. There is no way back."""
    reason = missing()
    assert reason is None, reason
    torch._C._ensureCUDADeviceGuardSet()
    ctypes.CDLL(str(shim_path()), mode=ctypes.RTLD_GLOBAL).install()
    fake_tensor.init_gpu_context = lambda *_: None  # it would allocate
    convert = fake_tensor.FakeTensorConverter.from_real_tensor

    def without_constant(self: Any, mode: Any, tensor: Any, constant: bool = False, *more: Any, **named: Any) -> Any:
        named.pop("make_constant", None)
        return convert(self, mode, tensor, False, *more, **named)  # a constant is computed with, on a real device

    fake_tensor.FakeTensorConverter.from_real_tensor = without_constant  # type: ignore[method-assign]
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(x, device="cuda") makes a fake on the CPU, then a copy
    _answer_for_cuda()
    torch.nn.Module._apply = _apply  # type: ignore[assignment]
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[assignment]  # it takes no fake stream
    fake_tensor.FakeTensor.tolist = _tolist  # type: ignore[assignment]
    torch.Tensor.to = _to(torch.Tensor.to)  # type: ignore[method-assign]
    torch.nn.functional.scaled_dot_product_attention = _flash  # type: ignore[assignment]


def _answer_for_cuda() -> None:
    """What torch.cuda says of the device, and of memory, streams and generators."""
    current = [0]

    def set_device(device: Any) -> None:
        index = torch.device(device).index if not isinstance(device, int) else device
        current[0] = index or 0

    def synchronize(*_: Any, **__: Any) -> None:
        counting("sync", "torch.cuda.synchronize")

    answers: dict[str, Any] = {
        **{"is_available": True, "device_count": DEVICES, "is_initialized": True, "_lazy_init": None},
        **{"get_device_name": NAME, "get_device_properties": PROPERTIES, "get_device_capability": (9, 0)},
        **{"is_bf16_supported": True, "manual_seed": None, "manual_seed_all": None, "set_rng_state": None},
        **{"mem_get_info": (MEMORY - (10 << 30), MEMORY), "empty_cache": None, "memory_stats": {}},
        **{"_exchange_device": 0, "_maybe_exchange_device": 0, "is_current_stream_capturing": False},
    }
    for name in ("allocated", "reserved", "cached"):
        answers.update({f"memory_{name}": 0, f"max_memory_{name}": 0, f"reset_max_memory_{name}": None})
    answers["reset_peak_memory_stats"] = None
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    torch.cuda.set_device = set_device  # type: ignore[assignment]
    torch.cuda.current_device = lambda: current[0]
    torch.cuda.synchronize = synchronize  # type: ignore[assignment]
    torch.cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)  # type: ignore[assignment]
    torch.cuda.default_generators = (Nothing(),) * DEVICES  # type: ignore[assignment]
    for name in ("Stream", "Event", "stream", "device"):
        setattr(torch.cuda, name, Nothing)
    for name in ("current_stream", "default_stream"):
        setattr(torch.cuda, name, lambda *_, **__: Nothing())


def _tolist(self: torch.Tensor) -> Any:
    """One wait for all elements; torch's own asks a fake tensor for each."""
    if self.device.type == "cuda":
        counting("sync", "tolist")
    values = np.full(tuple(self.shape), value_of(self))
    return values.tolist()


def _to(real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`tensor.to("cuda")` means the current device; without a driver torch takes the first."""

    def current(device: Any) -> Any:
        if isinstance(device, (str, torch.device)) and torch.device(device) == torch.device("cuda"):
            return torch.device("cuda", torch.cuda.current_device())
        return device

    def to(self: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        if "device" in named:
            named["device"] = current(named["device"])
        return real(self, *map(current, args), **named)

    return to


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
    """What an H100 takes for attention in half precision; torch asks the driver, and has single operations here."""
    dropout, causal = named.get("dropout_p", 0.0), named.get("is_causal", False)
    if named.get("attn_mask") is not None or q.dtype == torch.float32 or q.device.type != "cuda":
        return REAL_ATTENTION(q, k, v, **named)
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal)[0]  # type: ignore[no-any-return]


def _apply(self: torch.nn.Module, change: Any, recurse: bool = True) -> torch.nn.Module:
    """What `.to` and `.cuda` of a module call. torch's own swaps tensors, which fake ones refuse; an optimizer holds
    these very parameters.
    """
    for module in self.modules():
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            changed = change(parameter.detach())
            parameter.data = changed
            parameter.fake_device = changed.device  # type: ignore[attr-defined]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = change(buffer)
    return self


def fake_mode() -> FakeTensorMode:
    """Tensors made under it are fake; real ones may be read."""
    return FakeTensorMode(allow_non_fake_inputs=True)
