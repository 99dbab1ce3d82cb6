"""Masks: equal to their restatement in unsigned arithmetic, right in rate, uncorrelated, and keyed by what they
should.
"""

import numpy as np
import pytest
import torch

from gpt1_ds.model import dropout
from tests.helpers import reference


def mask(seed: int, step: int, site: int, rows: int, positions: int, channels: int, p: float) -> torch.Tensor:
    keys = torch.from_numpy(dropout.row_keys(seed, step, np.arange(rows)))
    return dropout.dropout(torch.ones(positions, rows, channels), keys, site, p) != 0


@pytest.mark.parametrize(("positions", "channels", "p"), [(5, 8, 0.1), (3, 7, 0.5), (1, 1, 0.9), (16, 33, 0.01)])
def test_equal_to_the_restatement(positions: int, channels: int, p: float) -> None:
    found = mask(2**63 - 1, 12345, 17, 4, positions, channels, p)
    for row in range(4):
        keys = reference.site_keys(reference.row_key(2**63 - 1, 12345, row), 17, 0)
        assert np.array_equal(found[:, row].numpy(), reference.keep(positions, channels, keys, p))


def test_the_kept_share_is_right() -> None:
    for p in (0.1, 0.5):
        kept = mask(1, 1, 0, 16, 256, 512, p).float()
        standard_error = (p * (1 - p) / kept.numel()) ** 0.5
        assert abs(1 - float(kept.mean()) - p) < 5 * standard_error + 2**-17
        assert dropout.scale(p) * (1 - dropout.threshold(p) / 65536) == pytest.approx(1, abs=1e-12)


def test_no_correlation_in_any_direction() -> None:
    base = mask(1, 1, 3, 8, 128, 256, 0.5).float() - 0.5
    others = {
        "next position": (base[:-1], base[1:]),
        "next row": (base[:, :-1], base[:, 1:]),
        "other half of the hash": (base[..., ::2], base[..., 1::2]),
        "next hash": (base[..., :-2], base[..., 2:]),
        "next site": (base, mask(1, 1, 4, 8, 128, 256, 0.5).float() - 0.5),
        "next step": (base, mask(1, 2, 3, 8, 128, 256, 0.5).float() - 0.5),
        "next seed": (base, mask(2, 1, 3, 8, 128, 256, 0.5).float() - 0.5),
    }
    for name, (one, other) in others.items():
        z = float((one * other).mean() / 0.25) * one.numel() ** 0.5
        assert abs(z) < 5, f"{name}: {z:.1f} standard errors"


def test_a_shard_of_the_sequence_has_its_part_of_the_mask() -> None:
    keys = torch.from_numpy(dropout.row_keys(1, 1, np.arange(2)))
    whole = dropout.dropout(torch.ones(8, 2, 6), keys, 5, 0.3)
    half = dropout.dropout(torch.ones(4, 2, 6), keys, 5, 0.3, first_position=4)
    assert torch.equal(whole[4:], half)


def test_off_is_the_same_tensor() -> None:
    x = torch.randn(2, 2, 2)
    assert dropout.dropout(x, torch.zeros(2, dtype=torch.int64), 0, 0.0) is x


@pytest.mark.parametrize(("positions", "channels", "first"), [(4, 8, 0), (5, 7, 3), (1, 1, 11), (9, 34, 1)])
def test_the_form_for_compilers_is_the_same_mask(
    positions: int, channels: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = torch.from_numpy(dropout.row_keys(3, 4, np.arange(3)))
    ones = torch.ones(positions, 3, channels)
    eager = dropout.dropout(ones, keys, 6, 0.3, first)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(dropout.dropout(ones, keys, 6, 0.3, first), eager)


def test_each_head_has_a_mask_of_its_own_wherever_it_lies() -> None:
    rows = torch.arange(5, dtype=torch.int64)
    whole = dropout.site_keys(rows, 3, 0, 4)
    for keys_BN in whole:
        assert len(torch.unique(keys_BN)) == keys_BN.numel(), "no two rows or heads alike"
    for all_heads, half in zip(whole, dropout.site_keys(rows, 3, 2, 2), strict=True):
        assert torch.equal(all_heads[:, 2:], half)
