"""Do cosines of sentence vectors agree with people? Models, word vectors and TF-IDF on several sets of scored pairs.

    python tools/sentence_vectors.py --sets data/stsb ... [--vectors glove.txt ...] --out FOLDER [--runs RUN ...]
        [--whiten]

RUN is NAME=FOLDER, several with one name being its seeds. A model that was not tuned for sentences has three rows: its
first state, the mean of its states, the mean of its token rows. With --whiten models have each row once more, their
vectors centred and scaled so that those of a set have the same variance in every direction: a few directions that all
texts share decide no cosine then. Writes results.csv (every seed) and table.md (Spearman's correlation x 100, mean and
standard error over seeds). Of a set with a test split that split counts.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.common.errors import DataError
from gpt1_ds.report.study_table import mean
from gpt1_ds.scaling.tables import write_table
from gpt1_ds.tasks.controls import Features
from gpt1_ds.tasks.example import Examples
from gpt1_ds.tasks.metrics import measure
from gpt1_ds.tasks.reading import read_scored
from tools.mistakes import told

Floats = NDArray[np.float64]
Vectors = Callable[[Sequence[str]], NDArray[Any]]  # texts [N] -> [N, D]
Cosines = Callable[[Sequence[str], Sequence[str]], Floats]  # first texts [N], second texts [N] -> [N]
UNTUNED = {"cls": "first state", "mean": "mean of states", "words": "mean of token rows"}
# Reimers and Gurevych 2019, table 1: STS 2012 to 2015, STS-B, SICK-R; models of another size, trained on other text
PAPER = {
    "the paper's GloVe, mean": (55.14, 70.66, 59.73, 68.25, 58.02, 53.76),
    "the paper's BERT, first state": (20.16, 30.01, 20.09, 36.88, 16.50, 42.63),
    "the paper's BERT, mean": (38.78, 57.98, 57.98, 63.15, 46.35, 58.40),
    "the paper's SBERT-NLI-base": (70.97, 76.53, 73.19, 79.09, 77.03, 72.91),
}
PAPER_SETS = ("2012", "2013", "2014", "2015", "stsb", "sick")


@dataclass(frozen=True)
class Result:
    row: str
    seed: int
    set: str
    pairs: int
    spearman: float | None


def scored_sets(paths: Sequence[str]) -> dict[str, Examples]:
    """Name -> pairs: the test split where there is one. A file of SICK is called sick."""
    found = {}
    for path in paths:
        splits = read_scored(path)
        name = "sick" if "sick" in Path(path).name.lower() else Path(path).name
        found[name] = splits.get("test") or splits["dev"]
    return found


def scores(row: str, seed: int, cosines: Cosines, sets: dict[str, Examples]) -> Iterator[Result]:
    for name, pairs in sets.items():
        found = cosines(*([pair.texts[side] for pair in pairs] for side in (0, 1)))
        gold = np.array([pair.score for pair in pairs], dtype=np.float64)
        yield Result(row, seed, name, len(pairs), measure("spearman", gold, found))


def cosines_of(vectors: Vectors) -> Cosines:
    """0 where a text has no vector."""

    def cosines(firsts: Sequence[str], seconds: Sequence[str]) -> Floats:
        first_ND, second_ND = vectors(firsts), vectors(seconds)
        lengths_N = np.linalg.norm(first_ND, axis=1) * np.linalg.norm(second_ND, axis=1)
        found: Floats = (first_ND * second_ND).sum(1) / np.maximum(lengths_N, np.finfo(np.float64).tiny)
        return found

    return cosines


def remembered(vectors: Vectors) -> Vectors:
    """The same, which computes the vectors of a list of texts once."""
    known = cache(vectors)
    return lambda texts: known(tuple(texts))


def whitened(vectors: Vectors) -> Cosines:
    """Cosines of what is left of the texts' vectors when their covariance is made the identity."""

    def cosines(firsts: Sequence[str], seconds: Sequence[str]) -> Floats:
        both_ND = np.concatenate([vectors(firsts), vectors(seconds)]).astype(np.float64)
        left_NR, sizes_R, _ = np.linalg.svd(both_ND - both_ND.mean(0), full_matrices=False)
        white_NR = left_NR[:, sizes_R > sizes_R[0] * 1e-6]
        known = iter(np.split(white_NR, [len(firsts)]))
        return cosines_of(lambda _: next(known))(firsts, seconds)

    return cosines


