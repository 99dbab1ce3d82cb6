"""`evaluate`: what checkpoints score, on any layout: the held-out loss over all of a dataset's validation split, and
the zero-shot probes of the `probes` section; of a fine-tuned checkpoint its task's scores on every split with labels
but train, and beside them those of controls that were never pre-trained (tasks/controls.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.restore import restore, same_manifest, verify_checkpoint
from gpt1_ds.checkpoint.verify import check_memory
from gpt1_ds.checkpoint.whole import head_of, task_of
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, DataError
from gpt1_ds.config import Config
from gpt1_ds.config.task import PREFIX
from gpt1_ds.data.sources import open_data
from gpt1_ds.data.tokenizers.registry import encode_alike
from gpt1_ds.data.verify import files_of, verify_share
from gpt1_ds.engine import shared_disk
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.build import batch_shape, build_engine
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.engine.session import distributed_session, with_common_micro_batch
from gpt1_ds.evaluation.held_out import held_out_loss
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.measures import mask_deviation
from gpt1_ds.evaluation.probes import probe_metrics
from gpt1_ds.evaluation.task_scores import TaskScorer
from gpt1_ds.evaluation.text_scores import make_scorer
from gpt1_ds.objectives.pretraining import pretraining_objective
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.example import hash_examples
from gpt1_ds.tasks.metrics import check_libraries, control_scores
from gpt1_ds.tasks.probe_scores import shown_score
from gpt1_ds.tasks.reading import TaskData, read_task
from gpt1_ds.tasks.registry import class_names
from gpt1_ds.tasks.zeroshot import Probe, read_probe
from gpt1_ds.tracking.record import CONTROL, Entry, entry_key, merge, read_entries, score_entry
from gpt1_ds.tracking.wandb import show_evaluation

HELD_OUT = "held-out"
MASK_DRAWS, DRAWN_BATCHES = 4, 4  # global batches whose masks are drawn again: how much the loss depends on them


def evaluate(config: Config, checkpoints: Sequence[Path], out: Path | None, held_out: bool, missing: bool) -> int:
    """Scores `checkpoints`; rank 0 prints the results and merges them into `out` (eval.json), one by one.

    `held_out` is for the held-out loss; `missing` leaves out what `out` has already.
    """
    arguments = {"checkpoints": checkpoints, "held_out": held_out, "missing": missing}
    with distributed_session(config, command="evaluate", **arguments) as groups:
        config = with_common_micro_batch(config, groups)
        there = groups.on_rank_0(lambda: read_entries(out))  # what is no eval.json is refused before work is done
        done = there if missing else []
        if config.probes:
            probes = groups.agree(lambda: [read_probe(probe) for probe in config.probes])
            for checkpoint in checkpoints:
                _probe(groups, checkpoint, probes, out, done)
        if held_out:
            _held_out(config, groups, checkpoints, out, done)
        if groups.rank == 0:
            show_evaluation(config, out)
    return 0


def _step(groups: ProcessGroups, checkpoint: Path) -> int:
    return int(same_manifest(groups, checkpoint)["step"])


def _probe(
    groups: ProcessGroups, checkpoint: Path, probes: Sequence[Probe], out: Path | None, done: Sequence[Entry]
) -> None:
    """The zero-shot scores of one checkpoint, but for those of as many examples that are there already, with their
    controls.
    """
    step = _step(groups, checkpoint)
    sizes = {
        (entry["task"], entry["split"], entry["step"]): [entry["metrics"].get(key, 0) for key in ("examples", "fitted")]
        for entry in done
        if "control" in entry["metrics"]
    }
    left = [p for p in probes if sizes.get((PREFIX + p.title, p.split, step)) != [len(p.examples), len(p.train)]]
    if not left:
        return
    loaded = groups.agree(lambda: load_checkpoint(checkpoint))
    for probe in left:
        with log.bar(unit="{:.0f} sequences".format, watched=groups.rank == 0) as show:
            show(words=probe.title)
            metrics = probe_metrics(probe, loaded, groups, show)
        if groups.rank == 0:
            log.say(f"{checkpoint}: {PREFIX}{probe.title} {probe.split}: {shown_score(metrics)}")
        entry = {"task": PREFIX + probe.title, "split": probe.split, "step": step, "metrics": metrics}
        groups.on_rank_0(partial(merge, out, entry))


def _held_out(
    config: Config, groups: ProcessGroups, checkpoints: Sequence[Path], out: Path | None, done: Sequence[Entry]
) -> None:
    """The loss of the checkpoints whose loss on this data is not there already."""
    data = groups.agree(lambda: open_data(config))
    groups.compare({"data.path": data.data_hash, "the tokenizer of data.path": data.tokenizer_hash})
    if data.held_out is None:
        raise DataError(f"{config.data.path[0].path}: has no validation split; build it with --validation above 0")
    there = {entry_key(entry) for entry in done}
    key = (HELD_OUT, "validation")
    left = [path for path in checkpoints if (*key, _step(groups, path), data.data_hash) not in there]
    if not left:
        return
    if config.data.verify:
        streams = [data.held_out.stream]
        part = shared_disk.reading_part(groups, files_of(streams), None)
        groups.agree(lambda: verify_share(streams, part, lambda: None))
    for path in left:
        facts = same_manifest(groups, path)
        other = facts["hashes"]["tokenizer"] != data.tokenizer_hash
        if other and not encode_alike(path / "tokenizer", data.tokenizer_folder):
            raise DataError(
                f"{config.data.path[0].path}: was built with another tokenizer than {path} was trained with; name its "
                "text with data.path=FOLDER"
            )
        check_memory(path, facts, config.model)
    objective, *_ = draws = [
        pretraining_objective(config, data.tokenizer, data.data_hash, seed) for seed in range(MASK_DRAWS)
    ]
    engine = build_engine(config, groups, initialise=False, objective=objective)
    for checkpoint in left:
        verify_checkpoint(engine, checkpoint)
        facts = restore(engine, config, checkpoint, weights_only=True)
        step = int(facts["step"])
        shape, tokens = batch_shape(config, groups), int(facts["tokens"])
        with log.bar(unit="{:.0f} batches".format, watched=groups.rank == 0) as show:
            record = held_out_loss(engine, data, objective, shape, step, tokens, limit=0, show=show)
            metrics, moved = record.metrics, ""
            if config.objective.kind == "masked":
                metrics["mask_deviation"] = found = mask_deviation(engine, data, draws, shape, DRAWN_BATCHES)
                moved = f"  another draw of masks moves the loss by {found:.4f} (standard deviation)"
        if groups.rank == 0:
            log.say(f"{checkpoint}: {record}{moved}")
        entry = {"task": HELD_OUT, "split": "validation", "step": step, "metrics": metrics, "data": data.data_hash}
        groups.on_rank_0(partial(merge, out, entry))


def evaluate_task(config: Config, checkpoints: Sequence[Path], out: Path | None, missing: bool = False) -> int:
    """Scores `checkpoints`, all of one run, on this rank's part of the data; rank 0 prints the results and
    merges them into `out` (eval.json), one by one, and then those of the controls, fitted on the same training
    examples. `missing` leaves out what `out` has already of a checkpoint.
    """
    arguments = {"checkpoints": checkpoints, "missing": missing}
    with distributed_session(config, command="evaluate", **arguments) as groups:
        config = with_common_micro_batch(config, groups)
        data, scorer = groups.agree(lambda: _open(config, checkpoints[0], groups))
        groups.compare({f"task.path, {split}": encoded.data_hash for split, encoded in scorer.splits.items()})
        config, there = scorer.config, groups.on_rank_0(lambda: read_entries(out))
        done = {entry_key(entry) for entry in there} if missing else set()
        engine = build_engine(config, groups, initialise=False, objective=scorer.objective)
        labelled = [split for split in scorer.splits if split != "train" and scorer.has_labels(split)]
        steps = [same_manifest(groups, checkpoint)["step"] for checkpoint in checkpoints]
        for checkpoint, step in zip(checkpoints, steps, strict=True):
            keys = {split: (scorer.task_of(split).name, split, step, scorer.hashes[split]) for split in labelled}
            left = [split for split in labelled if keys[split] not in done]
            if left:
                verify_checkpoint(engine, checkpoint)
                facts = restore(engine, config, checkpoint, weights_only=True)
                _score(scorer, left, engine, checkpoint, facts, out)
        if groups.rank == 0:
            _control(data, out)
            show_evaluation(config, out)
    return 0


def _score(
    scorer: TaskScorer, splits: Sequence[str], engine: Engine, checkpoint: Path, facts: dict[str, Any], out: Path | None
) -> None:
    """`splits` under the engine's weights, which are those of `checkpoint`."""
    for split in splits:
        with log.bar(watched=scorer.groups.rank == 0) as show:
            show(words=split)
            record, _ = scorer.measure(engine, split, int(facts["step"]), int(facts["tokens"]))
        if scorer.groups.rank == 0:
            log.say(f"{checkpoint}: {record}")
            merge(out, score_entry(record, scorer.hashes[split]))


