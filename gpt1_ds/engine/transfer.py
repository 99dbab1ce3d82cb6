"""What moves between host and device in a step: micro-batches there in one copy, a few numbers back in one read;
and the state that a checkpoint keeps, into few buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

PIECE = 256 << 20  # bytes of a pinned buffer: torch rounds its size up to a power of two, and keeps it
ALIGNMENT = 16  # bytes: every tensor of a buffer begins at a multiple, as vector loads and 8-byte types want it

Arrival = Callable[[], list[Tensor]]  # waits for tensors where they are sent to, and gives them


def pack(tensors: Sequence[Tensor], pinned: bool = False) -> Tensor:
    """Returns uint8 [bytes] on the host: the tensors' elements one after another, each aligned. `views` reads it. What
    a device has is under way in a pinned buffer when this returns.
    """
    buffer = torch.empty(sum(map(_space, tensors)), dtype=torch.uint8, pin_memory=pinned)
    for view, tensor in zip(views(buffer, tensors), tensors, strict=True):
        view.copy_(tensor, non_blocking=pinned)
    return buffer


def views(buffer: Tensor, like: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yields the tensors in a buffer, of the types and shapes of `like`."""
    starts = accumulate(map(_space, like), initial=0)
    for start, tensor in zip(starts, like, strict=False):
        used = buffer[start : start + tensor.numel() * tensor.element_size()]
        yield used.view(tensor.dtype).view(tensor.shape)


class Sender:
    """Copies tensors of the host to a device, beside what the device computes; on a CPU nothing is copied. Who holds
    `lock` keeps other threads from beginning a copy.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.lock = device, threading.Lock()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, tensors: Sequence[Tensor]) -> Arrival:
        """Begins to copy; any thread may call this, the thread that computes calls what it returns."""
        if self._stream is None:
            return lambda: list(tensors)
        with self.lock, torch.cuda.stream(self._stream):  # else another thread pins memory for the first device
            there = pack(tensors, pinned=True).to(self.device, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()

        def arrival() -> list[Tensor]:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_event(arrived)
            there.record_stream(computing)  # else its memory is free for the next copy when it is dropped
            return list(views(there, tensors))

        return arrival


def keep_on_host(tensors: Sequence[Tensor]) -> Arrival:
    """Begins to copy tensors of one device into buffers of the host, as they are now: what is computed from here on may
    write over them. Any thread may wait.

    The copies are in the computing stream itself. In another one the next update would have to wait for them.
    """
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    copies = [copy for piece in _pieces(tensors) for copy in views(pack(piece, pinned=device is not None), piece)]
    if device is None:
        return lambda: copies
    copied = torch.cuda.Event()
    copied.record()

    def arrival() -> list[Tensor]:
        with torch.cuda.device(device):  # another thread is on GPU 0, where every rank would take memory
            copied.synchronize()
        return copies

    return arrival


def kept_bytes(tensors: Iterable[Tensor], pinned: bool) -> int:
    """Returns the bytes of the host that `keep_on_host` takes, of tensors on a GPU those of `pinned` buffers."""
    sizes = [sum(map(_space, piece)) for piece in _pieces(tensors)]
    return sum(1 << (size - 1).bit_length() if pinned and size else size for size in sizes)


def read_scalars(*scalars: Tensor | float) -> list[float]:
    """Returns the numbers on the host, with at most one wait for the device."""
    on_device = [scalar for scalar in scalars if isinstance(scalar, Tensor) and scalar.is_cuda]
    values = iter(torch.stack([scalar.detach().float() for scalar in on_device]).tolist() if on_device else ())
    return [next(values) if isinstance(scalar, Tensor) and scalar.is_cuda else float(scalar) for scalar in scalars]


def _pieces(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yields the tensors in their order, in lists of up to PIECE bytes; a larger one is alone."""
    piece, size = list[Tensor](), 0
    for tensor in tensors:
        size += _space(tensor)
        if piece and size > PIECE:
            yield piece
            piece, size = [], _space(tensor)
        piece.append(tensor)
    yield piece


def _space(tensor: Tensor) -> int:
    """Returns the bytes that a tensor takes in a buffer."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
