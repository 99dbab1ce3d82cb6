"""What holds for the whole process, with each torch of the range."""

from __future__ import annotations

import warnings
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from gpt1_ds.engine.deepspeed.settings import set_timeouts


def test_timeouts_are_set_by_the_public_function_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, given = {"one": None, "another": None}, []

    def private(timeout: timedelta, group: str) -> None:  # as in torch 2.15
        warnings.warn("_set_pg_timeout is deprecated", FutureWarning, stacklevel=2)

    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_map=groups))
    monkeypatch.setattr(dist.distributed_c10d, "_set_pg_timeout", private)
    monkeypatch.setattr(dist, "set_timeout", lambda timeout, group: given.append((timeout, group)), raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_timeouts(timedelta(seconds=7))
    assert given == [(timedelta(seconds=7), group) for group in groups]
