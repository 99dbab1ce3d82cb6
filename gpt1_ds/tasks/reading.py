"""From a `task` section to the examples of every split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.common.files import did_you_mean
from gpt1_ds.config import TaskConfig
from gpt1_ds.config.task import TABLE, PartConfig
from gpt1_ds.tasks.base import NO_LABEL, Task
from gpt1_ds.tasks.dev import HALF, capped, halved, hold_out
from gpt1_ds.tasks.example import Example, Examples
from gpt1_ds.tasks.hub_sets import way_to
from gpt1_ds.tasks.hub_tables import HUB, hub_tables
from gpt1_ds.tasks.kinds import Sentences, Span, Tagging
from gpt1_ds.tasks.line_files import parallel_lines, tagged_columns
from gpt1_ds.tasks.published_files import copa_xml, race_folder, squad_json
from gpt1_ds.tasks.registry import find_spec
from gpt1_ds.tasks.rows import FEW, column_naming
from gpt1_ds.tasks.sentence_pairs import check_pairs, examples_for_loss, without_scored_texts
from gpt1_ds.tasks.specs import Spec
from gpt1_ds.tasks.tables import ENDINGS, RECORDS, Table, brief, divided, open_table, open_text
from gpt1_ds.tasks.text import in_text
from gpt1_ds.tasks.token_examples import row_reader
from gpt1_ds.tasks.token_metrics import loose

SCORES = (0.0, 5.0)  # of STS-B's pairs


@dataclass(frozen=True)
class TaskData:
    """`splits` holds train and dev, test where its files are there, mnli's dev_mm, test_mm and test_ax, and `half`: the
    part of dev that chooses nothing (task.halves).
    """

    task: Task
    splits: Mapping[str, Examples]
    notes: tuple[str, ...]  # lines for people: what was left out or held out


def read_task(config: TaskConfig) -> TaskData:
    """Returns all examples of a task, in the order of its files.

    Rows on whose label the annotators did not agree (`-`) are left out of train and dev. Where there is no dev file,
    the official split is made where the task has one, else `task.dev_fraction` of train is held out.
    Raises ConfigError for a section that does not fit its task, DataError for files, columns or rows that cannot be
    used, for a dev split that nothing gives, and for a label of another split that never occurs in training.
    """
    if config.makes_vectors:
        return _read_sentences(config)
    if config.mixture:
        return _read_mixture(config)
    spec = find_spec(config)
    splits, notes = _read_splits(config, spec)
    if "dev" not in splits:
        splits["train"], splits["dev"] = hold_out(config, spec.held_out, splits["train"])
        better = f"; {spec.dev_ids[0]} beside its files would name the official ones" if spec.dev_ids else ""
        notes.append(f"{config.name}: {len(splits['dev'])} of train are held out as dev{better}")
    splits["train"] = capped(splits["train"], config.train_examples)
    splits = _thinned(config, splits, notes)
    task = task_of_spec(spec, config, spec.task.find_labels(spec.labels, splits, config.path))
    _check_names(config, task, splits)
    notes += [f"{config.name}: {doubt}" for doubt in task.doubts_about_kind(splits["train"]) if config.name == TABLE]
    if count := sum(loose(example.tags) for rows in splits.values() for example in rows):
        notes.append(
            f"{config.name}: {count} entities begin with I- and no B-; they count as entities, as in conlleval"
        )
    return TaskData(task, splits, tuple(notes))


def _read_sentences(config: TaskConfig) -> TaskData:
    """Returns the pairs or triplets to train on, and scored pairs as dev and test: those of task.sts, else the task's
    own.
    """
    check_pairs(config)
    spec = find_spec(config)
    splits, notes = _read_splits(config, spec, ("train",) if config.sts else None)
    low, high = config.score_range
    if config.sts:
        scale = (high - low) / (SCORES[1] - SCORES[0])
        judged = read_scored(config.sts)
        if "dev" not in judged:
            raise DataError(
                f"{config.sts}: has no scored pairs as dev; name the folder of STS-B, or a file of such rows"
            )
        for split, rows in judged.items():
            splits[split] = tuple(replace(one, score=low + scale * (one.score or 0.0)) for one in rows)
    elif "dev" not in splits:
        splits["train"], splits["dev"] = hold_out(config, spec.held_out, splits["train"])
        notes.append(f"{config.name}: {len(splits['dev'])} of train are held out as dev")
    labels = spec.task.find_labels(spec.labels, {"train": splits["train"]}, config.path)
    task = Sentences(
        config.name, Sentences.layout_of(True), labels, Sentences.fitting_metrics, (low, high), loss=config.loss
    )
    if config.sts:
        scored = [example for split, rows in splits.items() if split != "train" for example in rows]
        splits["train"], shared = without_scored_texts(splits["train"], scored)
        if shared:
            notes.append(f"{config.name} train: {shared} pairs share a text with those of task.sts and are left out")
    splits["train"] = capped(examples_for_loss(config, labels, splits["train"]), config.train_examples)
    splits = _thinned(config, splits, notes)
    _check_names(config, task, splits)
    notes += [f"{config.name}: {doubt}" for doubt in task.doubts_about_kind(splits["train"]) if config.name == TABLE]
    return TaskData(task, splits, tuple(notes))


def _read_mixture(config: TaskConfig) -> TaskData:
    """Returns the examples of several tasks as sources and targets, each task a group."""
    splits: dict[str, list[Example]] = {}
    notes: list[str] = []
    for part in config.mixture:
        settings = config.part(part)
        data = read_task(settings)
        if data.task.reads_tokens or data.task.loss is not None:
            raise ConfigError(f"task.mixture: {part.shown} is of kind {data.task.kind}, which is not learned in text")
        task = in_text(data.task.with_settings(settings))
        if part.name == TABLE:  # which says nothing of what is asked
            task = replace(task, name=part.shown)
        for split, rows in data.splits.items():
            splits.setdefault(split, []).extend(_as_text(task, part, example) for example in rows)
        notes += data.notes
    whole = {split: tuple(rows) for split, rows in splits.items()}
    return TaskData(task_of_spec(find_spec(config), config, ()), whole, tuple(notes))


def _as_text(task: Task, part: PartConfig, example: Example) -> Example:
    source, targets = task.source(example), example.targets
    if not task.writes_text:  # else the prefix is there already
        source, number = part.prefix + source, task.answer_number(example)
        targets = (task.answers[number],) if number != NO_LABEL else ()
    return Example(id=f"{part.shown}/{example.id}", texts=(source,), targets=targets, group=part.shown)


def read_scored(path: str) -> dict[str, Examples]:
    """Returns scored pairs: dev and test of a folder like STS-B's; as test the files `*.test.tsv` of a year of
    SemEval's STS, all together; the pairs of one file, also SICK's, as dev. Raises DataError.
    """
    place = Path(path)
    if not place.exists():
        raise DataError(f"{path}: no such folder or file; name scored pairs, like the folder of STS-B" + way_to(path))
    years = sorted(file.name for file in place.glob("*.test.tsv"))
    config = TaskConfig(name="stsb", path=path, test=years)
    spec = find_spec(config)
    if years or (place.is_file() and _begins_with_a_number(place)):
        spec = replace(spec, headerless=(("score", "sentence1", "sentence2"),))
    splits, _ = _read_splits(config, spec, ("train",) if place.is_file() else ("dev", "test"))
    splits = {"dev" if split == "train" else split: rows for split, rows in splits.items()}
    found = {split: tuple(one for one in rows if one.score is not None) for split, rows in splits.items()}
    found = {split: rows for split, rows in found.items() if rows}
    if not found:
        raise DataError(f"{path}: has no scored pairs; name the folder of STS-B, or a file of such rows")
    return found


def _begins_with_a_number(file: Path) -> bool:
    with open_text(file) as lines:
        return lines.readline().partition("\t")[0].replace(".", "", 1).isdecimal()


def _read_splits(
    config: TaskConfig, spec: Spec, wanted: Sequence[str] | None = None
) -> tuple[dict[str, Examples], list[str]]:
    """Returns (examples by split, notes), of the `wanted` splits only, if they are named."""
    reader = row_reader(spec, config.score_range)
    splits: dict[str, Examples] = {}
    notes: list[str] = []
    for split, tables in _tables(config, spec, "train" if wanted is None or "train" in wanted else ""):
        if wanted is not None and split not in wanted:
            continue
        splits[split] = reader.read(map(spec.unfold, tables) if spec.unfold else tables, not split.startswith("test"))
        if reader.left_out:
            notes.append(f"{config.name} {split}: {reader.left_out} rows have no agreed label and are left out")
            reader.left_out = 0
    if config.bad_rows == "raise":
        reader.check()
    elif reader.problems:
        notes.append(f"{config.name}: {len(reader.problems)} bad rows are left out; the first is {reader.problems[0]}")
    DataError.raise_all(f"{config.path} {split}: no row is left" for split, rows in splits.items() if not rows)
    return splits, notes


def _way_to(path: str | Path, spec: Spec) -> str:
    return way_to(path, "" if spec.name == TABLE else spec.name)


def read_split(config: TaskConfig, splits: Sequence[str]) -> tuple[str, Examples]:
    """Returns the first of `splits` that has files, and its labelled examples; nothing else is read or has to be there.

    Raises DataError for files, columns or rows that cannot be used.
    """
    spec = find_spec(config)
    found = dict(_tables(config, spec, needed=""))
    split = next((split for split in splits if split in found), None)
    if split is None:
        wanted = "; or ".join(" and ".join(names) for split in splits for names in spec.files.get(split, ()))
        raise DataError(
            f"{config.path}: holds none of {wanted}; name the folder that holds the files of {spec.name}"
            + _way_to(config.path, spec)
        )
    reader = row_reader(spec, config.score_range)
    examples = reader.read(map(spec.unfold, found[split]) if spec.unfold else found[split], True)
    DataError.raise_all(f"{problem}; fix this row" for problem in reader.problems[:FEW])
    if not examples:
        raise DataError(f"{config.path} {split}: no row has a label")
    return split, examples


def _tables(config: TaskConfig, spec: Spec, needed: str = "train") -> Iterator[tuple[str, Iterator[Table]]]:
    """Yields (split, its tables), opened when they are gone through."""
    given: dict[str, Sequence[str]] = {"train": config.train, "dev": config.dev, "test": config.test}
    if config.path.startswith(HUB):
        yield from hub_tables(
            config.path, {**spec.hub, **{split: "+".join(x) for split, x in given.items() if x}}, given
        )
        return
    root = Path(config.path)
    if root.is_file():
        given["train"] = given["train"] or [root.name]
        root = root.parent
    if not root.is_dir():
        way_out = f"set task.path to the one that holds the files of {spec.name}"
        if way_to_files := _way_to(config.path, spec):
            way_out += way_to_files
        elif meant := did_you_mean(root, Path.is_dir):
            way_out = meant
        raise DataError(f"{config.path}: no such folder; {way_out}")
    files = _files(root, spec, given, needed)
    opened = partial(_open, config=config, spec=spec)
    listed = _listed(root, spec) if "dev" not in files and not config.dev_fraction else None
    if listed is not None:
        tables = files.pop("train")
        for split in ("train", "dev"):
            part = partial(divided, columns=spec.dev_ids[1:], listed=listed, inside=split == "dev")
            yield split, map(part, map(opened, tables))
    for split, paths in files.items():
        yield split, map(opened, paths)


def _listed(root: Path, spec: Spec) -> frozenset[tuple[str, ...]] | None:
    """Returns the ids of the rows of train that are dev by an official list, where it lies beside the files."""
    if not spec.dev_ids or not (root / spec.dev_ids[0]).is_file():
        return None
    with open_text(root / spec.dev_ids[0]) as lines:
        return frozenset(tuple(line.split()) for line in lines)


def _files(root: Path, spec: Spec, given: Mapping[str, Sequence[str]], needed: str) -> dict[str, list[Path]]:
    """Split -> its files below `root`: those that were named, else official ones that no other split was given."""
    named = [name for names in given.values() for name in names]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise DataError(
            f"{root / twice[0]}: is named for two splits of {spec.name}; hold out task.dev_fraction instead"
        )
    found: dict[str, list[Path]] = {}
    for split in dict.fromkeys(("train", *spec.files, *given)):
        official = [names for names in spec.files.get(split, ()) if not set(names) & set(named)]
        there = next((names for names in official if all((root / name).exists() for name in names)), ())
        names = given.get(split) or there
        if not names and split == needed:
            wanted = "; or ".join(" and ".join(names) for names in official)
            raise DataError(
                f"{root}: holds none of {wanted}; set task.path, or name the files with task.train"
                + _way_to(root, spec)
            )
        if names:
            found[split] = [root / name for name in names]
    return found


def _open(path: Path, config: TaskConfig, spec: Spec) -> Table:
    if spec.name == "race" and path.is_dir():
        return race_folder(path)
    if spec.name == "copa" and path.suffix == ".xml":
        return copa_xml(path)
    if (spec.task is Span or spec.name == "squad_text") and path.suffix == ".json":
        return squad_json(path)
    if spec.task is Tagging and config.format == "auto" and path.suffix not in RECORDS:
        return tagged_columns(path)
    if spec.task.writes_text and path.suffix == f".{spec.text[0][0]}" and path.suffix not in ENDINGS:
        return parallel_lines(path, (spec.text[0][0], spec.label[0]), needed=not path.stem.startswith("test"))
    return open_table(path, config.format, config.quoting, column_naming(spec, config.header or spec.name != TABLE))


def _thinned(config: TaskConfig, splits: dict[str, Examples], notes: list[str]) -> dict[str, Examples]:
    """Returns dev in two by task.halves, where no test split has labels; task.scored_examples of what is scored."""
    if config.halves and not _has_labels(splits.get("test", ())):
        splits["dev"], splits[HALF] = halved(config, splits["dev"])
        notes.append(f"{config.name}: {len(splits['dev'])} of dev choose the epoch, {len(splits[HALF])} are reported")
    kept = {name for name, rows in splits.items() if name == "train" or not _has_labels(rows)}
    return {name: rows if name in kept else capped(rows, config.scored_examples) for name, rows in splits.items()}


def _check_names(config: TaskConfig, task: Task, splits: Mapping[str, Examples]) -> None:
    """Raises DataError for ids and labels that a file of predictions or a checkpoint does not hold, before any
    training: two examples of one id, ids with a tab or a line end in a table, labels that cannot be printed, tags with
    a blank.
    """
    way_out = "set task.columns.id to a column of unique ones, or to a name that no column has: rows are numbered then"
    for split, rows in splits.items():
        counts = Counter(one.id for one in rows if split != "train")
        for one, count in counts.items():
            if count > 1:
                raise DataError(f"{config.path} {split}: {count} rows have the id {brief(one)}; {way_out}")
            if task.submission == "tsv" and any(mark in one for mark in "\t\n\r"):
                raise DataError(f"{config.path} {split}: the id {brief(one)} holds a tab or a line end; {way_out}")
    DataError.raise_all(
        f"{config.path}: the label {brief(label)} holds a letter that cannot be printed; rename it"
        for label in task.labels
        if not label.isprintable()
    )
    DataError.raise_all(
        f"{config.path}: the tag {brief(label)} holds a blank, which stands between the tags of a prediction; rename it"
        for label in task.labels
        if isinstance(task, Tagging) and " " in label
    )


def _has_labels(examples: Examples) -> bool:
    return any(one.is_labelled for one in examples)


def task_of_spec(spec: Spec, config: TaskConfig, labels: tuple[str, ...]) -> Task:
    """Returns the task that `spec` describes, whose classes or choices are called `labels`."""
    low, high = config.score_range
    metrics = spec.task.fit_metrics(spec.metrics, labels, config.path)
    return spec.task(spec.name, spec.task.layout_of(bool(spec.text2)), labels, metrics, (low, high))
