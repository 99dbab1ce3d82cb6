"""`doctor`: what is installed, what will and will not work on this machine, and what to do about it; with --gpu the
self-proof on the GPUs of this host.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import shutil
import signal
import socket
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.commands.file_checks import output_problems
from gpt1_ds.commands.parser import Command
from gpt1_ds.common.errors import EXIT_USAGE, ConfigError, LaunchError, TrainingError, one_line
from gpt1_ds.common.files import explain, scratch_folder, this_node
from gpt1_ds.common.versions import installed
from gpt1_ds.diagnostics.report import Ledger, Record, Report, read_report, report_name, verdict
from gpt1_ds.launcher import libraries

if TYPE_CHECKING:
    from gpt1_ds.config import Config

PROOF = "gpt1_ds.diagnostics.self_proof"  # the module whose functions run on the ranks

SECONDS = 100  # that the self-proof may take
LAST = 0.2  # of them are for the ranks that come last

REQUIRED = {
    "torch": "2.11",
    "deepspeed": "0.19.8",
    "megatron-core": "0.16.1",
    "omegaconf": "2.4",
    "sentencepiece": "0.2.3",
    "tokenizers": "0.22",
    "safetensors": "0.5",
    "rich": "13",
}
ON_REQUEST = {"wandb": ("0.31", "tracking.wandb, which is off unless it is asked for")}  # comes with gpt1-ds
OPTIONAL = {  # what a package is for, and the extra of gpt1-ds that brings it
    "matplotlib": ("figures of reports", "report"),
    "jinja2": ("report pages", "report"),
    "scipy": ("scaling fits, correlations of tasks", "scaling"),
    "scikit-learn": ("scores of tasks", "finetune"),
    "sacrebleu": ("BLEU of written texts", "finetune"),
    "rouge-score": ("ROUGE of written texts", "finetune"),
    "ftfy": ("GPT-1's own tokenizer of 2018", "openai"),
    "spacy": ("GPT-1's own tokenizer of 2018", "openai"),
    "datasets": ("tasks and text from the datasets library, Parquet, remote files", "data"),
    "pandas": ("gpt1_ds.read_metrics", "notebooks"),
    "tensorboard": ("tracking.tensorboard", "tracking"),
    "trackio": ("tracking.trackio", "tracking"),
    "wandb-workspaces": ("tracking workspace", "tracking"),
    "transformers": ("comparison with Hugging Face", "hub"),
    "huggingface_hub": ("uploads of exported models", "hub"),
    "lm_eval": ("tasks of lm-evaluation-harness", "lm-eval"),
    "submitit": ("runs queued from Python", "launch"),
    "s3fs": ("checkpoint.mirror and text in S3", "store"),
}


Finding = tuple[str, str]  # one line: (ok, note for a choice or a limit, or problem: training will not work; the text)


def _add_options(parser: argparse.ArgumentParser) -> None:
    proof = (
        "prove on the GPUs of this host, in two minutes, what training promises; turns on there what only saves time"
    )
    parser.add_argument("--gpu", action="store_true", help=proof)
    out = "with --gpu: where the result goes (default: gpu-check-HOST-DATE.json)"
    parser.add_argument("--out", metavar="FILE", help=out)


def _run(options: argparse.Namespace) -> int:
    Path.cwd()  # in a folder that was deleted MKL would end the process when torch is first used
    ConfigError.raise_all(output_problems("--out", options.out))
    if options.gpu:
        return check_gpus(Path(options.out) if options.out else None)
    if options.out:
        raise ConfigError(f"--out={options.out}: only the self-proof writes a file; add --gpu")
    return report()


def check_gpus(out: Path | None) -> int:
    """Runs the self-proof on every GPU of this host; returns the exit code. Raises ConfigError where there is none."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ConfigError(
            f"doctor --gpu: torch {torch.__version__} sees no GPU here; install the CUDA build (bash tools/setup.sh "
            "--gpu), or run it on a node that has GPUs"
        )
    libraries.load()
    from gpt1_ds.diagnostics.self_proof import configuration

    return prove(configuration(count), count, out)


