"""Configuration files and arguments: literal strings, counts, layers, and every problem at once."""

from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load, to_yaml
from gpt1_ds.config.presets import SHIPPED


def problems(*arguments: str, text: str | None = None, tmp_path: Path | None = None) -> list[str]:
    files = []
    if text is not None and tmp_path is not None:
        (tmp_path / "x.yaml").write_text(text)
        files = [str(tmp_path / "x.yaml")]
    with pytest.raises(ConfigError) as caught:
        load(files, arguments)
    return list(caught.value.problems)


def test_defaults_are_valid_and_round_trip(tmp_path: Path) -> None:
    config = load()
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    assert load([str(tmp_path / "c.yaml")], ["run.name=run"]) == config


STUDIES = ("study", "scaling")  # no run, but many
BEFORE = {"text": ["finetune/sst2"]}  # of a preset that changes how a task is answered, any task
RUNS = [path for path in sorted(SHIPPED.rglob("*.yaml")) if path.parent.name not in STUDIES]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(SHIPPED)))
def test_shipped_presets_load(path: Path) -> None:
    before = BEFORE.get(path.stem, [])
    config = load([*before, str(path)])
    assert config.run.name == (f"{before[0].partition('/')[2]}-{path.stem}" if before else path.stem)
    name = str(path.relative_to(SHIPPED).with_suffix(""))
    assert load([*before, name]) == config, "by name, without the suffix, too"


@pytest.mark.parametrize("value", ["no", "off", "012", "12e5", "1_000", "20.00", "true", "~x", "null"])
def test_strings_stay_as_they_are_written(value: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"run:\n  dir: {value}\n")
    assert load([str(tmp_path / "c.yaml")]).run.dir == value
    assert load([], [f"run.dir={value}"]).run.dir == value


