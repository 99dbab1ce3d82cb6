"""Draw models, objectives, optimizers and layouts at random, and compare each layout with one process.

    python tools/random_layouts.py [--cases 20] [--seed 0] [--steps 6] [--only NUMBER] [--csv FILE]

Whatever the configuration accepts has to run, and to give the numbers of one process. Prints the largest difference of
each case in loss and gradient norm (relative), and ends with exit code 1 where one is beyond the bounds of
tests/parallel/test_layouts.py. A case is a function of the seed and its number: --only runs one again.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load, world_problems
from gpt1_ds.scaling.tables import write_table
from tools.families import SENTINELS, make_data
from tools.layouts import RECIPE, Layout, trace

LOSS, NORM = 1e-5, 1e-4  # bounds of promise 1
CUTS = [  # (tensor, pipeline, data) ranks
    *((1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 1, 4), (2, 1, 1), (2, 1, 2), (3, 1, 1), (4, 1, 1)),
    *((1, 2, 1), (1, 2, 2), (1, 3, 1), (2, 2, 1)),
]
Choices = Mapping[str, Sequence[object]]

# ReLU is left out: rounding can push a unit over its kink (guides/concepts.md)
TRAINED: Choices = {
    "model.layers": (2, 3, 4),
    "model.heads": (2, 4, 6),
    "model.head_width": (6, 8, 16),
    "model.width": (24, 36, 60),
    "model.context": (37, 48, 64),
    "model.ffn": (48, 96, 144),
    "model.vocab_multiple": (1, 8, 128),
    "model.activation": ("gelu", "gelu_tanh", "gated_gelu"),
    "model.norm": ("post", "pre"),
    "model.norm_kind": ("layer", "rms"),
    "model.positions": ("learned", "relative", "none"),
    "model.biases": ("true", "false"),
    "model.tied": ("true", "false"),
    "model.embedding_norm": ("true", "false"),
    "model.init": ("normal", "residual"),
    "model.logit_scale": ("one", "inverse_root_width"),
    "model.residual_dropout": (0.0, 0.1),
    "model.embedding_dropout": (0.0, 0.1),
    "model.attention_dropout": (0.0, 0.1),
    "model.ffn_dropout": (0.0, 0.1),
    "optimizer.name": ("adamw", "adam2018", "muon", "lamb", "adafactor"),
    "optimizer.clip": (0, 0.5, 1),
    "train.global_batch": (12, 16, 24),
    "train.label_smoothing": (0, 0.1),
    "data.documents": ("joined", "masked"),
}
LAYOUT: Choices = {
    "parallel.zero": (0, 1, 2, 3),
    "parallel.sequence": ("false", "true"),
    "parallel.assembly": ("auto", "pipeline"),
    "train.micro_batch": (1, 2, 3, 4),
    "train.recompute": ("none", "block"),
    "train.deepspeed_patches": ("fast", "fixes"),
}
SPANS = ("objective.kind=spans", f"objective.sentinels={SENTINELS}")
TWO_STACKS: Choices = {"model.shared": ("false", "true"), "model.decoder_layers": ("null", 1, 3)}
OBJECTIVES: tuple[tuple[Sequence[str], Choices], ...] = (
    (["objective.kind=causal"], {"data.text": ("windows", "full_sentences", "document_sentences")}),
    (["objective.kind=prefix", "model.mask=prefix"], {"data.offsets": ("fixed", "epoch")}),
    (SPANS, {"objective.predict": ("targets", "all"), "model.mask": ("causal", "prefix")}),
    (
        ["objective.kind=masked", "model.mask=bidirectional"],
        {
            "model.head": ("plain", "masked"),
            "data.text": ("windows", "full_sentences"),
            "objective.whole_words": ("false", "true"),
            "objective.copies": (0, 3),
        },
    ),
    (
        ["objective.kind=masked", "model.mask=bidirectional", "model.segments=2", "data.text=pairs"],
        {"model.head": ("plain", "masked"), "objective.next_sentence": ("false", "true")},
    ),
    (["objective.kind=prefix", "model.kind=encoder_decoder"], TWO_STACKS),
    ([*SPANS, "model.kind=encoder_decoder"], {**TWO_STACKS, "objective.mean_length": (3, "null")}),
)


@dataclass(frozen=True)
class Case:
    """`arguments` of what is trained, and the layout that is compared with one process."""

    number: int
    arguments: tuple[str, ...]
    layout: Layout


def draw(seed: int, number: int) -> Case:
    """Returns a case that the configuration accepts: what it refuses is drawn again."""
    chance = random.Random(f"{seed} {number}")
    fixed, choices = chance.choice(OBJECTIVES)
    while True:
        arguments = (*_chosen(chance, TRAINED), *fixed, *_chosen(chance, choices), f"run.seed={number}")
        if _is_accepted(arguments, 1):
            break
    while True:
        tensor, pipeline, data = chance.choice(CUTS)
        cut = [f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}", *_chosen(chance, LAYOUT)]
        ranks = tensor * pipeline * data
        if _is_accepted((*arguments, *cut), ranks):
            return Case(number, arguments, Layout(" ".join(argument.partition(".")[2] for argument in cut), ranks, cut))


def _is_accepted(arguments: Sequence[str], ranks: int) -> bool:
    try:
        return not any(world_problems(load([], [*RECIPE, *arguments]), ranks))
    except ConfigError:
        return False


def _chosen(chance: random.Random, choices: Choices) -> list[str]:
    return [f"{key}={chance.choice(values)}" for key, values in choices.items()]


def run(case: Case, data: Path, steps: int) -> dict[str, object]:
    """Returns a row of the table: how far the layout is from one process, and whether that is within the bounds."""
    one = trace(Layout("one process", 1), data, steps, case.arguments)
    other = trace(case.layout, data, steps, case.arguments)
    loss = max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True))
    norm = max(abs(a - b) / b for a, b in zip(other.norms, one.norms, strict=True))
    same = one.fingerprints == other.fingerprints and not other.drift
    apart = {"loss": loss, "norm": norm, "drift": other.drift, "holds": loss <= LOSS and norm <= NORM and same}
    return {"case": case.number, "ranks": case.layout.ranks, **apart, "layout": case.layout.name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20, help="how many are drawn (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other cases (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=6, help="updates of each run (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this case alone (default: all)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there, too (default: do not)")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    numbers = range(options.cases) if options.only is None else [options.only]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(Path(folder), masks=True, sentinels=SENTINELS)
        print(f"{'case':>5} {'ranks':>5} {'loss':>9} {'norm':>9}  layout")
        for number in numbers:
            case = draw(options.seed, number)
            row = run(case, data, options.steps)
            shown = f"{number:5} {row['ranks']:5} {row['loss']:9.1e} {row['norm']:9.1e}  {row['layout']}"
            print(shown if row["holds"] else f"{shown}\n  BEYOND THE BOUNDS: {' '.join(case.arguments)}", flush=True)
            rows.append(row)
    if options.csv:
        write_table(options.csv, rows[0], rows)
    sys.exit(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    main()
