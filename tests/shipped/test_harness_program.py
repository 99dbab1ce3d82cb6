"""`evaluate --lm-eval` as a person uses it: tasks from files, results in eval.json, all of a run, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt1_ds.launcher import launch
from tests.helpers.foreign import make_checkpoint
from tests.helpers.harness_tasks import write_task
from tests.helpers.program import assert_refused
from tests.helpers.theirs import BERT
from tools.runs import configuration


@pytest.fixture(scope="module")
def finished(tiny_data: Path, sentence_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run saved at 5, 10 and 12, a masked model, and task files."""
    folder = tmp_path_factory.mktemp("harness")
    arguments = [f"data.path={tiny_data}", f"run.dir={folder}", "run.name=r", "train.steps=12"]
    assert launch.launch("gpt1_ds.training.pretraining:pretrain", (configuration(arguments),), 1) == 0
    make_checkpoint(folder / "bert", sentence_data.parent / "tokenizer", BERT)
    for form in ("blimp", "lambada", "rolling", "generation"):
        write_task(folder, form)
    write_task(folder, "blimp", name="coded", trust_remote_code="true")
    inner = "[{task: coded_inside, unsafe_code: true}]"
    (folder / "nested.yaml").write_text(f"group: outer\ntask: [{{group: middle, task: {inner}}}]\n")
    (folder / "unclosed.yaml").write_text("task: [unclosed\n")
    written = (folder / "local_generation.yaml").read_text()
    (folder / "long.yaml").write_text(written.replace("max_gen_toks: 8", "max_gen_toks: 4096"))
    (folder / "beams.yaml").write_text(written.replace("max_gen_toks: 8", "num_beams: 4\n  max_gen_toks: 8"))
    (folder / "gone.yaml").write_text((folder / "local_blimp.yaml").read_text().replace("local_blimp", "nowhere"))
    return folder


def entries(path: Path) -> dict[tuple[str, int], dict[str, float]]:
    return {(entry["task"], entry["step"]): entry["metrics"] for entry in json.loads(path.read_text())}


def test_results_are_in_eval_json_alike_on_two_ranks(gpt1, finished: Path) -> None:  # type: ignore[no-untyped-def]
    tasks = ",".join(str(finished / f"local_{form}.yaml") for form in ("blimp", "lambada", "rolling", "generation"))
    for ranks in ("1", "2"):
        done = gpt1("evaluate", str(finished / "r"), "--lm-eval", tasks, "--nproc", ranks, "--out", f"{ranks}.json")
        assert done.code == 0, done.err
        assert "it/s" not in done.err, "no bars of the harness"
    one, two = entries(Path("1.json")), entries(Path("2.json"))
    forms = {"blimp": "acc", "lambada": "perplexity", "rolling": "bits_per_byte", "generation": "exact_match"}
    assert set(one) == {(f"lm-eval/local_{form}", 12) for form in forms}
    for form, metric in forms.items():
        assert metric in one[f"lm-eval/local_{form}", 12]
    for key, metrics in one.items():
        assert two[key] == pytest.approx(metrics, rel=1e-4)


def test_every_checkpoint_once_into_the_run(gpt1, finished: Path) -> None:  # type: ignore[no-untyped-def]
    task = str(finished / "local_blimp.yaml")
    arguments = ("evaluate", str(finished / "r"), "--every", "--lm-eval", task, "--nproc", "1")
    assert gpt1(*arguments, "--limit", "3").code == 0
    found = entries(finished / "r" / "eval.json")
    assert {key: metrics["examples"] for key, metrics in found.items()} == {
        ("lm-eval/local_blimp", step): 3 for step in (5, 10, 12)
    }
    again = gpt1(*arguments, "--limit", "3")
    assert (again.code, again.err) == (0, ""), "nothing is left to do"
    assert gpt1(*arguments).code == 0
    assert entries(finished / "r" / "eval.json")["lm-eval/local_blimp", 5]["examples"] == 12


@pytest.mark.parametrize(
    ("checkpoint", "task", "arguments", "says"),
    [
        ("r", "", [], "--lm-eval: name tasks of the harness"),
        ("r", "nothing.yaml", [], "nothing.yaml: no such task file"),
        ("r", "coded.yaml", [], "runs code from a hub (trust_remote_code), which this program never does"),
        ("r", "nested.yaml", [], "--lm-eval coded_inside: runs code that the model writes (unsafe_code)"),
        ("r", "unclosed.yaml", [], "cannot be loaded"),
        ("r", "gone.yaml", [], "cannot be loaded"),
        ("r", "local_blimp.yaml", ["--limit", "0"], "--limit=0: at least 1 example is needed"),
        (
            "r",
            "long.yaml",
            [],
            "--lm-eval local_generation: wants up to 4096 tokens written (max_gen_toks), which model.context=",
        ),
        (
            "r",
            "beams.yaml",
            [],
            "--lm-eval local_generation: generation_kwargs has num_beams=4, which this program does not know",
        ),
        ("bert", "local_generation.yaml", [], "wants text written (generate_until), an encoder"),
        ("bert", "local_blimp.yaml", ["--sts", "x"], "--lm-eval and --sts: evaluate one of them at a time"),
    ],
)
def test_mistakes(  # type: ignore[no-untyped-def]
    gpt1, finished: Path, checkpoint: str, task: str, arguments: list[str], says: str
) -> None:
    name = str(finished / task) if task else ""
    assert_refused(gpt1("evaluate", str(finished / checkpoint), "--lm-eval", name, *arguments, "--nproc", "1"), says)


def test_a_fine_tuned_model_has_its_own_scores(gpt1, fine_tuned, finished: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = ("--lm-eval", str(finished / "local_blimp.yaml"), "--nproc", "1")
    assert_refused(gpt1("evaluate", str(fine_tuned("single")), *arguments), "--lm-eval asks language models")


def test_limit_needs_tasks(gpt1, finished: Path) -> None:  # type: ignore[no-untyped-def]
    assert_refused(gpt1("evaluate", str(finished / "r"), "--limit", "3"), "--lm-eval: name tasks of the harness")