def test_times_are_not_base_60(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("tracking: {project: 20:00:00, tags: [12:30:45, 0123]}\n")
    tracking = load([str(tmp_path / "c.yaml")]).tracking
    assert tracking.project == "20:00:00"
    assert tracking.tags == ["12:30:45", "0123"]


def test_counts_and_nulls() -> None:
    config = load([], ["train.tokens=10B", "model.layers=1e1", "model.ffn=null", "optimizer.lr=1e-3"])
    assert (config.train.tokens, config.model.layers, config.model.ffn, config.optimizer.lr) == (10**10, 10, None, 1e-3)


def test_layers_merge_left_to_right(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: {layers: 3, width: 32}\ntrain: {tokens: 1M}\n")
    (tmp_path / "b.yaml").write_text("model: {layers: 5}\ntrain: {epochs: 2}\n")
    config = load([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")], ["model.heads=2"])
    assert (config.model.layers, config.model.width, config.model.heads) == (5, 32, 2)
    assert (config.train.tokens, config.train.epochs, config.train.steps) == (None, 2.0, None)
    assert config.run.name == "b"


def test_a_file_on_how_a_task_is_done_is_named_with_the_task() -> None:
    """Two tasks in text are two runs, and neither is the run of the task's head."""
    names = [load([f"finetune/{task}", "finetune/text"]).run.name for task in ("sst2", "cola")]
    assert names == ["sst2-text", "cola-text"]
    assert load(["finetune/sst2", "parallel/tp2_pp2"]).run.name == "tp2_pp2"
    assert load(["finetune/sst2", "finetune/text"], ["run.name=mine"]).run.name == "mine"


def test_what_is_no_file_is_said(in_folder: Path) -> None:
    Path("folder").mkdir()
    with pytest.raises(ConfigError, match="folder: is no regular file"):
        load(["folder"])


def test_keys_that_exclude_each_other_in_one_layer() -> None:
    found = problems("train.steps=5", "train.tokens=1M", "schedule.warmup_steps=1", "schedule.warmup_fraction=0.1")
    assert found == [
        "command line: train.steps and train.tokens exclude each other; keep one",
        "command line: schedule.warmup_steps and schedule.warmup_fraction exclude each other; keep one",
    ]


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = "model: {layer: 3, heads: four}\ntrain: {precision: fp33}\nschedul: {kind: linear}\n"
    found = problems("model.width=x", text=text, tmp_path=tmp_path)
    assert len(found) == 5
    assert "model.layer" in found[0]
    assert "Did you mean: 'layers'" in found[0]
    assert all("x.yaml" in line for line in found[:4])
    assert "command line: model.width" in found[4]


def test_data_sources_in_every_form() -> None:
    for arguments in (["data.path=a"], ["data.path=[a]"], ["data.path=[{path: a}]"]):
        assert [source.path for source in load([], arguments).data.path] == ["a"]
    sources = load([], ["data.path=[{path: a, weight: 2}, b]"]).data.path
    assert [(source.path, source.weight) for source in sources] == [("a", 2.0), ("b", 1.0)]


def test_deepspeed_settings_pass_through_with_types() -> None:
    settings = load(
        [], ["parallel.deepspeed.zero_optimization.reduce_bucket_size=5e8", "parallel.deepspeed.dump_state=true"]
    )
    assert settings.parallel.deepspeed == {"zero_optimization": {"reduce_bucket_size": 5e8}, "dump_state": True}


@pytest.mark.parametrize(
    "argument",
    [
        "run.name=${oc.env:HOME}",
        "tracking.tags=['${oc.env:HOME}']",
        "parallel.deepspeed.x=${oc.decode:1}",
        "tracking.project=${${tracking.group}:SECRETX}",
        "tracking.project=${oc.${tracking.group}:SECRETX}",
        "tracking.project=a${ oc.env:SECRETX}",
        "tracking.project=${oc.env",
        "tracking.project=\\${oc.env:SECRETX}",
        "tracking.project=${'oc.env':SECRETX}",
    ],
)
def test_resolvers_are_off(argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRETX", "hush")
    (line,) = problems("tracking.group=oc.env", argument)
    assert "resolvers are off" in line


@pytest.mark.parametrize(
    "argument", ["run.name=${model}", "run.name=a${data.path}", "tracking.group=${tracking.project}"]
)
def test_an_interpolation_of_no_plain_value_is_one_problem(argument: str) -> None:
    (line,) = problems("tracking.project=${model.layers}", argument)
    assert "is not one plain value; write the value itself" in line
    assert "hush" not in line


def test_an_interpolation_of_a_key_that_is_not_there_is_told_with_its_own() -> None:
    assert problems("run.name=${x}") == ["run.name: Interpolation key 'x' not found"]


def test_another_key_may_be_named() -> None:
    assert load([], ["run.name=r${model.layers}", "model.layers=3"]).run.name == "r3"


def test_words_in_the_wrong_form() -> None:
    (line,) = problems("--model.layers=3")
    assert line == "'--model.layers=3': keys are written without dashes: model.layers=3"
    (line,) = problems("optimizer.betas[1]=.95")
    assert "write optimizer.betas=[...]" in line
    (line,) = problems("model.layers")
    assert "not key=value" in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [1, 2", "not readable as YAML"),
        ("just words", "expected sections"),
        ("model: {layers: 1, layers: 2}", "written twice"),
        ("a: &x [1]\nb: *x", "aliases"),
        ("a: !!python/object/apply:os.system [true]", "there is no section 'a'"),
    ],
)
def test_files_that_cannot_be_read(text: str, message: str, tmp_path: Path) -> None:
    import re

    assert re.search(message, problems(text=text, tmp_path=tmp_path)[0])


def test_missing_and_oversized_files(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no such file, and no shipped preset of that name; did you mean pretrain/gpt1"
    ):
        load(["pretrain/gpt1_118m"])
    big = tmp_path / "big.yaml"
    big.write_text("#" * (1 << 21))
    with pytest.raises(ConfigError, match="too large"):
        load([str(big)])


def test_a_task_is_there_where_it_is_named_only(tmp_path: Path) -> None:
    assert load().task is None
    assert "\ntask:" not in to_yaml(load())
    arguments = [
        "task.name=table",
        "task.path=012",
        "task.kind=choice",
        "task.columns={text: t, label: l, choices: [a, b]}",
    ]
    config = load([], [*arguments, "task.transfer_layers=-1", "task.train_examples=1k", "task.max_length=null"])
    assert config.task is not None
    assert (config.task.path, config.task.transfer_layers, config.task.train_examples) == ("012", -1, 1000)
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    assert load([str(tmp_path / "c.yaml")], ["run.name=run"]) == config
    assert load([str(tmp_path / "c.yaml")], ["run.name=run", "task=null"]).task is None


def test_a_word_of_a_key_is_enough_to_name_it() -> None:
    keys = ("global_batch", "batch_warmup", "batch_warmup_tokens", "micro_batch")
    assert f"did you mean {' or '.join(f'train.{key}' for key in keys)}?" in problems("train.batch=8")[0]
    assert "did you mean checkpoint.every?" in problems("train.every=8")[0], "it has this very name"


def test_a_task_is_told_of_its_mistakes() -> None:
    assert "Did you mean: 'name'?" in problems("task.nam=cola")[0]
    assert "task.name is empty; add a preset like -c finetune/cola" in problems("task.path=x")[0]
    assert "Did you mean" in problems("task.columns.txt=cola")[0]
    assert "task" in problems("task=cola")[0]
    assert "regresion" in problems("task.name=table", "task.path=x", "task.kind=regresion")[0]


def test_a_key_apart_from_its_value_is_put_together() -> None:
    with pytest.raises(ConfigError) as caught:
        load([], ["train.steps", "40", "model.layers"])
    assert caught.value.problems == (
        "'train.steps' is not key=value; write train.steps=40",
        "'model.layers' is not key=value; write model.layers=12, for example",
    )
