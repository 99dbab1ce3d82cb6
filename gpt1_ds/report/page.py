"""`report`: one self-contained page about one or several runs, and its figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpt1_ds import __version__
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.units import count, duration
from gpt1_ds.plan.count import flops_per_token
from gpt1_ds.report import evolution, figures
from gpt1_ds.report.profile_page import read_view
from gpt1_ds.report.runs import RunStory, read

CAPTIONS = {
    "loss": "Cross-entropy against training tokens: of each logged training batch (with dropout) and of the first "
    "train.eval_batches of the held-out text. Dotted: what counting words in the same training text predicts of all of "
    "the held-out text.",
    "learning_rate": "Learning rate of each logged step.",
    "gradient_norm": "Global gradient norm before clipping.",
    "zero_shot": evolution.CAPTION,
    "throughput": "Training speed of the interval before each logged step, evaluation and saves taken out.",
}


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write `report.html` (and figures/*.png, *.svg) into `out`, else the first run's folder; the page's path."""
    try:
        from jinja2 import Environment, FileSystemLoader
    except ImportError:
        raise UserError("jinja2 is not installed: pip install 'gpt1-ds[report]'") from None
    stories = [read(folder) for folder in folders]
    out = out or folders[0]
    (out / "figures").mkdir(parents=True, exist_ok=True)
    drawn = {name: figures.save(figure, out / "figures" / name) for name, figure in figures.draw(stories).items()}
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    page = environment.get_template("page.html").render(
        title=", ".join(story.name for story in stories),
        summaries=[_summary(story) for story in stories],
        figures=[(CAPTIONS[name], svg) for name, svg in drawn.items()],
        stories=stories,
        profiles=[(story.name, read_view(folder)) for story, folder in zip(stories, folders, strict=True)],
        version=__version__,
    )
    write_atomic(out / "report.html", page)
    return out / "report.html"


def _summary(story: RunStory) -> list[tuple[str, str]]:
    """(what, value) rows of the table at the top."""
    model, last = story.config.model, story.train[-1]
    rows = [
        ("run", story.name),
        ("model", f"{model.layers} layers x width {model.width}, {model.heads} heads, context {model.context}"),
        ("parameters", f"{story.parameters:,}"),
        ("operations per token", count(flops_per_token(model, model.vocab_size or 0))),
        ("trained", f"{last['step']:,} steps, {count(last['tokens'])} tokens"),
        ("training loss", f"{last['loss']:.4f} nats per token"),
    ]
    for title, records in (("while training", story.held_out), ("all of it", story.evaluations)):
        for record in records[-1:]:
            text = f"{record['loss']:.4f} nats per token, {record['bits_per_byte']:.4f} bits per byte"
            rows.append((f"held out, {title}", f"{text}, perplexity {record['perplexity']:.1f}"))
    for baseline in story.baselines:
        nats, bits = baseline["loss"], baseline["bits_per_byte"]
        rows.append(
            (f"{figures.GRAMS[baseline['order']]} baseline", f"{nats:.4f} nats per token, {bits:.4f} bits per byte")
        )
    rows += evolution.summary(story)
    speeds = sorted(record["tokens_per_second"] for record in story.train)
    seconds = sum(event.get("seconds", 0.0) for event in story.events)
    rows.append(("speed (median)", f"{count(speeds[len(speeds) // 2])} tokens per second"))
    if seconds:
        rows.append(("wall-clock time", duration(seconds)))
    return rows
