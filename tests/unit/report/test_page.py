"""A report is made from a run folder's files alone."""

import html
import itertools
import json
import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.errors import DataError
from gpt1_ds.config import load, to_yaml
from gpt1_ds.report import curves, run_figures
from gpt1_ds.report.facts import headline, sampling_command, summary
from gpt1_ds.report.page import write_report
from gpt1_ds.report.runs import read, read_all
from tests.unit.tracking.test_record import train_record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    from dataclasses import asdict

    data, folder = tmp_path / "data", tmp_path / "runs" / "<b>odd & name"
    data.mkdir()
    folder.mkdir(parents=True)
    (data / "ngrams.json").write_text(
        json.dumps([{"order": 1, "loss": 6.5, "perplexity": 665.0, "bits_per_byte": 2.5}])
    )
    config = to_yaml(load([], [f"data.path={data}", "run.name=odd", "model.vocab_size=300"]))
    (folder / "config.yaml").write_text(config)
    lines = [
        asdict(train_record(step, loss=7 - step / 10, grad_norm=None if step == 3 else 1.0)) for step in range(1, 9)
    ]
    lines.append({"kind": "eval", "step": 8, "tokens": 80, "loss": 6.1, "perplexity": 445.0, "bits_per_byte": 2.2})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut off')
    (folder / "events.jsonl").write_text('{"time": "now", "event": "stopped", "step": 8, "seconds": 90.5}\n')
    scores = {"loss": 6.25, "perplexity": 518.0, "bits_per_byte": 2.25}
    entry = {"task": "held-out", "split": "validation", "step": 8, "metrics": scores}
    (folder / "eval.json").write_text(json.dumps([entry]))
    (folder / "samples.jsonl").write_text('{"step": 8, "prompt": "It", "text": " <script>was</script>"}\n')
    return folder


def test_one_page_holds_everything(run: Path) -> None:
    page = write_report([run]).read_text()
    for words in ("6.1000 nats per token", "6.2500 nats", "unigram", "6.50", "1 min 30 s", "parameters"):
        assert words in page
    assert "&lt;script&gt;was" in page, "text is text"
    assert page.count("<script") == 2, "the data and the page's own"
    assert "<b>odd" not in page
    assert not re.search(r"(src|href)=.(https?:)?//|url\((?!#)|@import|fetch\(", page), "nothing comes from a network"
    assert page.count("<svg") == 4
    assert len(page) < 1_000_000


@pytest.mark.parametrize(("rights", "page"), [(0o2770, 0o660), (0o700, 0o600), (0o755, 0o600)])
def test_the_page_of_a_run_of_the_group_is_for_the_group(run: Path, rights: int, page: int) -> None:
    """Another person could not make it again: figures/ was closed."""
    run.chmod(rights)
    before = os.umask(0o077)
    try:
        assert main(["report", str(run)]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((run / "report.html").stat().st_mode) == page
    assert stat.S_IMODE((run / "figures").stat().st_mode) & 0o770 == page | 0o100 | (page & 0o020) >> 1


def test_a_fine_tuned_run_has_not_the_flops_of_pre_training(run: Path) -> None:
    """Its rows are shorter, and its head is another one: the figure was half too large."""
    assert "FLOPs per token" in dict(summary(read(run)))
    words = ["run.name=odd", "model.vocab_size=300", "task.name=rte", "task.path=x"]
    (run / "config.yaml").write_text(to_yaml(load([], words)))
    assert "FLOPs per token" not in dict(summary(read(run)))


def as_task(run: Path) -> None:
    words = ["run.name=odd", "model.vocab_size=300", "task.name=rte", "task.path=x"]
    (run / "config.yaml").write_text(to_yaml(load([], words)))
    (run / "eval.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()[:8]
    for step, accuracy in ((4, 0.75), (8, 0.5)):
        scores = {"accuracy": accuracy, "f1": None}
        fields = {"kind": "task", "step": step, "tokens": 80, "task": "rte", "split": "dev", "loss": 0.5}
        lines.append(json.dumps(fields | {"metrics": scores}))
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_a_fine_tuned_run_shows_its_scores_at_the_top(run: Path) -> None:
    """It showed a training loss in nats per token, which is a sum of the task's and half of the language model's."""
    as_task(run)
    assert dict(headline(read(run)))["dev accuracy"] == "0.5000", "the newest, until the run has chosen"
    chosen = [{"step": 4, "task": "rte", "split": "dev", "metrics": {"accuracy": 0.75, "f1": None}}]
    chosen += [{"step": 0, "task": "control/majority/rte", "split": "dev", "metrics": {"accuracy": 0.25}}]
    chosen += [{"step": 8, "task": "rte", "split": "dev", "metrics": {"accuracy": 0.5, "f1": None}}]
    (run / "eval.json").write_text(json.dumps(chosen))
    story = read(run)
    shown = dict(summary(story))
    assert [value for what, value in headline(story) if what == "dev accuracy"] == ["0.7500"]
    assert "training loss" not in dict(headline(story))
    assert (shown["dev"], shown["training loss"]) == ("accuracy 0.75, f1 not defined, after 4 steps", "6.2000")
    assert [chart["title"] for chart in curves.data([story])["charts"][:2]] == ["Scores of the task", "Loss"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "--prompt"),
        ("model.kind=encoder_decoder model.norm=pre objective.kind=spans", "--source 'It was a <extra_id_0> day.'"),
        ("model.mask=bidirectional model.norm=pre objective.kind=masked", "fills &lt;mask&gt; in"),
    ],
)
def test_a_page_names_a_sample_that_the_model_can_write(run: Path, words: str, says: str) -> None:
    config = to_yaml(load([], ["run.name=odd", "model.vocab_size=300", *words.split()]))
    (run / "config.yaml").write_text(config)
    (run / "samples.jsonl").unlink()
    assert html.unescape(says) in html.unescape(write_report([run]).read_text())
    assert bool(sampling_command(read(run))) == ("bidirectional" not in words)


