"""The tables of a run's page: what came out, its hyper-parameters, its environment, its evaluations."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import median_high
from typing import Any

from gpt1_ds.architecture.count import training_flops_per_token
from gpt1_ds.common.text import amount, count, decimals, duration
from gpt1_ds.config import load
from gpt1_ds.config.task import SCALES
from gpt1_ds.report.curves import GRAMS, hours
from gpt1_ds.report.runs import RunStory
from gpt1_ds.tracking.record import of_run, shown_metrics

ENDS = {"done": "done", "user": "stopped as asked", "handover": "stopped, to be continued"}
MACHINE = {
    "host": "host",
    "system": "system",
    "processor": "CPU",
    "cores": "CPU cores",
    "threads": "threads per rank",
    "memory_gib": "memory, GiB",
    "device": "device",
}
OURS = ("command", "commit", "gpt1_ds", "variables", "compiled")  # shown elsewhere, or by another name


@dataclass(frozen=True)
class Setting:
    """A hyper-parameter: its values in order of the runs, and the default."""

    key: str
    values: list[str]
    default: str

    @property
    def changed(self) -> bool:
        return any(value != self.default for value in self.values)

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def beside(tables: Sequence[Sequence[tuple[str, str]]]) -> list[tuple[str, list[str]]]:
    """Returns (what, value) rows of several runs -> (what, their values) rows; what a run lacks stays empty."""
    names = dict.fromkeys(what for rows in tables for what, _ in rows)
    found = [dict(rows) for rows in tables]
    return [(what, [rows.get(what, "") for rows in found]) for what in names]


def headline(story: RunStory) -> list[tuple[str, str]]:
    """Returns (what, value) of the large numbers at the top of a page about one run."""
    last = story.train[-1]
    rows: list[tuple[str, str]] = []
    for name, records in (("held out, all of it", story.evaluations), ("held out", story.held_out)):
        if records and not rows:
            record = records[-1]
            beside = {"bits per byte": record["bits_per_byte"], "masked accuracy": record.get("masked_accuracy")}
            rows = [
                (f"loss, {name}", decimals(record["loss"])),
                *((what, decimals(value)) for what, value in beside.items() if value is not None),
                ("perplexity", decimals(record["perplexity"], 1)),
            ]
    for split, result in _task_scores(story):
        metric, value = next(iter(result["metrics"].items()))
        rows.append((f"{split} {metric}", "not defined" if value is None else decimals(value)))
    if not rows:
        rows = [("training loss", decimals(last["loss"]))]
    spent = duration(3600 * hours(story.train)[-1])
    return [*rows, ("tokens", count(last["tokens"])), ("training time", spent), ("tokens per second", _speed(story))]


def summary(story: RunStory) -> list[tuple[str, str]]:
    """Returns (what, value) rows of the table at the top."""
    model, last = story.config.model, story.train[-1]
    shape = f"{amount(model.layers, 'layer')} x width {model.width}, {amount(model.heads, 'head')}"
    rows = [
        ("state", _state(story)),
        ("model", f"{shape}, context {model.context}"),
        ("parameters", f"{story.parameters:,}"),
        *_flops(story),
        ("trained", f"{last['step']:,} steps, {count(last['tokens'])} tokens"),
        ("training loss", f"{decimals(last['loss'])}{_unit(story)}"),
        *((split, f"{_metrics(one['metrics'])}, after {one['step']:,} steps") for split, one in _task_scores(story)),
    ]
    for title, records in (("while training", story.held_out), ("all of it", story.evaluations)):
        for record in records[-1:]:
            rows.append((f"held out, {title}", _held_out(record)))
    for baseline in story.baselines:
        nats, bits = baseline["loss"], baseline["bits_per_byte"]
        rows.append((f"{GRAMS[baseline['order']]} baseline", f"{nats:.4f} nats per token, {bits:.4f} bits per byte"))
    for name, scores in story.probes.items():
        score, metric = scores[-1], SCALES[name].metric
        control = f", control {score['control']:.3f}{_interval(score, 'control_')}" if "control" in score else ""
        text = f"{metric} {score[metric]:.3f}{_interval(score)} of {score['examples']} questions"
        text += f"{control}, chance {score['chance']:.3f}"
        rows.append((f"zero-shot {name}", f"{text}, after {score['step']:,} steps"))
    for task, record in {record["task"]: record for record in story.measured}.items():
        rows.append((f"{task}, while training", f"{shown_metrics(record['metrics'])}, after {record['step']:,} steps"))
    rows.append(("speed (median)", f"{_speed(story)} tokens per second"))
    rows.append(("time in training steps", duration(3600 * hours(story.train)[-1])))
    if seconds := wall_clock(story.events):
        rows.append(("wall-clock time", duration(seconds)))
    return rows


def _flops(story: RunStory) -> Iterator[tuple[str, str]]:
    """Yields nothing of a fine-tuned model: its rows are as long as their texts, and its head is another one."""
    if story.config.task is None:
        yield "FLOPs per token", count(training_flops_per_token(story.config, story.config.model.vocab_size or 0))


def _interval(score: Mapping[str, float], of: str = "") -> str:
    """Returns the interval as text; nothing where an older program wrote none."""
    low, high = f"{of}low", f"{of}high"
    return f" ({score[low]:.3f} to {score[high]:.3f})" if low in score else ""


def _task_scores(story: RunStory) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields (split, result) of a fine-tuned model: those of the checkpoint that the run chose; until it is done, the
    newest one of each split.
    """
    chosen = of_run(story.entries) if story.config.task else []
    yield from {one["split"]: one for one in chosen or story.scores if one["metrics"]}.items()


