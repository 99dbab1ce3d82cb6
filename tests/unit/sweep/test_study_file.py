"""A study's file: what it may hold, how it says configuration keys, and every problem at once."""

from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load
from gpt1_ds.config.presets import SHIPPED
from gpt1_ds.sweep.finetuning_study import TABLE_5, FinetuningStudy, StudyTask, folder_name, load_study
from gpt1_ds.sweep.pretraining_trials import make_pretraining
from gpt1_ds.sweep.scaling_trials import make_trials
from tests.helpers.finetuning_trials import FILE, planned
from tests.helpers.scaling_trials import DATA_TOKENS, VOCABULARY
from tests.helpers.scaling_trials import read as small_study


def read(folder: Path, text: str) -> FinetuningStudy:
    (folder / "s.yaml").write_text(text)
    return load_study(str(folder / "s.yaml"))


def refused(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    assert all("\n" not in problem and str(folder / "s.yaml") in problem for problem in caught.value.problems)
    return [problem.partition(": ")[2] for problem in caught.value.problems]


MINIMAL = "checkpoint: runs/x\ntasks: [finetune/cola]\n"


def test_what_is_left_out() -> None:
    assert FinetuningStudy(checkpoint="x", name="x", tasks=[StudyTask(preset="finetune/cola", name="cola")]).seeds == [
        1,
        2,
        3,
    ]


def test_a_file_in_full(tmp_path: Path) -> None:
    study = read(
        tmp_path,
        """
        checkpoint: runs/x
        tasks:
          - finetune/cola
          - preset: finetune/qnli
            name: small qnli
            task: {path: data/nli, train: [a.json, "012"]}
            task.max_length: 64
        variants: {full: , no pre-training: null, LSTM: {checkpoint.init_from: runs/l}, low: {optimizer: {lr: 1e-5}}}
        overrides: {train.log_every: 5}
        layer_transfer: {tasks: [cola], layers: [-1, 0, 1]}
        jobs: 2
        keep_checkpoints: true
        """,
    )
    assert study.name == "s"
    words = ["task.path=data/nli", "task.train=[a.json, '012']", "task.max_length=64"]
    assert study.tasks[1] == StudyTask(preset="finetune/qnli", name="small qnli", overrides=words)
    assert study.variants == {
        "full": [],
        "no pre-training": ["task.transfer_layers=-1"],
        "LSTM": ["checkpoint.init_from=runs/l"],
        "low": ["optimizer.lr=1e-5"],
    }
    assert (study.overrides, study.jobs, study.keep_checkpoints) == (["train.log_every=5"], 2, True)
    assert study.layer_transfer is not None
    assert study.layer_transfer.layers == [-1, 0, 1]


def test_lists_reach_the_configuration_as_they_were_written(tmp_path: Path) -> None:
    from gpt1_ds.config import load

    study = read(tmp_path, MINIMAL + "overrides: {task.train: [012, 'a, b', no, '[x']}\n")
    task = load(["finetune/cola"], study.overrides).task
    assert task is not None
    assert task.train == ["012", "a, b", "no", "[x"]


def test_variants_of_the_paper_by_name(tmp_path: Path) -> None:
    study = read(tmp_path, MINIMAL + "variants: [full, no auxiliary LM]\n")
    assert study.variants == {"full": [], "no auxiliary LM": list(TABLE_5["no auxiliary LM"])}


def test_rows_may_begin_with_models_of_their_own(tmp_path: Path) -> None:
    rows = "variants: {a: {checkpoint.init_from: runs/a}, b: {checkpoint: {init_from: runs/b}}}\n"
    study = read(tmp_path, "tasks: [finetune/cola]\n" + rows)
    assert list(study.variants) == ["a", "b"], "and no other row"
    assert study.checkpoints == ["runs/a", "runs/b"]
    assert read(tmp_path, MINIMAL + rows.replace("{checkpoint: {init_from: runs/b}}", "{x.y: 1}")).checkpoints == [
        *("runs/a", "runs/x"),
    ]
    lacking = "tasks: [finetune/cola]\n" + rows.replace("checkpoint.init_from", "x.y")
    for text in (lacking, "tasks: [finetune/cola]\nlayer_transfer: {tasks: [cola], layers: [0]}\n" + rows):
        (problem,) = refused(tmp_path, text)
        assert problem.startswith("checkpoint is empty")


def test_models_of_the_study_are_rows_by_their_names(tmp_path: Path) -> None:
    text = (
        "tasks: [finetune/cola]\npretrain: [pretrain/books_cpu, {preset: pretrain/gpt2_books_cpu, name: b, x.y: 1}]\n"
    )
    study = read(tmp_path, text + "variants: {less: {pretrained: b, task.train_examples: 10}}")
    assert [(one.preset, one.name, one.overrides) for one in study.pretrain] == [
        ("pretrain/books_cpu", "books_cpu", []),
        ("pretrain/gpt2_books_cpu", "b", ["x.y=1"]),
    ]
    assert list(study.rows) == ["books_cpu", "b", "less"]
    assert study.rows["b"] == ["pretrained=b"]
    assert study.checkpoints == ["books_cpu", "b"]


def test_unknown_keys_get_a_suggestion(tmp_path: Path) -> None:
    problems = refused(tmp_path, MINIMAL + "seed: [1]\njob: 2\nlayer_transfer: {task: [x]}\n")
    assert [problem.partition(": there is ")[2] for problem in problems] == [
        "no key 'seed' here. Did you mean: 'seeds'?",
        "no key 'job' here. Did you mean: 'jobs'?",
        "no key 'task' here. Did you mean: 'tasks'?",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tasks: [finetune/cola]", "checkpoint is empty"),
        ("checkpoint: x", "tasks is empty"),
        ("tasks: finetune/cola", "is no list of presets"),
        ("tasks: [{name: x}]", "names no preset; write finetune/cola"),
        (MINIMAL + "variants: [ful]", "'ful' says nothing, and is no variant of the paper; choose full"),
        (MINIMAL + "variants: {mine: }", "'mine' says nothing"),
        (MINIMAL + "variants: [LSTM]", "variants.LSTM needs checkpoint.init_from"),
        (MINIMAL + "variants: {a b: {x.y: 1}, a-b: {x.y: 2}}", "two of them would lie in the folder a-b"),
        (MINIMAL + "variants: {x: {run.seed: 1}}", "variants.x: run.seed is set by the study"),
        (MINIMAL + "variants: {x: {run: {dir: y}}}", "variants.x: run.dir is the same for all cells"),
        (MINIMAL + "pretrain: pretrain/books_cpu", "is no list of presets, like [pretrain/books_cpu"),
        (MINIMAL + "pretrain: [{name: x}]", "names no preset; write pretrain/books_cpu"),
        (MINIMAL + "variants: {x: {pretrained: y}}", "variants.x: pretrained=y is not in pretrain; choose nothing"),
        (MINIMAL + "variants: {x: {pretrained_step: 3}}", "pretrained_step=3 must be a step of the model that pretr"),
        (
            MINIMAL + "pretrain: [{preset: p, name: x}]\nvariants: {y: {pretrained: x, pretrained_step: 0}}",
            "variants.y: pretrained_step=0 must be a step",
        ),
        (
            MINIMAL + "pretrain: [{preset: p, name: x}]\nvariants: {x: {a.b: 1}}",
            "two of them would lie in the folder x",
        ),
        (MINIMAL + "pretrain: [{preset: p, run.seed: 1}]", "pretrain.p: run.seed is set by the study"),
        (MINIMAL + "overrides: x=3", "is no mapping of configuration keys"),
        (MINIMAL + "seeds: [1, 1]", "must be different numbers"),
        (MINIMAL + "seeds: [9223372036854775808]", "from 0 to 2**63-1"),
        (MINIMAL + "variants: {majority: {x.y: 1}}", "variants: 'majority' is what the study itself calls something"),
        (
            MINIMAL + "variants: {transfer 1: {x.y: 1}}\nlayer_transfer: {tasks: [cola], layers: [1]}",
            "variants: 'transfer 1' is what the study itself calls something",
        ),
        (
            "checkpoint: x\ntasks: [{preset: finetune/cola, name: figures}]",
            "tasks: 'figures' is what the study itself calls something",
        ),
        (
            MINIMAL + "choose: {x.y: [1e+4, 1e-4]}",
            "choose: two trials would have the folder x.y-1e-4; choose other values",
        ),
        (MINIMAL + "seeds: [many]", "'many'"),
        (MINIMAL + "jobs: 0", "jobs=0 is too small"),
        (MINIMAL + "name: a/b", "cannot name a folder"),
        (MINIMAL + "layer_transfer: {tasks: [coal], layers: [0]}", "coal is no task of the study; choose cola"),
        (MINIMAL + "layer_transfer: {tasks: [cola], layers: [-2]}", "-1 is nothing, 0 embeddings only"),
        (MINIMAL + "layer_transfer: {tasks: [cola]}", "layers=[] must name at least one"),
        ("checkpoint: x\ntasks: [finetune/cola, {preset: finetune/rte, table: false}]", "table=false is for tasks of"),
        (MINIMAL + "overrides: {run.dir: '${oc.env:HOME}'}", "resolvers are off"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, text: str, says: str) -> None:
    problems = refused(tmp_path, text)
    assert len(problems) == 1, problems
    assert says in problems[0]


@pytest.mark.parametrize("path", sorted((SHIPPED / "finetune" / "study").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_studies_load(path: Path) -> None:
    study = load_study(f"finetune/study/{path.stem}")
    if not study.checkpoint:
        assert len(study.checkpoints) > 1 or study.pretrain, "a comparison of models"
        return
    assert all(keys or name in TABLE_5 for name, keys in study.variants.items()), (
        "the paper's rows, and some of its own"
    )
    assert {"full", "no pre-training"} <= study.variants.keys()


def test_names_of_folders() -> None:
    assert [folder_name(name) for name in ("no pre-training", "LSTM", "../x", "a/b c", "..")] == [
        *("no-pre-training", "LSTM", "x", "a-b-c"),
        "",
    ]


def test_comparisons_and_choices(tmp_path: Path) -> None:
    study = read(
        tmp_path,
        MINIMAL
        + "variants: {a: {optimizer.lr: 1e-5}, b: {optimizer.lr: 1e-4}}\nsplit: unseen\n"
        + "choose: {optimizer.weight_decay: [0, 0.1], train.epochs: [2, 3]}\n"
        + "compare: [{first: a, second: bag of words, expect: not above, margin: 1.5, tasks: [cola], claim: x}]\n",
    )
    assert study.choices[0] == ["optimizer.weight_decay=0", "train.epochs=2"]
    assert len(study.choices) == 4
    assert study.common == ["task.halves=true"]
    assert (study.compare[0].expect, study.compare[0].margin) == ("not above", 1.5)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("controls: [nothing]", "controls: 'nothing' is no row; choose from full"),
        ("compare: [{first: ful, second: majority}]", "compare[0].first='ful' is no row or control; choose full"),
        ("compare: [{first: full, second: full}]", "compare[0]: 'full' is compared with itself"),
        ("compare: [{first: full, second: majority, tasks: [rte]}]", "compare[0].tasks: rte is no column; choose cola"),
        ("compare: [{first: full, second: majority, margin: 0}]", "compare[0].margin=0.0 must be above 0"),
        ("compare: [{first: full, second: majority, expect: better}]", "compare"),
        ("choose: {optimizer.lr: []}", "choose.optimizer.lr=[] must name at least one value"),
        ("choose: {run.seed: [1, 2]}", "choose: run.seed is set by the study"),
        ("choose: [1]", "choose"),
        ("choose: {optimizer.lr: [1]}\nlayer_transfer: {tasks: [cola], layers: [0]}", "choose: a layer_transfer has"),
    ],
)
def test_wrong_comparisons_and_choices(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in problem for problem in refused(tmp_path, MINIMAL + text + "\n"))


def test_a_learning_curve_is_a_column_for_each_number(tmp_path: Path) -> None:
    study = read(
        tmp_path, "checkpoint: runs/x\ntasks: [{preset: finetune/rte, task.path: d, examples: {100: 20, 1000: 6}}]\n"
    )
    assert study.columns == ["rte-100", "rte-1000"]
    assert study.tasks[1].overrides == ["task.path=d", "task.train_examples=1000", "train.epochs=6"]
    told = refused(tmp_path, "checkpoint: runs/x\ntasks: [{preset: finetune/rte, examples: [100]}]\n")
    assert "is no mapping of numbers to epochs" in told[0]


def test_the_command_line_does_not_set_what_a_study_sets(tmp_path: Path) -> None:
    """They changed nothing, without a word."""
    said = [f"{key} is set by the study for every cell; leave it out" for key in ("run.seed", "run.name")]
    words = ["run.seed=7", "train.steps=3", "run.name=x"]
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, FILE, *words)
    assert list(caught.value.problems) == said
    with pytest.raises(ConfigError) as caught:
        make_pretraining(load_study(str(tmp_path / "s.yaml")), load, words)
    assert list(caught.value.problems) == said
    with pytest.raises(ConfigError, match=r"train.steps is set by the study for every cell; leave it out"):
        make_trials(small_study(tmp_path), words, VOCABULARY, DATA_TOKENS)