def model_rows(name: str, folder: str, whiten: bool) -> Iterator[tuple[str, Cosines]]:
    from gpt1_ds.evaluation.embed import Embedder
    from gpt1_ds.evaluation.load import load_checkpoint

    loaded = load_checkpoint(folder)
    poolings = UNTUNED if loaded.task is None else {None: ""}
    for pooling, what in poolings.items():
        embedder = Embedder(loaded, pooling)  # type: ignore[arg-type]
        vectors = remembered(embedder.vectors)
        row = f"{name}, {what}" if what else name
        yield row, cosines_of(vectors)
        if whiten:
            yield f"{row}, whitened", whitened(vectors)


def tfidf(sets: dict[str, Examples]) -> Cosines:
    """The control of a study, its weights learned from the texts of all sets; no score is read."""
    features = Features([(pair.texts[0], pair.texts[1]) for pairs in sets.values() for pair in pairs])
    return lambda firsts, seconds: features.cosines([*zip(firsts, seconds, strict=True)])


def word_vectors(files: Sequence[str]) -> Cosines:
    """The mean of the vectors of a text's words, those that the files (GloVe's format: word, numbers) know."""
    known: dict[str, Floats] = {}
    for file in files:
        for line in Path(file).read_text(encoding="utf-8", errors="replace").splitlines():
            word, *numbers = line.split(" ")
            known[word] = np.array(numbers, dtype=np.float64)
    if not known:
        raise DataError(f"{files[0]}: holds no word vector")
    nothing = np.zeros_like(next(iter(known.values())))

    def vectors(texts: Sequence[str]) -> Floats:
        rows = ([known[word] for word in re.findall(r"\w+|[^\w\s]", text.lower()) if word in known] for text in texts)
        return np.stack([np.mean(row, axis=0) if row else nothing for row in rows])

    return cosines_of(vectors)


def table(results: Sequence[Result], sets: Sequence[str]) -> Iterator[str]:
    yield "| | " + " | ".join(sets) + " |"
    yield "|---" * (len(sets) + 1) + "|"
    for row in dict.fromkeys(result.row for result in results):
        cells = []
        for name in sets:
            found = [100 * (one.spearman or 0.0) for one in results if (one.row, one.set) == (row, name)]
            cells.append(str(mean(found) or "-"))
        yield f"| {row} | " + " | ".join(cells) + " |"
    for row, printed in PAPER.items():
        of = dict(zip(PAPER_SETS, printed, strict=True))
        yield f"| *{row}* | " + " | ".join(f"*{of[name]:.1f}*" if name in of else "-" for name in sets) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=[], metavar="NAME=RUN")
    parser.add_argument("--sets", nargs="+", required=True, help="folders or files of scored pairs")
    parser.add_argument("--vectors", nargs="+", default=[], metavar="FILE", help="published word vectors, as text")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--whiten", action="store_true")
    options = parser.parse_args()
    sets = scored_sets(options.sets)
    rows: list[tuple[str, int, Cosines]] = [("TF-IDF", 1, tfidf(sets))]
    if options.vectors:
        rows.append(("GloVe, mean", 1, word_vectors(options.vectors)))
    seeds: dict[str, int] = {}
    results = [result for row, seed, cosines in rows for result in scores(row, seed, cosines, sets)]
    for word in options.runs:
        name, _, folder = word.partition("=")
        seeds[name] = seeds.get(name, 0) + 1
        for row, cosines in model_rows(name, folder, options.whiten):
            results += scores(row, seeds[name], cosines, sets)
            print(*results[-len(sets) :], sep="\n", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    write_table(options.out / "results.csv", [each.name for each in fields(Result)], map(asdict, results))
    lines = list(table(results, list(sets)))
    (options.out / "table.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    with told():
        main()
