"""Bias and GELU in Triton's interpreter, both forms, against torch's own in float64."""

from __future__ import annotations

import pytest
import torch

from gpt1_ds.model.kernels import gelu, gelu_triton

NEAR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@pytest.mark.parametrize(("rows", "features"), [(1, 32), (7, 100), (70, 300), (17, 768)])
@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_equals_float64(rows: int, features: int, tanh: bool, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(features)
    x, grad = (3 * torch.randn(rows, features, generator=draw).to(dtype) for _ in range(2))
    bias = torch.randn(features, generator=draw).to(dtype)
    out = torch.empty_like(x)
    gelu_triton.forward(x, bias, tanh, out)
    made = gelu._gradient_shapes(grad, x, bias, tanh)
    gelu_triton.backward(grad, x, bias, tanh, made)
    wide = [one.double().requires_grad_() for one in (x, bias)]
    wanted = torch.nn.functional.gelu(wide[0] + wide[1], approximate="tanh" if tanh else "none")
    found = (out, made[0], made[1].sum(0))
    for one, want in zip(found, (wanted, *torch.autograd.grad(wanted, wide, grad.double())), strict=True):
        assert float((one.double() - want.detach()).norm() / want.detach().norm()) <= NEAR[dtype]


def test_large_inputs_stay_finite() -> None:
    x = torch.tensor([[-3e4, -1e3, -40.0, 0.0, 40.0, 1e3, 3e4]])
    for tanh in (True, False):
        out, made = torch.empty_like(x), gelu._gradient_shapes(x, x, x[0], tanh)
        gelu_triton.forward(x, torch.zeros(7), tanh, out)
        gelu_triton.backward(torch.ones_like(x), x, torch.zeros(7), tanh, made)
        assert torch.allclose(out, x.relu(), atol=1e-30)
        assert torch.allclose(made[0], torch.tensor([[0.0, 0, 0, 0.5, 1, 1, 1]]), atol=1e-30)
