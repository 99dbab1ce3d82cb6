"""Import torch, DeepSpeed and Megatron-core quietly, once, and with DeepSpeed's compiler traps defused.

`deepspeed.init_distributed` would build a C++ extension on a CPU host: slow, impossible without a compiler, and hanging
for ever on a lock file that a killed build has left. Nothing here needs it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from gpt1_ds.common import memory

_LOADING = threading.Lock()


def load() -> None:
    """Imports the three libraries. Takes seconds the first time, nothing afterwards; other threads wait for the first
    one, because standard output, descriptor 2 and the garbage collector belong to all of them. Raises FileNotFoundError
    where the current folder was deleted: MKL would end the process without a word.
    """
    Path.cwd()
    with _LOADING:
        _load_once()
    # torch 2.13 renamed the collectives that DeepSpeed and Megatron call; nobody here can act on it
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")


@cache
def _load_once() -> None:
    # DeepSpeed asks for GPUs when it is imported; asking CUDA itself would make forking ranks from here impossible
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # gloo's chatter while ranks meet
    with warnings.catch_warnings(), quiet(), _silenced(), _unlogged(), contextlib.ExitStack() as counting:
        warnings.simplefilter("ignore")  # missing Apex and Transformer Engine, which are not used
        counting.enter_context(counted_devices())
        import deepspeed
        import deepspeed.ops
        import deepspeed.runtime.pipe.engine

        with _nothing_compiled(), _no_trackers():
            import deepspeed.module_inject.auto_ep_layer  # every engine asks whether its model has experts
            import deepspeed.runtime.zero.muon.original_muon  # and whether its optimizer is this one
            import megatron.core.tensor_parallel
        from deepspeed.utils import logger
    freeze()
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.propagate = True  # into the rank's log file
    logger.addHandler(logging.NullHandler())  # and nowhere where there is none
    accelerator = deepspeed.accelerator.get_accelerator()
    if accelerator.device_name() == "cpu":
        with quiet(), _silenced():  # the table is made when it is first read, by trying out compilers
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        accelerator.is_fp16_supported = lambda: True  # torch computes it without units for it, too, if slowly
    megatron.core.tensor_parallel.layers.linear_with_grad_accumulation_and_async_allreduce.warned = True


def freeze() -> None:
    """Hides what is imported from the garbage collector. DeepSpeed collects up to six times for an optimizer: 0.3 s
    each while it looks at the libraries'. What is frozen is never freed: frozen once more, the engine of the last run
    would stay in memory.
    """
    gc.freeze()
    triton = sys.modules.get("triton._C.libtriton")
    if triton and any(type(one).__module__ == "nanobind" for one in vars(triton).values()):
        atexit.register(gc.unfreeze)  # nanobind, in Triton from 3.9 on, writes a line for each type that is not freed


@contextlib.contextmanager
def counted_devices() -> Iterator[None]:
    """Where NVML does not answer, torch asks CUDA how many GPUs there are, and no fork of a process that has asked can
    use one. While the block runs, the files of the devices are counted instead, unless this process uses CUDA.
    """
    import torch

    real = torch.cuda._device_count_nvml
    files = sum(os.access(file, os.R_OK | os.W_OK) for file in memory.DEVICES.glob("nvidia[0-9]*"))
    if not files or not torch.cuda._is_compiled() or real() >= 0:
        yield
        return

    def count() -> int:
        if torch.cuda.is_initialized():
            return -1  # CUDA itself is asked
        visible = torch.cuda._parse_visible_devices()
        return min(files, sum(isinstance(one, str) or 0 <= one < files for one in visible))

    torch.cuda._device_count_nvml = count
    try:
        yield
    finally:
        torch.cuda._device_count_nvml = real


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Sends what a library prints to standard output into the log."""
    with contextlib.redirect_stdout(_LogWriter()):  # type: ignore[type-var]
        yield


@contextlib.contextmanager
def _nothing_compiled() -> Iterator[None]:
    """Megatron and DeepSpeed mark functions, which are not used here, for torch.compile; that alone loads the whole
    compiler, a third of what starting costs.
    """
    import torch

    real = torch.compile
    torch.compile = lambda function=None, **_: function or (lambda inner: inner)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = real


@contextlib.contextmanager
def _no_trackers() -> Iterator[None]:
    """Megatron imports trackers for servers and timers, which are not used here: a tenth of what starting costs."""
    names = [name for name in ("wandb", "torch.utils.tensorboard") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]  # None: importing it says that it is not there
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """DeepSpeed logs to standard output before its logger can be set not to."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:  # else nobody would see what went wrong
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """DeepSpeed tries out compilers while it is imported; their complaints are written straight to descriptor 2."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


class _LogWriter:
    def write(self, text: str) -> None:
        if text.strip():
            logging.getLogger("libraries").info(text.rstrip())

    def flush(self) -> None:
        pass
