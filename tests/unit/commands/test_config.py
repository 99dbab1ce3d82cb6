"""`config`: presets and keys, as a person looks for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpt1_ds.cli import main
from gpt1_ds.config import Config, load, to_yaml
from gpt1_ds.config.presets import presets
from gpt1_ds.config.values import keys_of
from gpt1_ds.training.resume import changes


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["config", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["config", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_every_preset_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[0] for line in printed(capsys, "ls")] == presets()
    assert [line.split()[0] for line in printed(capsys, "ls", "BERT", "appendix")] == [
        *("pretrain/bert_base", "pretrain/bert_base_128", "pretrain/bert_large"),
    ]
    assert "no preset has nothing-like-it in its name" in refused(capsys, "ls", "nothing-like-it")


def test_every_key_has_its_default_and_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "keys")
    names = [line.partition("=")[0] for line in lines[::2]]
    assert set(keys_of(Config)) - {"probes"} <= set(names), "probes are a list, whose keys are there"
    assert all(line.startswith("    ") and line.strip() for line in lines[1::2])
    assert printed(capsys, "keys", "warmup_steps") == [
        "schedule.warmup_steps=null  (integer or null)",
        "    optimizer steps of linear warm-up from 0",
    ]
    assert "did you mean optimizer.lr?" in refused(capsys, "keys", "lr_")


def test_it_shows_what_files_and_words_make(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: {layers: 3}\n")
    arguments = ["pretrain/tiny_cpu", str(file), "train.steps=7"]
    wanted = to_yaml(load(arguments[:2], arguments[2:]))
    assert "\n".join(printed(capsys, "show", *arguments)) + "\n" == wanted
    assert (
        "\n".join(printed(capsys, "show", "train.steps=7", *(f"-c{argument}" for argument in arguments[:2]))) + "\n"
        == wanted
    )


def test_it_shows_and_compares_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before, after = load(["pretrain/tiny_cpu"]), load(["pretrain/tiny_cpu"], ["optimizer.lr=1e-4", "model.layers=3"])
    for name, config in (("a", before), ("b", after)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(to_yaml(config))
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert yaml.safe_load("\n".join(printed(capsys, "show", b)))["model"]["layers"] == 3
    assert printed(capsys, "diff", a, b) == ["model.layers  2 -> 3", "optimizer.lr  0.002 -> 0.0001"]
    assert printed(capsys, "diff", a, a) == [f"{a} and {a} differ in no key but run.name"]
    assert "is the folder of a run" in refused(capsys, "show", a, "model.layers=3")
    assert "no folder of a run: it has no config.yaml" in refused(capsys, "show", str(tmp_path))


def test_one_name_is_compared_with_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    found = {line.split()[0] for line in printed(capsys, "diff", "pretrain/gpt1_117m")}
    assert found == changes(Config(), load(["pretrain/gpt1_117m"])).keys() - {"run.name"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show", "scaling/books"), "is the file of a study, "),
        (("show", "finetune/study/text_books"), "`gpt1-ds finetune study finetune/study/text_books` reads it"),
        (("show", "pretrain/gpt3"), "pretrain/gpt3: no such file, and no shipped preset of that name; did you mean"),
        (("show", "model.layer=3"), "Did you mean: 'layers'?"),
        (("diff", "pretrain/gpt2", "nonsense"), "nonsense: no such file, and no shipped preset"),
    ],
)
def test_a_wrong_name_is_one_line(arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refused(capsys, *arguments)