def prove(config: Config, ranks: int, out: Path | None, limit: float = SECONDS) -> int:
    """Runs the self-proof of `config` on local ranks, within `limit` seconds, and returns the exit code. On GPUs it is
    kept whether all of it holds: training asks for that.
    """
    from gpt1_ds.diagnostics.self_proof import DETERMINISTIC, today

    host, until = this_node(), time.time() + limit
    path = (out or Path(report_name(host, today()))).absolute()
    Ledger(path, shown=None).write(Report(host, today(), ranks, {}, {}, [], ["all checks"]))
    ledger = Ledger(path, until - LAST * limit, [DETERMINISTIC])
    _, problem = _ranks("prove", (config, 0, ledger), ranks, until)
    found = read_report(path)
    done = Ledger(path, shown=len(found.records) + bool(found.toolchain))
    if problem:
        found = found.with_records([Record("the ranks of the self-proof", False, note=problem)])
    if time.time() + LAST * limit / 2 <= until:
        done.write(found, found.not_reached)
        more, problem = _ranks("prove_determinism", (config,), ranks, until)
        if problem:  # torch refuses operators that do not repeat
            more = [Record(DETERMINISTIC, False, note=problem)]
        missing = [name for name in found.not_reached if name != DETERMINISTIC]
        found = replace(found.with_records(more), not_reached=missing)
    done.write(found, found.not_reached)
    print(*verdict(found), *_kept(found), path, sep="\n")
    return 0 if found.holds else EXIT_USAGE


def _ranks(function: str, arguments: tuple[Any, ...], ranks: int, until: float) -> tuple[Any, str]:
    """Returns (what rank 0 gives, why the ranks ended early; empty where they did not). They are killed where they do
    not end in time: whoever hangs in the driver reacts to no other signal.
    """
    from gpt1_ds.launcher import launch

    timer = threading.Timer(max(1.0, until - time.time()), launch.signal_ranks, (signal.SIGKILL,))
    timer.daemon = True
    timer.start()
    try:
        return launch.run(f"{PROOF}:{function}", arguments, ranks)[0], ""
    except (LaunchError, TrainingError) as error:
        late = "no end in time, and killed: the first of the checks that were not reached was under way"
        return None, str(error).splitlines()[-1] if time.time() < until else late
    finally:
        timer.cancel()


def _kept(found: Report) -> Iterator[str]:
    """Keeps whether this toolchain is proven, and yields what that means for training here. Does nothing on CPUs."""
    from gpt1_ds.model import proof  # with torch, which no other check needs

    tools = found.toolchain
    if not tools.get("capability"):
        return
    key = proof.named_toolchain(tools["device"], tools["capability"], tools["cuda"])
    what = "Triton kernels, CUDA graphs and overlapped reductions"
    if found.holds:
        kept = proof.keep(key, found.world)
        ranks = "any number of ranks" if found.world > 1 else "one rank"
        yield f"{what} are on from now on for this GPU and these versions on {ranks}: {kept}"
    else:
        proof.forget(key)
        again = "; run it once more: what was compiled is kept" * (not found.failing)
        yield f"{what} stay off{again}"


def report() -> int:
    """Prints every finding; the exit code is 0 when training works here, else 2."""
    findings = list(_packages())
    if not any(level == "problem" for level, _ in findings):
        for check in (_reference, _devices, _backends, _compiler, _collective):
            findings += _guarded(check)
    free = shutil.disk_usage(".").free / 2**30
    where = f"free in this folder (host {socket.gethostname()})"
    findings.append(("ok" if free > 5 else "note", f"{free:.1f} GiB {where}"))
    for level, text in findings:
        print(f"{level:8}{text}")
    works = not any(level == "problem" for level, _ in findings)
    print("training works here" if works else "training will not work until the problems are fixed")
    return 0 if works else 2


def _guarded(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:
        explained = explain(error) if isinstance(error, OSError) else None
        return [("problem", f"{check.__name__.strip('_')}: {explained or f'{type(error).__name__}: {error}'}")]


def _packages() -> Iterator[Finding]:
    yield "ok", f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    for name, least in REQUIRED.items():
        yield _package(name, least, "problem")
    for name, (least, purpose) in ON_REQUEST.items():
        level, text = _package(name, least, "note")
        yield level, text.replace(name, f"{name}, for {purpose},", 1) if level == "note" else text
    for name, (purpose, extra) in OPTIONAL.items():
        version = installed(name)
        if version is None:
            yield "note", f"no {name}, for {purpose}: pip install 'gpt1-ds[{extra}]'"
        else:
            yield "ok", f"{name} {version}, for {purpose} (extra {extra})"


def _package(name: str, least: str, level: str) -> Finding:
    """Returns what is wrong with a package, as a finding of this level, or that nothing is."""
    version = installed(name)
    if version is None:
        return level, f"{name} is missing: pip install '{name}>={least}'"
    if _numbers(version) < _numbers(least):
        return level, f"{name} {version} is too old: pip install '{name}>={least}'"
    return "ok", f"{name} {version}"


def _reference() -> Iterator[Finding]:
    from gpt1_ds.config.presets import SHIPPED

    yield "ok", f"every configuration key and preset: {SHIPPED / 'README.md'}"


def _devices() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0))
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            memory = torch.cuda.get_device_properties(index).total_memory / 2**30
            yield "ok", f"GPU {index}: {torch.cuda.get_device_name(index)}, {memory:.0f} GiB"
    else:
        yield "note", f"no GPU: training runs on {cores} CPU cores over gloo"
        yield "note", _cpu_precisions()
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is None:
        yield "ok", f"threads: {cores} cores are shared out over local ranks (OMP_NUM_THREADS overrides)"
    else:
        yield "ok", f"threads: {threads} per rank (OMP_NUM_THREADS)"
    load = os.getloadavg()[0]  # processes that ran or wanted to, over the last minute
    if threads != "1" and "OMP_WAIT_POLICY" not in os.environ and cores > 1 and load > cores / 4:
        yield (
            "note",
            f"other programs use this machine (load {load:.1f} on {cores} cores): the threads of a rank that wait for "
            "one another keep a core busy; OMP_WAIT_POLICY=passive or OMP_NUM_THREADS=1 is faster",
        )
    yield _allocator()


