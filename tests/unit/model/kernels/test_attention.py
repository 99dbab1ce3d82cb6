"""The blocked kernel against plain softmax attention in float64, forward and backward, with and without dropout."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpt1_ds.architecture import blocking
from gpt1_ds.model import dropout
from gpt1_ds.model.caches import Columns, KeyValueCache
from gpt1_ds.model.kernels import attention
from gpt1_ds.model.kernels.inputs import Drop, Scores
from tests.helpers import reference


def plain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    masks: np.ndarray | None,
    p: float,
    until: torch.Tensor | None = None,
    number: torch.Tensor | None = None,
) -> torch.Tensor:
    """`number` [G, S] are those of documents that do not see one another."""
    positions = q.shape[1]
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    hidden = torch.ones(positions, positions).triu(1).bool().expand(len(q), -1, -1)
    if until is not None:
        hidden = hidden & (torch.arange(positions) >= until[:, None, None])
    if number is not None:
        hidden = hidden | (number[:, None] != number[..., None])
    weights = scores.masked_fill(hidden, -np.inf).softmax(-1)
    if masks is not None:
        weights = weights * torch.from_numpy(masks) * dropout.scale(p)
    return weights @ v


def documents(positions: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(their numbers [G, S], bounds int32 [G, 2, S]) of a row of one-token documents at first, and of another row."""
    number_BS = torch.stack([torch.arange(positions).clamp(max=3), torch.arange(positions) // 50])
    begin, end = (torch.searchsorted(number_BS, number_BS, side=side) for side in ("left", "right"))
    return number_BS.repeat_interleave(heads, 0), torch.stack([begin, end], 1).int().repeat_interleave(heads, 0)


@pytest.mark.parametrize("seen", ["causal", "everything", "padded", "prefix", "documents", "prefix documents"])
@pytest.mark.parametrize("positions", [1, 7, 128, 129, 300])
@pytest.mark.parametrize("p", [0.0, 0.1])
def test_forward_and_backward(positions: int, p: float, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocking.ATTENTION_SCORES, "cpu", 1 << 14)  # several blocks of heads even at this size
    torch.manual_seed(positions)
    q, k, v = (torch.randn(6, positions, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    keys = torch.from_numpy(dropout.row_keys(3, 4, np.arange(2)))
    mask, masks = None, None
    if p:
        key, second = dropout.site_keys(keys, 5, first_head=6, heads=3)
        limit, scale = dropout.threshold(p), dropout.scale(p)
        mask = Drop(key.flatten(), second.flatten(), limit, scale, (positions + 1) // 2)
        row_keys = [reference.row_key(3, 4, row) for row in range(2)]
        shape = (positions, positions)
        masks = np.stack(
            [reference.keep(*shape, reference.site_keys(r, 5, 6 + h), p) for r in row_keys for h in range(3)]
        )
    lengths = {"everything": (positions, positions), "padded": (positions, max(1, positions // 3)), "prefix": (0, 2)}
    lengths["prefix documents"] = (2, positions - positions // 3)
    until = torch.tensor(lengths[seen], dtype=torch.int32).repeat_interleave(3) if seen in lengths else None
    number, bounds = documents(positions, 3) if "documents" in seen else (None, None)
    wanted = plain(q, k, v, masks, p, until, number)
    gradient = torch.randn_like(wanted)
    wanted_gradients = torch.autograd.grad(wanted, (q, k, v), gradient)
    q32, k32, v32 = (x.detach().float().requires_grad_() for x in (q, k, v))
    found = attention.exact(q32, k32, v32, mask, Scores(until_G=until, bounds_G2S=bounds))
    found_gradients = torch.autograd.grad(found, (q32, k32, v32), gradient.float())
    assert torch.allclose(found.double(), wanted, atol=2e-6)
    for got, want in zip(found_gradients, wanted_gradients, strict=True):
        assert torch.allclose(got.double(), want, atol=1e-5)


def test_bf16_is_as_close_as_bf16_can_be() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 200, 16) for _ in range(3))
    found = attention.exact(q.bfloat16(), k.bfloat16(), v.bfloat16(), None)
    assert (found.float() - plain(q, k, v, None, 0)).abs().max() < 0.05


@pytest.mark.parametrize("width", [16, 32])  # whose roots are and are not exact in bf16
def test_bf16_with_dropout_is_as_close_both_ways(width: int) -> None:
    torch.manual_seed(0)
    keys = torch.from_numpy(dropout.row_keys(3, 4, np.arange(1)))
    key, second = dropout.site_keys(keys, 5, heads=2)
    mask = Drop(key.flatten(), second.flatten(), dropout.threshold(0.1), dropout.scale(0.1), 65)
    half = [torch.randn(2, 130, width).bfloat16().requires_grad_() for _ in range(3)]
    wide = [one.detach().double().requires_grad_() for one in half]
    row = reference.row_key(3, 4, 0)
    masks = np.stack([reference.keep(130, 130, reference.site_keys(row, 5, head), 0.1) for head in range(2)])
    gradient = torch.randn(2, 130, width).bfloat16()
    wanted = plain(*wide, masks, 0.1)
    found = attention.exact(*half, mask)
    wanted_gradients = torch.autograd.grad(wanted, wide, gradient.double())
    found_gradients = torch.autograd.grad(found, half, gradient)
    for got, want in zip((found, *found_gradients), (wanted, *wanted_gradients), strict=True):
        assert (got.double() - want).norm() < 2**-7 * want.norm()


def test_cached_attention_continues_where_it_stopped() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 9, 8) for _ in range(3))
    whole = attention.exact(q, k, v, None)
    assert torch.allclose(attention.cached(q[:, 5:], k, v), whole[:, 5:], atol=1e-6)
    assert torch.allclose(attention.cached(q[:, :5], k[:, :5], v[:, :5]), whole[:, :5], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_written_in_place_gives_the_bits_of_one_that_grows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    columns = Columns(12)
    cache, at = KeyValueCache(columns), 0
    q, k, v = (torch.randn(3, 12, 16).to(dtype) for _ in range(3))
    for positions in (5, 1, 1, 4, 1):
        here = slice(at, at := at + positions)
        keys, values = cache.extend(torch.stack([k[:, here], v[:, here]]))
        columns.advance(positions)
        assert torch.equal(keys, k[:, :at])
        assert torch.equal(values, v[:, :at])
        visible = torch.ones(positions, at, dtype=torch.bool).tril(at - positions)
        query, key, value = (x.contiguous().unsqueeze(0) for x in (q[:, here], k[:, :at], v[:, :at]))
        wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        assert torch.equal(attention.cached(q[:, here], keys, values), wanted.squeeze(0))
        assert keys.untyped_storage().data_ptr() == cache.both_2GTH.untyped_storage().data_ptr()  # type: ignore[union-attr]


def test_fused_without_dropout_is_the_same() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 9, 8) for _ in range(3))
    assert torch.allclose(attention.fused(q, k, v, 0.0), attention.exact(q, k, v, None), atol=1e-6)
    until = torch.tensor([9, 4, 1, 0], dtype=torch.int32)
    fused = attention.fused(q, k, v, 0.0, Scores(until_G=until))
    assert torch.allclose(fused, attention.exact(q, k, v, None, Scores(until_G=until)), atol=1e-6)
    assert not torch.allclose(fused, attention.exact(q, k, v, None), atol=1e-6)
    scores = Scores(bounds_G2S=documents(9, 2)[1])
    assert torch.allclose(attention.fused(q, k, v, 0.0, scores), attention.exact(q, k, v, None, scores), atol=1e-6)


def test_fused_dropout_repeats_with_its_seed_alone() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 9, 8) for _ in range(3))
    first, again = attention.fused(q, k, v, 0.5, seed=7), attention.fused(q, k, v, 0.5, seed=7)
    assert torch.equal(first, again)
    assert not torch.equal(first, attention.fused(q, k, v, 0.5, seed=8))


def test_torchs_counter_sees_its_flops() -> None:
    q, k, v = (torch.randn(6, 40, 8, requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        attention.exact(q, k, v, None).sum().backward()
    assert counter.get_total_flops() == 7 * 2 * 6 * 40 * 40 * 8, "two products, then five"


@pytest.mark.parametrize("positions", [5, 140])  # one block of rows, and two
def test_cross_attention_with_a_bias(positions: int) -> None:
    """Keys that no query sees have gradients of 0, whatever lay in memory before."""
    torch.manual_seed(0)
    keys, until = 16, torch.tensor([9, 4], dtype=torch.int32).repeat_interleave(3)
    q = torch.randn(6, positions, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(6, keys, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bias = torch.randn(3, positions, keys, dtype=torch.float64, requires_grad=True)
    scores = 0.7 * q @ k.transpose(1, 2) + bias.repeat(2, 1, 1)
    wanted = scores.masked_fill(torch.arange(keys) >= until[:, None, None], -np.inf).softmax(-1) @ v
    gradient = torch.randn_like(wanted)
    single = [one.detach().float().requires_grad_() for one in (q, k, v, bias)]
    torch.full((6, keys, 8), torch.nan)  # what is freed here may be what the kernel is given
    found = attention.exact(*single[:3], None, Scores(0.7, until, False, single[3]))
    assert torch.allclose(found.double(), wanted, atol=2e-6)
    for got, want in zip(
        torch.autograd.grad(found, single, gradient.float()),
        torch.autograd.grad(wanted, (q, k, v, bias), gradient),
        strict=True,
    ):
        assert torch.allclose(got.double(), want, atol=1e-5)
    again = attention.exact(*single[:3], None, Scores(0.7, until, False, single[3]))
    (of_keys,) = torch.autograd.grad(again.sum(), single[1])
    assert not of_keys[:3, 9:].any()
    assert not of_keys[3:, 4:].any()


def test_a_decoder_sees_its_document_in_the_memory() -> None:
    """Padding of the memory is of no document, and a document of which nothing is there gives 0 and has no gradient."""
    torch.manual_seed(0)
    until = torch.tensor([7, 4], dtype=torch.int32).repeat_interleave(2)
    begin, end = torch.tensor([[0, 0, 3, 7], [2, 2, 4, 0]]), torch.tensor([[3, 3, 7, 9], [4, 9, 9, 2]])
    bounds = torch.stack([begin, end], 1).int().repeat_interleave(2, 0)
    q = torch.randn(4, 4, 8, requires_grad=True)
    k, v = (torch.randn(4, 9, 8, requires_grad=True) for _ in range(2))
    seen = (torch.arange(9) >= bounds[:, 0, :, None]) & (torch.arange(9) < bounds[:, 1, :, None])
    seen = seen & (torch.arange(9) < until[:, None, None])
    scores = q.double() @ k.double().transpose(1, 2) / 8**0.5
    wanted = scores.masked_fill(~seen, -np.inf).softmax(-1).nan_to_num(0.0) @ v.double()
    found = attention.exact(q, k, v, None, Scores(until_G=until, causal=False, bounds_G2S=bounds))
    assert torch.allclose(found.double(), wanted, atol=2e-6)
    assert not found[:2, 3].any()
    assert not found[2:, 2].any()
    gradient = torch.randn_like(found)
    for got, want in zip(
        torch.autograd.grad(found, (q, k, v), gradient),
        torch.autograd.grad(wanted, (q, k, v), gradient.double()),
        strict=True,
    ):
        assert torch.allclose(got, want, atol=1e-5)