def _control(data: TaskData, out: Path | None) -> None:
    """Prints the scores of the controls and merges them into `out`; a machine without what they need goes without."""
    try:
        with log.bar() as show:
            show(words="controls")
            scores = control_scores(data.task, data.task.controls(data.splits))
            for (name, split), found in groupby(scores, lambda one: (one.control, one.split)):
                metrics = {one.metric: one.value for one in found}
                entry = {"task": f"{CONTROL}{name}/{data.task.name}", "split": split, "step": 0, "metrics": metrics}
                entry["data"] = hash_examples(data.splits[split])
                shown = (f"{key} {'not defined' if x is None else f'{x:.4f}'}" for key, x in metrics.items())
                log.say(f"{entry['task']} {split}: {', '.join(shown)}")
                merge(out, entry)
    except (DataError, ValueError) as error:
        log.say(f"{data.task.name}: no further controls: {error}")


def _open(config: Config, checkpoint: Path, groups: ProcessGroups) -> tuple[TaskData, TaskScorer]:
    """Returns the task's examples for the model in `checkpoint`. Raises CheckpointError when it has no head for
    them.
    """
    assert config.task is not None, "the command asks only then"
    facts = manifest.read(checkpoint)
    task, head = task_of(checkpoint, facts), head_of(checkpoint, facts)
    if task is None or (head is None and not task.is_text_to_text):
        raise CheckpointError(f"{checkpoint}: was not fine-tuned on a task; leave the section task out")
    data = read_task(config.task)
    check_libraries(data.task)
    check_memory(checkpoint, facts, config.model, head)
    scorer = make_scorer(config, data, checkpoint / "tokenizer", groups)
    _check(task, scorer.task, checkpoint)
    return data, scorer


def _check(task: Task, here: Task, checkpoint: Path) -> None:
    if here.is_text_to_text != task.is_text_to_text:
        form = "text" if task.is_text_to_text else "head"
        raise DataError(f"{checkpoint}: was fine-tuned with task.form={form}; leave task.form out")
    if (here.kind, here.layout, here.labels) != (task.kind, task.layout, task.labels) or here.loss != task.loss:
        raise DataError(
            f"{checkpoint}: was fine-tuned on {task.name}, {task.kind} of {', '.join(class_names(task)) or 'scores'}; "
            f"{here.name} is {here.kind} of {', '.join(class_names(here)) or 'scores'}"
        )
