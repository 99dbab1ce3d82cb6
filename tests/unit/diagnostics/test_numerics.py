"""A device that computes otherwise than the CPU is found. Here the device is a CPU with one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, get_args

import pytest
import torch

from gpt1_ds.config import ModelConfig, load
from gpt1_ds.diagnostics import numerics
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model import dropout, transformer
from gpt1_ds.model.kernels import attention

CPU = torch.device("cpu")


def model() -> ModelConfig:
    return load([], ["model.width=64", "model.heads=2", "model.context=70", "model.layers=1"]).model


def spoil_mask(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The mask of this number that is drawn has one wrong element."""
    keep, drawn = dropout.keep_mask, count(1)

    def wrong_once(*arguments):  # type: ignore[no-untyped-def]
        mask = keep(*arguments)
        if next(drawn) == number:
            mask.view(-1)[0] = 1 - mask.view(-1)[0]
        return mask

    monkeypatch.setattr(dropout, "keep_mask", wrong_once)


@pytest.mark.parametrize("check", [numerics.hidden_masks, numerics.attention_masks])
def test_the_same_masks(check, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    record = check(CPU)
    assert (record.ok, record.value, record.limit, record.note) == (True, 0, 0, "")
    spoil_mask(monkeypatch, 2)  # the first one of the device: the CPU draws before it
    record = check(CPU)
    assert (record.ok, record.value) == (False, 1)
    assert "report it with this file" in record.note


def test_masks_of_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, calls = dropout.is_kept, []

    def inverted_second(*arguments):  # type: ignore[no-untyped-def]
        calls.append(arguments)
        return kept(*arguments) ^ (len(calls) == 2)

    monkeypatch.setattr(dropout, "is_kept", inverted_second)
    record = numerics.hidden_masks(CPU)
    assert (record.ok, record.value) == (False, 2 * 4099)


def test_the_mask_that_attention_shows_is_its_mask() -> None:
    """What is found by its results is what the hash says: nothing above the diagonal, a tenth below it."""
    dropped_GSS = numerics._dropped(129, CPU)
    assert dropped_GSS.shape == (6, 129, 129)
    assert dropped_GSS.triu(1).sum() == 6 * 129 * 128 // 2
    assert 0.08 < dropped_GSS.tril().float().sum() / (6 * 129 * 130 / 2) < 0.12


@pytest.mark.parametrize("kind", ["exact", "fused"])
def test_a_block_in_both_precisions(kind: str) -> None:
    group = connect_alone()
    for precision, factor in numerics.FACTORS.items():
        record = numerics.block(CPU, model(), group, precision, kind)
        assert record.ok, record
        assert record.value is not None
        assert record.limit is not None
        assert record.value < record.limit * 2 / factor, "a CPU is hardly further off than a CPU"
        assert record.name == f"block, {kind} attention, {precision}: relative error"
    assert 1e-3 < record.value < record.limit < 0.05, "bf16 was computed in bf16"


@pytest.mark.parametrize(("precision", "part"), [("fp32", 3e-6), ("bf16", 0.05), ("fp32", float("nan"))])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_block_that_is_wrong(precision: str, part: float, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel of the device off by a little, or not finite: in its result, or in a gradient alone."""
    group, right = connect_alone(), attention.exact_of_parts
    assert numerics.block(CPU, model(), group, precision, "exact").ok, "the reference is computed, and kept"

    def off(parts, *rest):  # type: ignore[no-untyped-def]
        if way == "forward":
            return right(parts, *rest) * (1 + part)
        (qkv_3GSH,) = parts
        of_v_3111 = torch.tensor([0.0, 0.0, part]).view(3, 1, 1, 1).to(qkv_3GSH.dtype)
        return right((qkv_3GSH + (of_v_3111 * (qkv_3GSH - qkv_3GSH.detach())),), *rest)

    monkeypatch.setattr(transformer.attention, "exact_of_parts", off)
    record = numerics.block(CPU, model(), group, precision, "exact")
    assert not record.ok, record
    assert "; " in record.note, "what to do"


@pytest.mark.parametrize(("precision", "part"), [("fp32", 1e-4), ("bf16", 0.1)])
@pytest.mark.parametrize("name", ["attention.qkv.bias", "mlp.up.bias", "mlp.down.bias", "attention_norm.weight"])
def test_a_gradient_that_is_off_alone(name: str, precision: str, part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    group, build = connect_alone(), numerics._built
    assert numerics.block(CPU, model(), group, precision, "exact").ok

    def scaled(*arguments):  # type: ignore[no-untyped-def]
        made = build(*arguments)
        dict(made.named_parameters())[name].register_hook(lambda gradient: gradient * (1 + part))
        return made

    monkeypatch.setattr(numerics, "_built", scaled)
    record = numerics.block(CPU, model(), group, precision, "exact")
    assert not record.ok
    assert record.note.startswith(f"of {name}, ")


def test_every_tensor_over_its_limit_is_named() -> None:
    errors = {"output": 0.1, "input": 0.2, "bias": 1e-9}
    record = numerics._judged("block", errors, dict.fromkeys(errors, 1e-6), "fp32")
    assert not record.ok
    assert "input" in record.note
    assert "output (0.1, limit 8e-06)" in record.note
    assert "bias" not in record.note


def test_one_element_of_a_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    group = connect_alone()
    assert numerics.block(CPU, model(), group, "fp32", "exact").ok
    spoil_mask(monkeypatch, 1)
    assert not numerics.block(CPU, model(), group, "fp32", "exact").ok


def test_a_gradient_that_cancels_is_judged_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second token takes away what the one before gave: nothing is left of the last bias but rounding."""
    draw = torch.randn

    def cancelling(*shape, **named):  # type: ignore[no-untyped-def]
        drawn = draw(*shape, **named)
        if drawn.dim() == 3:
            drawn[1::2] = -drawn[::2]
        return drawn

    monkeypatch.setattr(torch, "randn", cancelling)
    case = numerics._case.__wrapped__(model(), connect_alone(), "fp32")
    bias = case.want["mlp_norm.bias"]
    assert torch.linalg.vector_norm(bias) < 1e-6 * case.scales["mlp_norm.bias"]
    assert case.scales["mlp_norm.bias"] > 10, "about the root of the tokens times the root of the channels"
    assert case.errors({**case.want, "mlp_norm.bias": bias + 1e-6})["mlp_norm.bias"] < 1e-6


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_loss(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group, right = connect_alone(), numerics.head_loss
    record = numerics.loss(CPU, 64, 300, group, precision)
    assert record.ok, record

    def off(*arguments):  # type: ignore[no-untyped-def]
        return right(*arguments) * (1.05 if precision == "bf16" else 1 + 1e-5)

    monkeypatch.setattr(numerics, "head_loss", off)
    assert not numerics.loss(CPU, 64, 300, group, precision).ok


@pytest.mark.slow
def test_a_compiled_block() -> None:
    record = numerics.block(CPU, model(), connect_alone(), "fp32", "exact", compiled=True)
    assert record.ok, record
    assert record.name == "block, exact attention, fp32, compiled: relative error"
    assert record.value, "compiled code rounds otherwise: it is what ran"


@pytest.mark.parametrize("seen", get_args(numerics.Seen))
def test_attention_of_other_families(seen: numerics.Seen) -> None:
    for precision in numerics.FACTORS:
        record = numerics.attention_of(CPU, 3, 16, 70, seen, precision)
        assert record.ok, record
        assert record.name == f"exact attention of {seen}, {precision}: relative error"
        assert record.value
        assert record.limit
        assert record.value < record.limit


@pytest.mark.parametrize("precision", numerics.FACTORS)
@pytest.mark.parametrize(
    ("seen", "key", "change"),
    [
        ("documents", "bounds_G2S", lambda bounds_G2S: bounds_G2S + (bounds_G2S == 70 // 3).int()),
        ("padded rows and a bias", "until_G", lambda until_G: until_G - 1),
        ("padded rows and a bias", "bias_NST", lambda bias_NST: bias_NST * 1.1),
        ("padded rows and a bias", "causal", lambda _: True),
    ],
)
def test_attention_that_sees_otherwise(
    seen: numerics.Seen, key: str, change: Callable[[Any], Any], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document, or a row, that begins or ends one key further; another bias; no keys after the query."""
    right = attention.exact_of_parts
    assert numerics.attention_of(CPU, 3, 16, 70, seen, precision).ok, "the reference is computed, and kept"
    monkeypatch.setattr(
        attention,
        "exact_of_parts",
        lambda parts, drop, scores: right(parts, drop, replace(scores, **{key: change(getattr(scores, key))})),
    )
    assert not numerics.attention_of(CPU, 3, 16, 70, seen, precision).ok
