"""Tensors packed side by side in one buffer, and numbers read together."""

from __future__ import annotations

import pytest
import torch

from gpt1_ds.engine import transfer
from gpt1_ds.engine.transfer import ALIGNMENT, PIECE, Sender, keep_on_host, kept_bytes, pack, read_scalars, views

TYPES = (torch.int64, torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.uint8, torch.float16)
SHAPES = ((), (1,), (7,), (3, 5), (513, 8), (0,), (2, 0, 3), (1, 1, 1))


def some(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(dtype)


def test_every_type_and_size_comes_back_bit_for_bit() -> None:
    torch.manual_seed(0)
    tensors = [some(dtype, shape) for shape in SHAPES for dtype in TYPES]
    tensors.append(torch.tensor([float("nan"), -0.0, float("-inf")]))
    tensors.append(torch.arange(15).view(3, 5).T)  # not contiguous
    tensors.append(torch.tensor(3).expand(4, 2))
    buffer = pack(tensors)
    assert buffer.dtype == torch.uint8
    for tensor, view in zip(tensors, views(buffer, tensors), strict=True):
        assert (view.dtype, view.shape) == (tensor.dtype, tensor.shape)
        bits = view.contiguous().reshape(-1).view(torch.uint8)
        assert torch.equal(bits, tensor.contiguous().reshape(-1).view(torch.uint8))


def test_every_tensor_is_aligned_and_in_the_buffer() -> None:
    tensors = [some(torch.uint8, (size,)) for size in (1, 15, 16, 17, 31)]
    buffer = pack(tensors)
    starts = [view.data_ptr() - buffer.data_ptr() for view in views(buffer, tensors)]
    assert starts == [0, 16, 32, 48, 80]
    assert len(buffer) == 112
    assert all(start % ALIGNMENT == 0 for start in starts)


def test_nothing_is_an_empty_buffer() -> None:
    assert len(pack([])) == 0
    assert list(views(pack([]), [])) == []


def test_a_cpu_gets_the_very_tensors() -> None:
    tensors = [torch.ones(2), torch.zeros(3)]
    arrived = Sender(torch.device("cpu")).send(tensors)()
    assert all(one is other for one, other in zip(arrived, tensors, strict=True))


@pytest.mark.parametrize("value", [0.1, float("inf"), -1.0])
def test_numbers_are_read_as_they_are(value: float) -> None:
    assert read_scalars(torch.tensor(value), value) == [float(torch.tensor(value)), value]


def test_what_is_kept_is_not_written_over() -> None:
    tensors = [torch.ones(5), torch.arange(3.0)]
    arrival = keep_on_host(tensors)
    for tensor in tensors:
        tensor.zero_()
    assert [copy.tolist() for copy in arrival()] == [[1.0] * 5, [0.0, 1.0, 2.0]]


def test_what_is_kept_is_pinned_in_pieces() -> None:
    """torch rounds each buffer up to a power of two: 1.3 GiB in one of them would take 2 GiB, 17 GiB 32."""
    gib = 1 << 30
    for count in (13, 170):
        state = [torch.empty(gib // 10, dtype=torch.uint8, device="meta") for _ in range(count)]
        kept = sum(tensor.nbytes for tensor in state)
        assert kept <= kept_bytes(state, pinned=False) < 1.001 * kept
        assert kept < kept_bytes(state, pinned=True) < 1.35 * kept
    state = [torch.empty(size, dtype=torch.uint8, device="meta") for size in (1, PIECE, PIECE + 1, 5, PIECE - 16, 1)]
    assert kept_bytes(state, pinned=True) == 16 + PIECE + 2 * PIECE + PIECE + 16, "a larger one is alone"


def test_pieces_give_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PIECE", 64)
    tensors = [torch.arange(number, dtype=torch.float32) for number in (3, 40, 0, 7, 5, 16, 1)]
    kept = keep_on_host(tensors)()
    assert len({copy.untyped_storage().data_ptr() for copy in kept}) > 3
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(kept, tensors, strict=True))


def test_keeping_nothing() -> None:
    assert keep_on_host([])() == []
    assert kept_bytes([], pinned=True) == 0