def _unit(story: RunStory) -> str:
    """Returns what a training loss is counted in; that of a task is a sum of several, which the chart's caption
    names.
    """
    if story.config.task is not None:
        return ""
    if story.config.objective.next_sentence:
        return " nats per predicted token, and per pair added to it"
    return f" nats per {'predicted token' if story.config.objective.kind == 'masked' else 'token'}"


def _held_out(record: Mapping[str, Any]) -> str:
    bits, accuracy, pairs = (record.get(key) for key in ("bits_per_byte", "masked_accuracy", "pair_accuracy"))
    text = f"{decimals(record['loss'])} nats per {'token' if accuracy is None else 'predicted token'}"
    if bits:
        text += f", {decimals(bits)} bits per byte"
    text += f", perplexity {decimals(record['perplexity'], 1)}"
    if accuracy is not None:
        text += f", masked accuracy {decimals(accuracy)}"
    if pairs is not None:
        text += f", pairs: loss {decimals(record['pair_loss'])}, accuracy {decimals(pairs)}"
    if (deviation := record.get("mask_deviation")) is not None:
        text += f"; another draw of masks moves the loss by {decimals(deviation)} (standard deviation)"
    return text


def wall_clock(events: Sequence[Mapping[str, Any]]) -> float:
    """Returns the seconds of all starts of a run together. A start that was killed counts up to its last event."""
    total, start, last = 0.0, 0.0, 0.0
    for event in events:
        now = _seconds_since_1970(event.get("time"))
        if event["event"] == "started":
            total, start = total + (last - start if start else 0.0), now
        elif "seconds" in event:
            total, start = total + event["seconds"], 0.0
        last = now
    return total + (last - start if start else 0.0)


def _seconds_since_1970(time: object) -> float:
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:  # of a file that somebody has edited
        return 0.0


def _speed(story: RunStory) -> str:
    speeds = [line["tokens_per_second"] for line in story.train if line["tokens_per_second"] is not None]
    return count(median_high(speeds)) if speeds else "?"


def _state(story: RunStory) -> str:
    """Returns how the last start ended, by events.jsonl."""
    for event in reversed(story.events):
        if event["event"] == "stopped":
            return ENDS.get(str(event.get("reason")), "stopped")
        if event["event"] == "failed":
            return f"failed: {event.get('reason')}"
        if event["event"] == "started":
            break
    return "it runs, or was killed: no end is recorded"


def settings(stories: Sequence[RunStory]) -> list[Setting]:
    """Returns every key of the runs' configurations: those in which runs differ first, then those changed from the
    default.
    """
    *tables, defaults = (dict(_flat("", asdict(config))) for config in (*(story.config for story in stories), load()))
    keys = dict.fromkeys(key for table in tables for key in table)
    found = [Setting(key, [table.get(key, "") for table in tables], defaults.get(key, "")) for key in keys]
    return sorted(found, key=lambda setting: (not setting.differs, not setting.changed))


def _flat(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", _text(value)


def _text(value: Any) -> str:
    """Returns a value as it is written in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return ", ".join(f"{key}={_text(one)}" for key, one in value.items()) if isinstance(value, dict) else str(value)


def command(story: RunStory) -> str:
    """Returns the command of the run's last start; for a run that does not know it, one that does the same."""
    known = story.environment.get("command")
    same = ["gpt1-ds", "finetune" if story.config.task else "pretrain", "-c", str(story.folder / "config.yaml")]
    return str(known) if known else shlex.join(same)


def sampling_command(story: RunStory) -> str:
    """Returns what writes a text; "" for a model that writes none."""
    config = story.config
    if config.model.mask == "bidirectional":
        return ""
    asked = "--source" if config.model.kind == "encoder_decoder" else "--prompt"
    spans = config.objective.kind == "spans" and config.task is None
    text = "It was a <extra_id_0> day." if spans else "It was a"
    return shlex.join(["gpt1-ds", "sample", "--checkpoint", str(story.folder), asked, text])


def environment(story: RunStory) -> list[tuple[str, str]]:
    """Returns (what, value) rows: commit, machine, versions and the environment variables that env.json keeps."""
    found, own = story.environment, story.environment.get("gpt1_ds", {})
    ranks = [event["ranks"] for event in story.events if event["event"] == "started" and "ranks" in event]
    rows = [("gpt1-ds", own.get("version")), ("commit", found.get("commit")), ("hash of the code", own.get("code"))]
    rows += [("ranks", ranks[-1] if ranks else None)]
    rows += [(name, found.get(key)) for key, name in MACHINE.items()]
    rows += [(key, value) for key, value in found.items() if key not in OURS and key not in MACHINE]
    rows += list(found.get("variables", {}).items())
    return [(name, str(value)) for name, value in rows if value is not None]


def evaluations(stories: Sequence[RunStory]) -> list[tuple[str, str, str, str, str]]:
    """Returns (run, task, split, step, metrics) rows of all that `evaluate` and `finetune` have measured."""
    return [
        (story.name, str(one["task"]), str(one["split"]), f"{one['step']:,}", _metrics(one["metrics"]))
        for story in stories
        for one in story.entries
    ]


def _metrics(values: dict[str, Any]) -> str:
    shown = {name: f"{x:.6g}" if isinstance(x, float) else x for name, x in values.items()}
    return ", ".join(f"{name} {'not defined' if x is None else x}" for name, x in shown.items())
