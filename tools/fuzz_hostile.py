"""Attack what reads strangers' files: honest inputs are changed at random, and signed again as an attacker would.

    python tools/fuzz_hostile.py [--mutations 1000] [--seed 1] [--only KIND ...]

Kinds: the files of a checkpoint (manifest, index, state, configuration, tokenizer), a folder of transformers, a
dataset, one with sentence borders. Each answer must be one refusal for people (UserError) or a result; within a second
of this process's time; with at most 300 MiB more memory. Prints a line per kind and one per failure; exits with 1 if
there was one.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.launcher import libraries

libraries.load()

import numpy as np  # noqa: E402 - libraries come first
import torch  # noqa: E402

from gpt1_ds.architecture.architecture import architecture  # noqa: E402
from gpt1_ds.checkpoint import manifest  # noqa: E402
from gpt1_ds.commands import checkpoint as command  # noqa: E402
from gpt1_ds.common.errors import ConfigError, UserError  # noqa: E402
from gpt1_ds.config import ModelConfig, load, world_problems  # noqa: E402
from gpt1_ds.data.build import build  # noqa: E402
from gpt1_ds.data.loader import BatchShape  # noqa: E402
from gpt1_ds.data.python_docs import documents  # noqa: E402
from gpt1_ds.data.sources import open_data  # noqa: E402
from gpt1_ds.data.tokenizers.registry import load_tokenizer  # noqa: E402
from gpt1_ds.data.tokenizers.train import train  # noqa: E402
from gpt1_ds.data.verify import verify as verify_data  # noqa: E402
from gpt1_ds.evaluation.generate import generate  # noqa: E402
from gpt1_ds.evaluation.load import checkpoint_config, load_checkpoint, task_of  # noqa: E402
from gpt1_ds.evaluation.sampling import Sampling  # noqa: E402
from gpt1_ds.interop import huggingface, imported  # noqa: E402
from gpt1_ds.interop.imported import Imported  # noqa: E402
from gpt1_ds.objectives.pretraining import pretraining_objective  # noqa: E402
from gpt1_ds.plan.report import describe  # noqa: E402
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
    """What is attacked: an honest folder, how it is changed, and what reads it then."""

    honest: str
    mutate: Mutate
    examine: Examine


@dataclass
class Tally:
    """Of one kind: counts, the worst answer, and what broke."""

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
    huggingface.export(folder, folder.parent / "exported")


def use_hf(folder: Path) -> None:
    found, tokenizer = huggingface.read(folder, None, folder.parent)
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
        data.training.documents(step, rows.row_B.tolist(), 4)
    if data.held_out is not None:
        data.held_out.batches(BatchShape(4, 2), 2)


KINDS = {
    "manifest": Kind("checkpoint", hostile.mutate_manifest, use_checkpoint),
    "index": Kind("checkpoint", hostile.mutate_index, use_checkpoint),
    "state": Kind("checkpoint", hostile.mutate_state, use_checkpoint),
    "configuration": Kind("checkpoint", hostile.mutate_configuration, use_checkpoint),
    "tokenizer": Kind("checkpoint", hostile.mutate_tokenizer, use_checkpoint),
    "transformers": Kind("transformers", hostile.mutate_hf, use_hf),
    "dataset": Kind("dataset", hostile.mutate_dataset, use_dataset),
    "sentences": Kind("sentences", hostile.mutate_dataset, use_sentences),
}


def make_honest(folder: Path) -> None:
    """A checkpoint of random weights, the same as a folder of transformers, and a dataset; each is accepted."""
    numbers = np.random.default_rng(0)
    shapes = architecture(MODEL, load_tokenizer(TOKENIZER).vocab_size).shapes
    weights = {name: torch.from_numpy(numbers.standard_normal(shape, np.float32)) for name, shape in shapes.items()}
    imported.publish(
        Imported("hf", folder, MODEL, weights), TOKENIZER, folder / "checkpoint", {"code": "0", "version": "0"}
    )
    huggingface.export(folder / "checkpoint", folder / "transformers")
    text = folder / "text"
    text.mkdir()
    for number in range(6):
        (text / f"{number}.txt").write_text(f"This is the text of document {number}.\n" * 20)
    build([text], TOKENIZER, folder / "dataset", workers=1, validation=0.3)
    prose = folder / "prose"
    prose.mkdir()
    for number, document in zip(range(10), documents(), strict=False):
        (prose / f"{number}.txt").write_text(document[:3000])
    train([prose], folder / "masks", 400, masks=True)
    build([prose], folder / "masks", folder / "sentences", workers=1, validation=0.3, split_sentences=True)
    for kind in KINDS.values():
        with tempfile.TemporaryDirectory() as scratch:
            kind.examine(Path(shutil.copytree(folder / kind.honest, Path(scratch) / "input")))


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
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            problem = (
                f"{type(error).__name__}: {error!s:.120} at {where.filename.rpartition('gpt1_ds/')[2]}:{where.lineno}"
            )
        seconds, mib = time.process_time() - began, (memory_peak() - before) / 2**20
    tally.seconds, tally.mib = max(tally.seconds, seconds), max(tally.mib, mib)
    if seconds > SECONDS or mib > MIB:
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
