"""The columns of numbers that the charts of a run's page (charts.py) draw, with steps, tokens and hours as axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpt1_ds.config.task import SCALES
from gpt1_ds.report.charts import CHARTS, CONTROL, SCORES, Chart
from gpt1_ds.report.runs import Records, RunStory

AXES = ("step", "tokens", "hours")
ROWS = 16_000  # kept of the logged steps of all runs of a page together, so that it stays a few MB
HEAD = 200  # logged steps that are all kept: a log axis shows them wide
DETAIL = 300  # characters of an event
BAD = ("spike", "rolled back", "diverged", "failed", "stuck", "save failed", "set aside", "stale latest")
GRAMS = {1: "unigram", 2: "bigram", 3: "trigram"}
Columns = dict[str, list[Any]]
Points = list[tuple[int, float | None]]  # (step, value)

HOURS = (
    "Hours are those of the training steps alone: without evaluations and saves, without the time between a stop and a "
    "resume, and without steps that a resume repeated."
)


def hours(train: Records) -> list[float]:
    """Returns the hours of training after each logged step: the steps since the logged one before it times their mean
    time, added up.
    """
    seconds, before = [0.0], 0
    for record in train:
        seconds.append(seconds[-1] + (record["step"] - before) * (record.get("step_seconds") or 0.0))
        before = record["step"]
    return [total / 3600 for total in seconds[1:]]


def places(train: Records, steps: Sequence[float]) -> Columns:
    """Returns `steps` of a run with the tokens and hours after them; between two logged steps both grow evenly."""
    logged = [0, *(line["step"] for line in train)]
    tokens = np.interp(steps, logged, [0, *(line["tokens"] for line in train)])
    spent = np.interp(steps, logged, [0.0, *hours(train)])
    return {"step": list(steps), "tokens": tokens.round().astype(int).tolist(), "hours": spent.tolist()}


def gaps(steps: Sequence[int]) -> list[int]:
    """Returns the logged steps after a gap much wider than the intervals on both its sides: a curve begins anew
    there.
    """
    wide = np.diff(steps)
    beside = np.maximum(wide[:-2], wide[2:])
    return [steps[place + 2] for place in np.flatnonzero(wide[1:-1] > 10 * beside).tolist()]


def thinned(columns: Columns, rows: int) -> Columns:
    """Returns about `rows` rows at most: the first ones and, of each stretch of the others, those in which a column is
    least or greatest or has no value. No peak is lost.
    """
    total = len(columns["step"])
    if total <= rows:
        return columns
    measured = [np.array(values, dtype=float) for key, values in columns.items() if key not in AXES]
    kept = {*range(min(HEAD, total)), total - 1}
    for stretch in np.array_split(np.arange(HEAD, total), max(1, (rows - HEAD) // (3 * len(measured)))):
        for values in (column[stretch] for column in measured):
            absent = np.isnan(values)
            kept.update(stretch[absent][:1].tolist())
            if not absent.all():
                kept |= {int(stretch[np.nanargmin(values)]), int(stretch[np.nanargmax(values)])}
    order = sorted(kept)
    return {key: [values[row] for row in order] for key, values in columns.items()}


def data(stories: Sequence[RunStory]) -> dict[str, Any]:
    """Returns all that the page's charts need, as JSON values: runs (tables of columns, events) and charts (series)."""
    charts = [_score_chart("task", stories), *(_chart(one, stories) for one in CHARTS)]  # what a task's run is for
    charts += [_score_chart("zero_shot", stories), *_measured_charts(stories)]
    runs = [_run(story, ROWS // len(stories)) for story in stories]
    return {"runs": runs, "charts": [chart for chart in charts if chart["series"]], "bad": BAD}


def _run(story: RunStory, rows: int) -> dict[str, Any]:
    steps = [line["step"] for line in story.train]
    present = [key for one in CHARTS for key in one.columns(story)]
    train = {**places(story.train, steps), **{key: [finite(line.get(key)) for line in story.train] for key in present}}
    tables = {"train": thinned(train, rows)}
    curves = {"held_out": ("loss", [(line["step"], line["loss"]) for line in story.held_out])}
    curves |= {f"{name} {label}": ("score", points) for name in SCORES for label, points in scores(name, story).items()}
    curves |= {name: ("score", points) for name, points in measured(story).items()}
    for name, (key, points) in curves.items():
        values = [finite(value) for _, value in points]
        tables[name] = {**places(story.train, [step for step, _ in points]), key: values}
    short = {name: _short(table) for name, table in tables.items() if table["step"]}
    return {"name": story.name, "tables": short, "gaps": gaps(steps), "events": _events(story)}


def _events(story: RunStory) -> dict[str, Any]:
    """Returns where each event lies on the axes; one without a step happened at that of the event before it."""
    step, steps, texts = 0, [], []
    for event in story.events:
        step = event["step"] if isinstance(event.get("step"), int) else step
        steps.append(step)
        texts.append({"kind": kind_of(event), "time": event.get("time", ""), "text": details(event)})
    return {**_short(places(story.train, steps)), "shown": texts}


def kind_of(event: dict[str, Any]) -> str:
    """Returns an event's name; a start that is not the first one is a resume."""
    return "resumed" if event["event"] == "started" and event.get("step") else str(event["event"])


def details(event: dict[str, Any]) -> str:
    """Returns what an event says besides its name, time and step, in one short line."""
    named = {key: value for key, value in event.items() if key not in ("time", "event", "step")}
    text = ", ".join(f"{key} {value}" for key, value in named.items() if value not in ("", None))
    return text if len(text) <= DETAIL else f"{text[:DETAIL]}... (events.jsonl has all)"


def _chart(chart: Chart, stories: Sequence[RunStory]) -> dict[str, Any]:
    series: list[dict[str, Any]] = []
    for number, story in enumerate(stories):
        if chart.key == "task_loss" and _is_all_of_the_loss(story):
            continue
        held_out = chart.key == "loss" and bool(story.held_out)
        for key in chart.columns(story):
            label = f"{story.name}: training batch" if held_out else story.name
            colour, kind = number, key.removeprefix(chart.key).removeprefix("/")
            if kind:
                label, colour = (f"{story.name}: {kind}" if len(stories) > 1 else kind), len(series)
            series.append(_series(number, "train", key, label, colour, "line") | {"noisy": chart.noisy})
        if held_out:
            series.append(_series(number, "held_out", "loss", f"{story.name}: held out", number, "circles"))
    marks = _baselines(stories) if chart.key == "loss" else []
    caption = " ".join([chart.caption, *about_loss(stories, marks)]) if chart.key == "loss" else chart.caption
    title = chart.title
    if chart.key == "loss" and any(story.config.task for story in stories):
        title = "Loss"  # of a task it is a sum, of which the caption says the parts
    found = {"name": chart.name or chart.key, "title": title, "caption": caption, "series": series, "marks": marks}
    return found | ({"log": True} if chart.log else {})


def _is_all_of_the_loss(story: RunStory) -> bool:
    """Returns whether the loss of the task is the loss: then its chart would show the same curve again."""
    pairs = [(line["loss"], line.get("task_loss")) for line in story.train]
    return all(task is None or (loss is not None and math.isclose(loss, task, rel_tol=1e-6)) for loss, task in pairs)


def about_loss(stories: Sequence[RunStory], marks: Sequence[Any]) -> Iterator[str]:
    """Yields sentences on what the chart of losses shows of these runs."""
    if evaluated := [story for story in stories if story.held_out]:
        is_part = any(story.config.train.eval_batches for story in evaluated)
        yield f"Circles: of {'a fixed sample' if is_part else 'all'} of the held-out text (train.eval_batches)."
    if marks:
        yield "Dotted: what counting n-grams in the same training text predicts of all of the held-out text."
    if any(_has(story.train, "predicted") for story in stories):
        yield "Of masked text a token is one that is predicted."
    if any(_has(story.held_out, "pair_loss") for story in stories):
        yield "A training batch's loss of pairs is added to it, a held-out one's is not."
    tasks = [story.config.task for story in stories if story.config.task is not None]
    yield from dict.fromkeys(f"Loss of {task.name}: {task.loss_in_words}." for task in tasks)


def scores(name: str, story: RunStory) -> dict[str, Points]:
    """Returns the curves of a chart of SCORES, by label."""
    found: dict[str, Points] = {}
    for probe, records in story.probes.items() if name == "zero_shot" else ():
        if len(records) > 1:
            found[probe] = [(record["step"], normalised(probe, record)) for record in records]
            controls: Points = [
                (one["step"], normalised(probe, one, one["control"])) for one in records if "control" in one
            ]
            found |= {f"{probe}{CONTROL}": controls} if controls else {}
    for record in story.scores if name == "task" else ():
        for metric, value in record["metrics"].items():
            found.setdefault(f"{record['split']} {metric}", []).append((record["step"], value))
    return found


def measured(story: RunStory) -> dict[str, Points]:
    """Returns the curves of train.evaluations: of each the metric that decides, and that of its control."""
    found: dict[str, Points] = {}
    for record in story.measured:
        first, scored = _deciding(record), record["metrics"]
        for label, key in (("", first), (CONTROL, "control")):
            if key in scored:
                found.setdefault(f"{record['task']}{label}", []).append((record["step"], scored[key]))
    return found


def _deciding(record: dict[str, Any]) -> str:
    """Returns the first metric of a record, which is the one that decides."""
    return next(iter(record["metrics"]), "")


def _measured_charts(stories: Sequence[RunStory]) -> Iterator[dict[str, Any]]:
    """Yields a chart for each of train.evaluations, all runs in it."""
    metrics = {record["task"]: _deciding(record) for story in stories for record in story.measured}
    tables = [measured(story) for story in stories]
    for place, (task, metric) in enumerate(metrics.items()):
        series = [
            _series(number, f"{task}{label}", "score", f"{story.name}{label}", number, style)
            for number, story in enumerate(stories)
            for label, style in (("", "circles"), (CONTROL, "dashes"))
            if f"{task}{label}" in tables[number]
        ]
        caption = f"The {metric} of {task}, measured while the run trained (train.evaluations)."
        if any(one["style"] == "dashes" for one in series):
            caption += " Dashed: its control, what the model scores without what is asked about."
        title = f"{task}, {metric}"
        yield {"name": f"score_{place}", "title": title, "caption": caption, "series": series, "marks": []}


def normalised(probe: str, metrics: dict[str, Any], score: float | None = None) -> float:
    """Returns a probe's score, or another `score` of it, as charts show it: 0 is chance, 1 the best of its scale."""
    scale = SCALES[probe]
    score = metrics[scale.metric] if score is None else score
    return float((score - metrics["chance"]) / (scale.best - metrics["chance"]))


def _score_chart(name: str, stories: Sequence[RunStory]) -> dict[str, Any]:
    """Returns a chart in which a probe has the same colour as on every page, and its control has it, too."""
    title, marks = SCORES[name]
    series, probes = [], dict[str, bool]()  # probe -> whether a control of it is drawn
    for number, story in enumerate(stories):
        for place, label in enumerate(scores(name, story)):
            probe, style = label.removesuffix(CONTROL), "dashes" if label.endswith(CONTROL) else "circles"
            colour = list(SCALES).index(probe) if name == "zero_shot" else number + place
            probes[probe] = probes.get(probe, False) or style == "dashes"
            shown = f"{story.name}: {label}" if len(stories) > 1 else label
            series.append(_series(number, f"{name} {label}", "score", shown, colour, style))
    caption = " ".join(about_probes(probes)) if name == "zero_shot" else "The task's scores while it is fine-tuned."
    return {"name": name, "title": title, "caption": caption, "series": series, "marks": marks}


def about_probes(probes: Mapping[str, bool]) -> Iterator[str]:
    """Yields sentences on the probes that are drawn; True of one whose control is drawn, too."""
    yield "Zero-shot probes of the checkpoints: (score - chance) / (best - chance), so 0 (dotted) is guessing."
    for metric in dict.fromkeys(SCALES[name].metric for name in probes):
        named = ", ".join(name for name in probes if SCALES[name].metric == metric)
        yield f"The score of {named} is {'the correlation of Matthews' if metric == 'matthews' else metric}."
    if any(probes.values()):
        yield (
            "Dashed, in a probe's colour: its control, what the same checkpoint scores without what the probe is "
            "about. Only what is above it was learned."
        )
    for source in dict.fromkeys(SCALES[name].source for name in probes):
        named = ", ".join(f"{name} {SCALES[name].best:g}" for name in probes if SCALES[name].source == source)
        yield f"Best is for {named} ({source})."


def _series(run: int, table: str, key: str, label: str, colour: int, style: str) -> dict[str, Any]:
    return {"run": run, "table": table, "key": key, "label": label, "colour": colour, "style": style}


def _baselines(stories: Sequence[RunStory]) -> list[dict[str, Any]]:
    """Returns the lines of n-grams; runs on the same data have the same ones."""
    found = {(GRAMS[one["order"]], one["loss"]) for story in stories for one in story.baselines}
    return [{"label": label, "value": value} for label, value in sorted(found, key=lambda one: -one[1])]


def _has(records: Records, key: str) -> bool:
    return any(record.get(key) is not None for record in records)


def finite(value: float | None) -> float | None:
    """Returns None in the place of infinity and nan, which neither JSON nor a curve knows."""
    return value if value is not None and math.isfinite(value) else None


def _short(table: Columns) -> Columns:
    """Returns the table with six digits of each number, which are more than a chart shows."""
    return {key: [float(f"{x:.6g}") if isinstance(x, float) else x for x in xs] for key, xs in table.items()}