def _cpu_precisions() -> str:
    """Returns how fast matrix products in bf16 are on this CPU beside those in fp32: measured, a second of work."""
    import torch

    from gpt1_ds.model.products import linear, note

    def seconds(dtype: torch.dtype) -> float:
        x_TD, weight_OD = (torch.randn(rows, 768, dtype=dtype, requires_grad=True) for rows in (512, 3072))
        start = time.perf_counter()
        linear(x_TD, weight_OD).sum().backward()
        return time.perf_counter() - start

    pairs = [(seconds(torch.float32), seconds(torch.bfloat16)) for _ in range(4)][1:]  # the first ones warm up
    fp32, bf16 = (min(times) for times in zip(*pairs, strict=True))
    how = " (computed in fp32)" if note("bf16", torch.device("cpu")) else ""
    return f"CPU kernels: {torch.backends.cpu.get_cpu_capability()}: bf16 is {fp32 / bf16:.1f} x as fast as fp32{how}"


def _allocator() -> Finding:
    if preloaded := os.environ.get("LD_PRELOAD"):
        return "note", f"memory: LD_PRELOAD={preloaded}; nothing was found to be faster than glibc as set here"
    if platform.libc_ver()[0] != "glibc":
        return "note", "memory: not glibc, which training tells to keep freed memory: steps may be slower"
    return "ok", "memory: glibc, set to keep what is freed (as fast as tcmalloc and jemalloc when measured)"


def _backends() -> Iterator[Finding]:
    import torch
    import torch.distributed as dist

    libraries.load()
    from deepspeed.accelerator import get_accelerator

    from gpt1_ds.engine.deepspeed import register

    for package, (known, differing) in register.compared().items():
        if differing:
            what = f"differs from {known}, which was read, in {', '.join(differing)}"
            yield "problem", f"{package} {what}: install {package}=={known}, or set train.deepspeed_patches=none"
        else:
            yield "ok", f"{package}: every function that is relied on is as in {known}"
    yield "ok", f"DeepSpeed runs on {get_accelerator()._name}; no extension of it is compiled"
    if torch.cuda.is_available() and not dist.is_nccl_available():
        yield "problem", "this torch has no NCCL: install a CUDA build of torch"
    attention = "exact; fused too" if torch.cuda.is_available() else "exact (fused needs CUDA)"
    yield ("ok", f"attention: {attention}; sequence parallelism: {'yes' if torch.cuda.is_available() else 'CUDA only'}")


def _compiler() -> Iterator[Finding]:
    """Compiles and loads what needs a compiler, the headers of Python and a place where something may be executed."""
    compiler = os.environ.get("CXX", "g++")
    with scratch_folder() as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text("#include <Python.h>\n", encoding="utf-8")
        command = [compiler, "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source), "-o", str(library)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
            ctypes.CDLL(str(library))
        except (OSError, subprocess.CalledProcessError) as error:
            said = one_line(getattr(error, "stderr", error))
            yield "note", f"C++ compiler {compiler}: train.compile=on is not possible ({said}); everything else works"
        else:
            yield "ok", f"C++ compiler {shutil.which(compiler)}: train.compile=on is possible"


def _collective() -> Iterator[Finding]:
    from gpt1_ds.launcher import launch

    total = launch.run("gpt1_ds.commands.doctor:add_up", (), 2)
    level = "ok" if total == [3.0, 3.0] else "problem"
    yield level, f"two local ranks meet and add up over gloo: {total[0]:g}"


def add_up() -> float:
    """Returns 1 + 2 by an all-reduce over the ranks; run on two local ranks."""
    import torch
    import torch.distributed as dist

    from gpt1_ds.engine.process_groups import connect

    connect(60, torch.device("cpu"))
    value = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(value)
    dist.destroy_process_group()
    return float(value)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())


COMMAND = Command("doctor", "what will and will not work here", _run, _add_options)
