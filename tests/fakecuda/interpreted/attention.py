"""The attention kernels in Triton's interpreter (helpers/interpreter.py starts this file): mask bits equal the CPU's,
numbers those of float64, for every visibility, bias, head width and odd length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from gpt1_ds.model import dropout
from gpt1_ds.model.kernels import attention_cpu
from gpt1_ds.model.kernels import attention_triton as attention
from gpt1_ds.model.kernels.inputs import Drop, Scores, attention_results, each_of, empty_gradients
from tests.helpers import reference

SEED, STEP = 2**63 - 1, 12345


@pytest.fixture(autouse=True)
def products_of_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.7's interpreter keeps bf16 as uint16, and multiplies matrices of those integers."""

    def widened(x: TensorHandle) -> TensorHandle:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *others: object) -> TensorHandle:
        return product(self, widened(a), widened(b), *others)

    product = InterpreterBuilder.create_dot
    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def drop_of(rows: int, site: int, first_head: int, heads: int, keys: int, probability: float) -> Drop:
    """As model/transformer.py makes it."""
    keys_B = torch.from_numpy(dropout.row_keys(SEED, STEP, np.arange(rows)))
    key_BN, second_BN = dropout.site_keys(keys_B, site, first_head, heads)
    limit, scale = dropout.threshold(probability), dropout.scale(probability)
    return Drop(key_BN.flatten(), second_BN.flatten(), limit, scale, (keys + 1) // 2)


def restated(rows: int, site: int, first_head: int, heads: int, queries: int, keys: int, p: float) -> Tensor:
    """bool [G, S, T], by the restatement in numpy that the CPU's masks are tested with."""
    masks = [
        reference.keep(queries, keys, reference.site_keys(reference.row_key(SEED, STEP, row), site, head), p)
        for row in range(rows)
        for head in range(first_head, first_head + heads)
    ]
    return torch.from_numpy(np.stack(masks))


def bits(drop: Drop, queries: int, keys: int) -> Tensor:
    """bool [G, S, T]: the mask that the forward kernel applies, read off by values that mark one key each."""
    groups, width = len(drop.key_G), 16 if keys <= 16 else 128
    q, k = torch.zeros(groups, queries, width), torch.zeros(groups, keys, width)
    everything = Scores(1.0, torch.full((groups,), keys, dtype=torch.int32), causal=False)
    parts = []
    for first in range(0, keys, width):
        v = torch.eye(keys)[:, first : first + width]
        v = torch.nn.functional.pad(v, (0, width - v.shape[1])).expand(groups, -1, -1).contiguous()
        parts.append(attention.forward(q, k, v, everything, drop)[0])
    return torch.cat(parts, -1)[..., :keys] > 0


@pytest.mark.parametrize("site", range(37))
def test_masks_of_every_site(site: int) -> None:
    found = bits(drop_of(2, site, 0, 3, 7, 0.1), 5, 7)
    assert torch.equal(found, restated(2, site, 0, 3, 5, 7, 0.1))


@pytest.mark.parametrize(
    ("queries", "keys", "p"), [(1, 1, 0.5), (3, 2, 0.9), (65, 65, 0.1), (63, 131, 0.01), (2, 300, 0.1)]
)
def test_masks_of_odd_lengths(queries: int, keys: int, p: float) -> None:
    assert torch.equal(bits(drop_of(1, 4, 0, 2, keys, p), queries, keys), restated(1, 4, 0, 2, queries, keys, p))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_masks_of_tensor_parallel_ranks(ranks: int) -> None:
    heads = 4 // ranks
    parts = [bits(drop_of(2, 4, rank * heads, heads, 9, 0.3), 9, 9).view(2, heads, 9, 9) for rank in range(ranks)]
    assert torch.equal(torch.cat(parts, 1).flatten(0, 1), restated(2, 4, 0, 4, 9, 9, 0.3))


@dataclass(frozen=True)
class Case:
    """Shapes, what is visible (`until` of each row, `documents` of so many keys), and whether scores have a bias."""

    queries: int
    keys: int
    width: int
    causal: bool = True
    until: tuple[int, ...] | None = None
    biased: bool = False
    documents: tuple[int, ...] | None = None
    probability: float = 0.1
    heads: int = 2
    rows: int = 2

    def __str__(self) -> str:
        seen = ("causal " if self.causal else "") + ("" if self.until is None else f"until {self.until} ")
        seen += "" if self.documents is None else f"documents {self.documents} "
        return f"{seen}{'biased ' if self.biased else ''}{self.queries}x{self.keys}x{self.width}"


CASES = [
    Case(1, 1, 32),
    Case(2, 2, 16, probability=0.0),
    Case(65, 65, 64),
    Case(130, 130, 32, rows=1),
    Case(230, 230, 64, rows=1, heads=1),
    Case(33, 33, 128, biased=True),
    Case(70, 70, 32, until=(0, 41)),  # prefix
    Case(66, 66, 64, causal=False, until=(66, 13)),  # bidirectional, the second row padded
    Case(70, 70, 32, causal=False, until=(70, 70), biased=True),
    Case(33, 97, 64, causal=False, until=(97, 5)),  # cross
    Case(97, 33, 128, causal=False, until=(33, 32)),
    Case(67, 129, 32, causal=False, until=(0, 100), biased=True),  # the first row sees nothing
    Case(40, 40, 24, until=(3, 7), biased=True),
    Case(20, 20, 96, rows=3),
    Case(150, 150, 64, documents=(1, 70, 3, 76)),
    Case(70, 70, 32, until=(9, 41), documents=(30, 33), biased=True),  # prefix
    Case(70, 70, 32, causal=False, until=(70, 33), documents=(34, 20), biased=True),
    Case(97, 70, 64, causal=False, until=(70, 33), documents=(34, 20)),  # cross; of the last document there is nothing
]


@dataclass(frozen=True)
class Numbers:
    """Arguments of one call, laid out as model/transformer.py has them, and the gradient of its result."""

    parts: tuple[Tensor, ...]
    grad: Tensor
    scores: Scores
    drop: Drop | None

    def forward(self) -> tuple[Tensor, Tensor]:
        return attention.forward(*each_of(self.parts), self.scores, self.drop)

    def backward(self, out: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
        """Gradients of q, k, v and of the bias, laid out as the operation's."""
        gradients = each_of(empty_gradients(self.parts))
        inputs = self.grad, *each_of(self.parts), out, kept, self.scores, self.drop
        return *gradients, attention.backward(*inputs, gradients)


def numbers(case: Case, dtype: torch.dtype, factor: float | None = None) -> Numbers:
    torch.manual_seed(case.queries)
    groups = case.rows * case.heads

    def heads_first(length: int, parts: int) -> Tensor:
        x = torch.randn(length, case.rows, case.heads, parts, case.width).to(dtype)
        return x.permute(3, 1, 2, 0, 4).flatten(1, 2)

    parts: tuple[Tensor, ...] = (heads_first(case.keys, 3),)
    if case.queries != case.keys:
        parts = heads_first(case.queries, 1), heads_first(case.keys, 2)
    bias = torch.randn(case.heads, case.queries, case.keys).to(dtype) if case.biased else None
    grad = torch.randn(groups, case.queries, case.width).to(dtype)
    until = None
    if case.until is not None:
        until = torch.tensor(case.until, dtype=torch.int32).repeat_interleave(case.heads)
    drop = None
    if case.probability:
        drop = drop_of(case.rows, 4, 0, case.heads, case.keys, case.probability)
    return Numbers(parts, grad, Scores(factor, until, case.causal, bias, bounds_of(case)), drop)


def bounds_of(case: Case) -> Tensor | None:
    """int32 [G, 2, S]: the documents of the second row are in another order. Where queries are not the keys, each
    query's document is that of the key of its number, and later queries' one has no key.
    """
    if case.documents is None:
        return None
    rows = []
    for lengths in (case.documents, case.documents[::-1]):
        last = max(case.queries, case.keys) - sum(lengths)
        ends = torch.tensor([*lengths, last]).cumsum(0).repeat_interleave(torch.tensor([*lengths, last]))
        begins = ends - torch.tensor([*lengths, last]).repeat_interleave(torch.tensor([*lengths, last]))
        rows.append(torch.stack([begins, ends])[:, : case.queries].clamp(max=case.keys))
    return torch.stack(rows).int().repeat_interleave(case.heads, 0)


def plain(case: Case, x: Numbers, factor: float) -> tuple[Tensor, ...]:
    """Output and gradients in float64, of the same rounded numbers."""
    inputs = (*each_of(x.parts), x.scores.bias_NST)
    leaves = [one.double().requires_grad_() for one in inputs if one is not None]
    q, k, v, *bias = leaves
    query, key = torch.arange(case.queries)[:, None], torch.arange(case.keys)[None]
    seen = (key <= query) & case.causal
    if x.scores.until_G is not None:
        seen = seen | (key < x.scores.until_G[:, None, None])
    if x.scores.bounds_G2S is not None:
        begin_GS1, end_GS1 = x.scores.bounds_G2S[..., None].unbind(1)
        seen = seen & (key >= begin_GS1) & (key < end_GS1)
    scores = factor * q @ k.transpose(1, 2)
    if bias:
        scores = scores + bias[0].repeat(case.rows, 1, 1)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num(0.0)  # a query that sees no key gives 0
    if x.drop is not None:
        kept = restated(case.rows, 4, 0, case.heads, case.queries, case.keys, case.probability)
        weights = weights * kept * x.drop.scale
    out = weights @ v
    return out.detach(), *torch.autograd.grad(out, leaves, x.grad.double())


def error(found: Tensor, wanted: Tensor, least: float) -> float:
    assert not found.isnan().any()
    return float((found.double() - wanted).norm()) / max(float(wanted.norm()), least)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    x, factor = numbers(case, dtype), case.width**-0.5
    out, lse = x.forward()
    found = x.backward(out, lse)
    least = float(x.grad.norm()) if case.keys == 1 else 1e-30  # the weight of one key alone has no gradient
    for got, wanted in zip((out, *found), plain(case, x, factor), strict=False):
        assert got is not None
        assert got.dtype == dtype
        assert error(got, wanted, least) <= tolerance
    assert bool(found[3].numel()) == (x.scores.bias_NST is not None)
    assert lse.dtype == torch.float32


def test_results_repeat_and_lie_as_the_block_reads_them() -> None:
    case = Case(70, 70, 32, until=(0, 41), biased=True)
    x = numbers(case, torch.bfloat16, factor=0.2)
    once, again = (x.forward() for _ in range(2))
    assert torch.equal(once[0], again[0])
    assert once[0].permute(1, 0, 2).is_contiguous(), "[S, B, width] is a view"


def test_a_nan_is_not_hidden() -> None:
    x = numbers(Case(5, 5, 16), torch.float32, factor=1.0)
    _, k, _ = each_of(x.parts)
    k[0, 2] = math.nan
    out, lse = replace(x, drop=None).forward()
    assert out[0, 2:].isnan().all()
    assert lse[0, 2:].isnan().all()
    assert not out[0, :2].isnan().any()
    assert not out[1:].isnan().any()


def test_widths() -> None:
    assert [width for width in (8, 15, 16, 24, 33, 80, 128, 130) if attention.supports(width, torch.bfloat16)] == [
        *(16, 24, 80, 128),
    ]
    assert not attention.supports(64, torch.float64)


@pytest.mark.parametrize("until", [None, (37, 20)])
@pytest.mark.parametrize("probability", [0.0, 0.1])
def test_as_the_model_calls_it(probability: float, until: tuple[int, int] | None) -> None:
    """The operation's two forms: Triton's and the CPU's."""
    x = numbers(Case(37, 37, 32, until=until, probability=probability, heads=3), torch.float32)
    q, k, v = each_of(x.parts)
    out, kept = x.forward()
    found = (out, *x.backward(out, kept))
    gradients = each_of(empty_gradients(x.parts))
    attention_cpu.backward(x.grad, q, k, v, x.scores, x.drop, gradients)
    wanted = attention_cpu.forward(q, k, v, x.scores, x.drop), *gradients
    for one, want in zip(found[:4], wanted[:4], strict=True):
        assert float((one - want).norm() / want.norm()) < 1e-6
    for one, like in zip((out, kept), attention_results(q), strict=True):
        assert (one.shape, one.stride(), one.dtype) == (like.shape, like.stride(), like.dtype)
    of_qkv = found[1].as_strided((37, 2, 3, 3, 32), (2 * 3 * 3 * 32, 3 * 3 * 32, 3 * 32, 32, 1))
    for one, part in zip(found[1:4], of_qkv.unbind(3), strict=True):
        assert torch.equal(part.permute(1, 2, 0, 3).flatten(0, 1), one), (
            "the gradient of the product, [S, B, N x 3 x H]"
        )
