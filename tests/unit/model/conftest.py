"""A GPU that is not there, for what is asked about it before anything is computed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from gpt1_ds.model import kernels, proof


@pytest.fixture
def some_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An H100 by its capability, with a triton; nothing was decided or printed about it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    proof.decide(None)
    yield
    proof.decide(None)
    kernels.why_not.cache_clear()
    kernels._say_once.cache_clear()
