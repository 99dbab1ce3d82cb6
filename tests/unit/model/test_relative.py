from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gpt1_ds.model import relative
from gpt1_ds.model.embeddings import rows_at


def of_tensor(distance_D: Tensor, bidirectional: bool) -> Tensor:
    """Buckets by torch's own search."""
    starts = torch.tensor(relative.EDGES[bidirectional])
    if not bidirectional:
        return torch.bucketize((-distance_D).clamp(min=0), starts, right=True)
    return (distance_D > 0).long() * 16 + torch.bucketize(distance_D.abs(), starts, right=True)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_those_between_the_edges(bidirectional: bool) -> None:
    distance_D = torch.arange(-300, 301)
    found = relative.bucket(distance_D, bidirectional)
    assert torch.equal(found, of_tensor(distance_D, bidirectional))
    assert found.unique().tolist() == [one for one in range(32) if one != 16 or not bidirectional]


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 7), (3, 9), (1, 1), (64, 64)])
def test_what_a_gpu_compiles_is_the_same(queries: int, keys: int) -> None:
    """To the bit; the gradients, which are added up in another order, to rounding."""
    torch.manual_seed(0)
    one_ND = torch.randn(3, queries + keys - 1, dtype=torch.float64, requires_grad=True)
    other_ND = one_ND.detach().clone().requires_grad_()
    wanted, found = one_ND.unfold(1, keys, 1).flip(1), relative.diagonals(other_ND, queries, keys)
    assert torch.equal(found, wanted)
    assert found.shape == (3, queries, keys)
    weight = torch.randn_like(wanted)
    (wanted * weight).sum().backward()
    (found * weight).sum().backward()
    torch.testing.assert_close(other_ND.grad, one_ND.grad, atol=1e-12, rtol=1e-12)


def test_a_position_of_many_documents_loses_no_gradient() -> None:
    """A sum of 4096 numbers of one sign in bf16 stays at 256 times the first of them."""
    weight_SD = torch.zeros(4, 2, dtype=torch.bfloat16, requires_grad=True)
    rows_at(weight_SD, torch.zeros(64, 64, dtype=torch.long)).sum().backward()
    assert weight_SD.grad is not None
    assert weight_SD.grad[:, 0].tolist() == [4096, 0, 0, 0]
