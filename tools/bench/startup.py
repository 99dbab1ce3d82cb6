"""Row 16: what a person waits for: the help page, and the first optimizer step of the quickstart's model.

A first step is timed from the start of the process to the line that reports it, on two ranks like the quickstart: with
the blocks run as they are, compiled with an empty compiler cache (cold) and compiled with a filled one (warm). Beside
them stand Python itself and the imports without which nothing can train.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from gpt1_ds.data.sources import make_embedded_corpus
from tools.bench.rows import Options, Ratio, Row, ratio, take_turns
from tools.families import make_data

APART = True  # torch is imported by other processes
ROOT = Path(__file__).parents[2]
PYTHON, HELP, TORCH, LIBRARIES = "python -c pass", "gpt1-ds --help", "import torch", "import torch, deepspeed, megatron"
STEP, COLD, WARM = "first step", "first step, compiled, cold", "first step, compiled, warm"
IMPORTS = "import torch, deepspeed, deepspeed.runtime.pipe.engine, megatron.core.tensor_parallel"
RANKS, SHORT_RUNS = 2, 5  # runs of what takes a moment; their median counts


def measure(options: Options) -> Row:
    with tempfile.TemporaryDirectory() as name:
        program = _Program(Path(name), options.quick)
        short = 1 if options.quick else SHORT_RUNS
        turns = {
            PYTHON: partial(program.seconds, "-c", "pass", runs=short),
            HELP: partial(program.seconds, "-P", "-m", "gpt1_ds", "--help", runs=short),
            TORCH: partial(program.seconds, "-c", "import torch"),
            STEP: partial(program.first_step, "off"),
        }
        if not options.quick:
            turns[LIBRARIES] = partial(program.seconds, "-c", IMPORTS)
        compiles = shutil.which("g++") is not None and not options.quick
        if compiles:  # in this order: the cold one fills the cache
            turns |= {COLD: program.cold, WARM: partial(program.first_step, "on")}
        series = take_turns(turns, options.rounds, warm_up=not options.quick)
    ratios = [
        Ratio(f"{name}, s", series[name], most, at_least=False)
        for name, most in ((HELP, 0.2), (STEP, 6.0), (COLD, 12.0), (WARM, 6.0))
        if name in series
    ]
    if LIBRARIES in series:
        ratios.append(Ratio("first step / import of its libraries", ratio(series, STEP, LIBRARIES), at_least=False))
    return Row(
        number=16,
        title="start-up",
        unit="s",
        series=series,
        ratios=ratios,
        configuration={"model": "pretrain/tiny_cpu", "ranks": RANKS},
        note="" if compiles else "compiled steps are left out: they need g++, and --quick has no time for them",
    )


class _Program:
    """Runs Python in a folder with a small dataset, as a person would."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder, self.cache, self.numbers = folder, folder / "compiled", itertools.count()
        self.data = make_data(folder / "text") if quick else folder / "text" / "data"
        make_embedded_corpus(self.data)  # unless it is there
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.cache)

    def seconds(self, *arguments: str, runs: int = 1) -> float:
        """From start to end; the median of some runs."""
        found = []
        for _ in range(runs):
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, *arguments], cwd=self.folder, env=self.environment, capture_output=True, check=True
            )
            found.append(time.perf_counter() - began)
        return statistics.median(found)

    def cold(self) -> float:
        shutil.rmtree(self.cache, ignore_errors=True)
        return self.first_step("on")

    def first_step(self, compile_: str) -> float:
        arguments = ["pretrain", "-c", "pretrain/tiny_cpu", "--nproc", str(RANKS), f"data.path={self.data}"]
        arguments += [
            f"run.name={next(self.numbers)}",
            f"train.compile={compile_}",
            "train.steps=1",
            "train.log_every=1",
        ]
        began, seconds = time.perf_counter(), None
        command = [sys.executable, "-P", "-m", "gpt1_ds", *arguments]
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if seconds is None and line.startswith("step"):
                    seconds = time.perf_counter() - began
        assert seconds is not None, f"{' '.join(command)}:\n{''.join(said)}"
        return seconds