def test_several_runs_share_a_page(run: Path, tmp_path: Path) -> None:
    out = write_report([run, run], tmp_path / "both")
    assert out == tmp_path / "both" / "report.html"
    page = out.read_text()
    assert page.count("<h3>odd</h3>") == 2, "samples by run"
    assert page.count("</span>odd</th>") == 6, "summary, hyper-parameters and machine side by side"
    assert [one["label"] for one in curves.data([read(run), read(run)])["charts"][0]["marks"]] == ["unigram"]
    assert sorted(path.name for path in (tmp_path / "both" / "figures").iterdir())[:2] == [
        "gradient_norm.png",
        "gradient_norm.svg",
    ]


def test_runs_of_one_page_are_named_by_what_tells_them_apart(run: Path, tmp_path: Path) -> None:
    folders = []
    for number, model in enumerate(("GPT-1", "BERT")):
        folders.append(shutil.copytree(run, tmp_path / str(number)))
        recorded = folders[-1] / "config.yaml"
        recorded.write_text(re.sub(r"name: odd", f"name: grid/{model}/seed-1", recorded.read_text()))
    assert [story.name for story in read_all(folders)] == ["GPT-1", "BERT"]
    assert [story.name for story in read_all(folders[:1] * 2)] == ["seed-1", "seed-1"], "one part is left"


def test_a_run_without_a_step_yet(run: Path) -> None:
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(DataError, match="has no step yet"):
        write_report([run])


def test_the_folder_of_a_sweep_is_told_what_to_name(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"no run folder .*; it holds runs: {run}, for example$"):
        read(run.parent)
    with pytest.raises(DataError, match=r"; name a run folder, like runs/NAME$"):
        read(tmp_path / "data")


def test_labels_of_baselines_are_outside_the_axes_and_apart(run: Path) -> None:
    counted = [{"order": order, "loss": 6.5 - order / 100, "bits_per_byte": 2.5} for order in (1, 2, 3)]
    (run.parent.parent / "data" / "ngrams.json").write_text(json.dumps(counted))
    (axes,) = run_figures.draw(curves.data([read(run)]))["loss"].axes
    places = [text.xy for text in axes.texts]
    assert all(x > 1 for x, _ in places)
    heights = sorted(y for _, y in places)
    assert len(heights) == 3
    assert min(high - low for low, high in itertools.pairwise(heights)) > 0.0499


def test_many_curves_are_named_beside_the_axes_in_colours_of_their_own(run: Path) -> None:
    (axes,) = run_figures.draw(curves.data([read(run)] * 12))["loss"].axes
    legend = axes.get_legend()
    assert len(legend.get_texts()) == len({line.get_color() for line in legend.get_lines()}) == 12
    assert legend.get_window_extent().x0 > axes.get_window_extent().x1
