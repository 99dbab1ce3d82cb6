"""Attack what reads strangers' files: honest inputs are changed at random, and signed again as an attacker would.

    python tools/fuzz_hostile.py [--mutations 1000] [--seed 1] [--only KIND ...]

Kinds: the files of a checkpoint (manifest, index, state, configuration, tokenizer), a folder of transformers, a
dataset, one with sentence borders, the records of a run folder; links, folders, devices and pipes in the place of a
file; a tokenizer's pattern that backtracks, and a Parquet file that is one long text many times. Each answer must be
one refusal for people (UserError) or a result; within a second of this process's time (a page of a run: ten); with at
most 300 MiB more memory. Prints a line per kind and one per failure; exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.launcher import libraries

libraries.load()

import numpy as np  # noqa: E402 - libraries come first
import torch  # noqa: E402

from gpt1_ds.architecture.architecture import architecture  # noqa: E402
from gpt1_ds.checkpoint import manifest  # noqa: E402
from gpt1_ds.checkpoint.whole import task_of  # noqa: E402
from gpt1_ds.commands import checkpoint as command  # noqa: E402
from gpt1_ds.common.errors import ConfigError, UserError  # noqa: E402
from gpt1_ds.common.files import explain, write_json  # noqa: E402
from gpt1_ds.common.rundir import RunDir  # noqa: E402
from gpt1_ds.config import ModelConfig, load, to_yaml, world_problems  # noqa: E402
from gpt1_ds.data.build import build  # noqa: E402
from gpt1_ds.data.loader import BatchShape  # noqa: E402
from gpt1_ds.data.python_docs import documents  # noqa: E402
from gpt1_ds.data.segments import Segment, SourceFile  # noqa: E402
from gpt1_ds.data.sources import open_data  # noqa: E402
from gpt1_ds.data.tables import PARQUET, read_table  # noqa: E402
from gpt1_ds.data.tokenizers.imports import import_hf  # noqa: E402
from gpt1_ds.data.tokenizers.registry import load_tokenizer  # noqa: E402
from gpt1_ds.data.tokenizers.train import train_tokenizer  # noqa: E402
from gpt1_ds.data.verify import verify_dataset as verify_data  # noqa: E402
from gpt1_ds.evaluation.generate import generate  # noqa: E402
from gpt1_ds.evaluation.load import checkpoint_config, load_checkpoint  # noqa: E402
from gpt1_ds.evaluation.sampling import Sampling  # noqa: E402
from gpt1_ds.interop import hf_export, hf_import, imported  # noqa: E402
from gpt1_ds.interop.imported import Imported  # noqa: E402
from gpt1_ds.objectives.pretraining import pretraining_objective  # noqa: E402
from gpt1_ds.plan.report import describe  # noqa: E402
from gpt1_ds.report.page import write_report  # noqa: E402
from gpt1_ds.slurm import status as job_status  # noqa: E402
from gpt1_ds.tracking.record import (  # noqa: E402
    EvalRecord,
    MetricsFile,
    TaskRecord,
    TrainRecord,
    merge,
    read_metrics,
)
from tools import hostile_inputs as hostile  # noqa: E402
from tools.families import FAMILIES  # noqa: E402
from tools.memory import memory_now, memory_peak, reserved  # noqa: E402

SECONDS, MIB = 1.0, 300
STUCK = 120  # seconds on the clock after which the stacks are written and the process ends
MODEL = ModelConfig(layers=2, width=8, heads=2, context=16, vocab_multiple=4)
TOKENIZER = Path(__file__).parents[1] / "tests/golden/format-1/step-00000003/tokenizer"
Mutate = Callable[[random.Random, Path], None]
Examine = Callable[[Path], object]


@dataclass(frozen=True)
class Kind:
    """Describes an attack: an honest folder, how it is changed, and what reads it then."""

    honest: str
    mutate: Mutate
    examine: Examine
    seconds: float = SECONDS


@dataclass
class Tally:
    """Sums up one kind: counts, the worst answer, and what broke."""

    refused: int = 0
    accepted: int = 0
    seconds: float = 0.0
    mib: float = 0.0
    failures: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = f"{self.refused:5} refused {self.accepted:5} accepted"
        return f"{counts}  worst {self.seconds:5.2f} s {self.mib:6.1f} MiB  {len(self.failures)} failures"


def use_checkpoint(folder: Path) -> None:
    options = argparse.Namespace(checkpoint=folder)
    command.inspect(options)
    command.verify(options)
    task_of(folder, manifest.read(folder))
    config = checkpoint_config(folder)
    ConfigError.raise_all(world_problems(config, 1))
    list(describe(config, 1, config.model.vocab_size, None))
    loaded = load_checkpoint(folder, "cpu")
    generate(loaded, "The time.\n Ab", Sampling(tokens=3))
    loaded.tokenizer.token_bytes()
    hf_export.export(folder, folder.parent / "exported")


def use_hf(folder: Path) -> None:
    found, tokenizer = hf_import.read(folder, None, folder.parent)
    imported.publish(found, tokenizer, folder.parent / "imported", {})


def use_dataset(folder: Path) -> None:
    with contextlib.suppress(UserError):  # a run may read what `data verify` refuses
        verify_data(folder)
    read_dataset(folder, [])


def use_sentences(folder: Path) -> None:
    with contextlib.suppress(UserError):
        verify_data(folder)
    refusals = []
    for family in ("bert", "roberta"):
        try:
            read_dataset(folder, FAMILIES[family])
        except UserError as refusal:
            refusals += refusal.problems
    if refusals:
        raise UserError(*refusals)


def read_dataset(folder: Path, words: Sequence[str]) -> None:
    """Batches at the beginning and far away, as a run makes them."""
    small = ["model.context=16", "model.width=8", "model.heads=2"]
    config = load([], [f"data.path={folder}", *small, *words])
    data = open_data(config)
    objective = pretraining_objective(config, data.tokenizer, data.data_hash)
    for step in (1, 2, 10**6):
        rows = data.training.batch(step, BatchShape(4, 2)).micro_batches[0]
        objective.batch(rows)
        data.training.documents(step, rows.row_B.tolist(), BatchShape(4, 2))
    if data.held_out is not None:
        list(data.held_out.batches(BatchShape(4, 2), 2))


def use_run(folder: Path) -> None:
    """What reads a run folder: its page, its state as a job, its metrics as a table."""
    refusals = []
    for read in (
        lambda: write_report([folder]),
        lambda: list(job_status.describe(RunDir(folder))),
        partial(read_metrics, folder),
    ):
        try:
            read()
        except UserError as refusal:
            refusals += refusal.problems
        except OSError as error:  # as cli.py answers it
            if (told := explain(error)) is None:
                raise
            refusals += told.problems
    if refusals:
        raise UserError(*refusals)


def use_pattern(folder: Path) -> None:
    tokenizer, _ = import_hf(folder, folder.parent / "imported")
    tokenizer.encode("a" * 60 + "!")


def use_table(folder: Path) -> None:
    """Reads the rows and encodes none: encoding takes its time for every byte of an honest text, too."""
    path = folder / "bomb.parquet"
    found = path.stat()
    file = SourceFile(str(path), path.name, PARQUET, "", found.st_size, found.st_mtime_ns)
    for _ in read_table(Segment(file, 0, file.size)):
        pass


KINDS = {
    "manifest": Kind("checkpoint", hostile.mutate_manifest, use_checkpoint),
    "index": Kind("checkpoint", hostile.mutate_index, use_checkpoint),
    "state": Kind("checkpoint", hostile.mutate_state, use_checkpoint),
    "configuration": Kind("checkpoint", hostile.mutate_configuration, use_checkpoint),
    "tokenizer": Kind("checkpoint", hostile.mutate_tokenizer, use_checkpoint),
    "transformers": Kind("transformers", hostile.mutate_hf, use_hf),
    "dataset": Kind("dataset", hostile.mutate_dataset, use_dataset),
    "sentences": Kind("sentences", hostile.mutate_dataset, use_sentences),
    "run": Kind("run", hostile.mutate_run, use_run, seconds=10.0),
    "places": Kind("checkpoint", hostile.mutate_places, use_checkpoint),
    "data places": Kind("dataset", hostile.mutate_places, use_dataset),
    "pattern": Kind("pattern", hostile.backtracking_tokenizer, use_pattern),
    "dictionary": Kind("prose", hostile.dictionary_bomb, use_table),
}


def make_honest(folder: Path) -> None:
    """A checkpoint of random weights, the same as a folder of transformers, and a dataset; each is accepted."""
    numbers = np.random.default_rng(0)
    shapes = architecture(MODEL, load_tokenizer(TOKENIZER).vocab_size).shapes
    weights = {name: torch.from_numpy(numbers.standard_normal(shape, np.float32)) for name, shape in shapes.items()}
    imported.publish(
        Imported("hf", folder, MODEL, weights), TOKENIZER, folder / "checkpoint", {"code": "0", "version": "0"}
    )
    hf_export.export(folder / "checkpoint", folder / "transformers")
    text = folder / "text"
    text.mkdir()
    for number in range(6):
        (text / f"{number}.txt").write_text(f"This is the text of document {number}.\n" * 20)
    build([text], TOKENIZER, folder / "dataset", workers=1, validation=0.3)
    prose = folder / "prose"
    prose.mkdir()
    for number, document in zip(range(10), documents(), strict=False):
        (prose / f"{number}.txt").write_text(document[:3000])
    train_tokenizer([prose], folder / "masks", 400, masks=True)
    build([prose], folder / "masks", folder / "sentences", workers=1, validation=0.3, split_sentences=True)
    make_run(folder / "run")
    make_pattern(folder / "pattern")
    for kind in KINDS.values():
        if kind.examine is use_table:  # its honest folder has no table yet
            continue
        with tempfile.TemporaryDirectory() as scratch:
            kind.examine(Path(shutil.copytree(folder / kind.honest, Path(scratch) / "input")))


def make_run(folder: Path) -> None:
    """The records of a run of two steps, as a run writes them."""
    run_dir = RunDir(folder)
    run_dir.create()
    (folder / "config.yaml").write_text(to_yaml(load([], ["model.vocab_size=500", "run.name=run"])))
    metrics = MetricsFile(run_dir.metrics)
    speed = {"tokens_per_second": 9.5, "step_seconds": 0.5, "data_wait_seconds": 0.0, "model_tflops_per_rank": 0.1}
    for step in (1, 2):
        loss = {"loss": 6.0 / step, "learning_rate": 1e-3, "grad_norm": 1.0, "applied": True, "mfu": None}
        metrics.add(
            TrainRecord(step=step, tokens=9 * step, peak_memory_gib=0.2, batch_fingerprint="0f", **loss, **speed)
        )
        metrics.add(EvalRecord(step=step, tokens=9 * step, loss=5.0, perplexity=148.4, bits_per_byte=2.0))
        metrics.add(TaskRecord(step=step, tokens=9, task="cola", split="dev", loss=1.0, metrics={"mcc": 0.1}))
    run_dir.add_event("started", step=0, steps=2, ranks=1, job="")
    run_dir.add_event("saved", step=2)
    run_dir.add_event("stopped", step=2, reason="done", seconds=1.5)
    (folder / "samples.jsonl").write_text(json.dumps({"step": 2, "prompt": "It", "text": "It was"}) + "\n")
    metrics_of = {"accuracy": 0.6, "low": 0.5, "high": 0.7, "control": 0.5, "chance": 0.5, "examples": 10}
    held_out = {"loss": 5.0, "perplexity": 148.4, "bits_per_byte": 2.0}
    for task, scores in {"zero-shot/blimp": metrics_of, "zero-shot/lambada": metrics_of, "held-out": held_out}.items():
        merge(run_dir.evaluation, {"task": task, "split": "test", "step": 2, "metrics": scores})
    write_json(run_dir.environment, {"host": "here", "torch": torch.__version__, "variables": {}, "gpt1_ds": {}})


def make_pattern(folder: Path) -> None:
    """A tokenizer.json of letters."""
    folder.mkdir()
    vocabulary = {"[UNK]": 0, "a": 1, "!": 2}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    special = {"id": 0, "content": "[UNK]", "special": True, "single_word": False, "lstrip": False}
    added = [{**special, "rstrip": False, "normalized": False}]
    body = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None}
    body |= {"pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(body))
    settings = {"unk_token": "[UNK]", "eos_token": "[UNK]", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def attack(kind: Kind, honest: Path, draw: random.Random, tally: Tally, name: str) -> None:
    """One mutation: the answer goes into `tally`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(honest / kind.honest, Path(scratch) / "input"))
        kind.mutate(draw, folder)
        before, began = memory_now(), time.process_time()
        problem = ""
        try:
            kind.examine(folder)
            tally.accepted += 1
        except UserError as refusal:
            tally.refused += 1
            if any("\n" in line or len(line) > 2000 for line in refusal.problems):
                problem = f"not one line each: {refusal.problems!r:.200}"
        except OSError as error:  # as cli.py answers it
            tally.refused += 1
            problem = "" if explain(error) else f"no words for {error!r:.200}"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of a library is no Exception
            where = traceback.extract_tb(error.__traceback__)[-1]
            problem = (
                f"{type(error).__name__}: {error!s:.120} at {where.filename.rpartition('gpt1_ds/')[2]}:{where.lineno}"
            )
        seconds, mib = time.process_time() - began, (memory_peak() - before) / 2**20
    tally.seconds, tally.mib = max(tally.seconds, seconds), max(tally.mib, mib)
    if seconds > kind.seconds or mib > MIB:
        problem = f"{problem} took {seconds:.2f} s and {mib:.0f} MiB"
    if problem:
        tally.failures += (f"{name}: {problem}",)


def fuzz(mutations: int, seed: int, only: Sequence[str] = ()) -> dict[str, Tally]:
    """`mutations` in all, as many of each kind. The same seed makes the same mutations, kind by kind."""
    names = [name for name in KINDS if not only or name in only]
    tallies = {name: Tally() for name in names}
    faulthandler.register(signal.SIGALRM, chain=True)
    with tempfile.TemporaryDirectory() as place:
        honest = Path(place)
        with contextlib.redirect_stdout(io.StringIO()):
            make_honest(honest)
            for number in range(mutations):
                name = names[number % len(names)]
                signal.alarm(STUCK)
                draw = random.Random(f"{seed} {name} {number}")
                attack(KINDS[name], honest, draw, tallies[name], f"{name} {number}")
        signal.alarm(0)
    return tallies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], choices=KINDS)
    options = parser.parse_args()
    limit = reserved() + (4 << 30)  # a bomb must not take the machine along
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.set_num_threads(1)
    tallies = fuzz(options.mutations, options.seed, options.only)
    for name, tally in tallies.items():
        print(f"{name:14}{tally}")
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
