"""`sample --input`: lines of text and of JSON, in order, and what is no prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpt1_ds
from gpt1_ds.cli import main
from gpt1_ds.evaluation import generate
from gpt1_ds.evaluation.decoding import write
from gpt1_ds.evaluation.language_model import LanguageModel
from gpt1_ds.evaluation.sampling import Sampling
from tests.helpers.foreign import SMALL, make_checkpoint
from tests.helpers.published import published

TEXTS = ["the module", "a file", "return the list of the module", "It", "class"]


@pytest.fixture(scope="module")
def checkpoint(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("prompts") / "c", tiny_data.parent / "tokenizer", SMALL)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> LanguageModel:
    return gpt1_ds.load(checkpoint)


def sample(capsys: pytest.CaptureFixture[str], checkpoint: Path, *arguments: str) -> tuple[int, list[str], str]:
    capsys.readouterr()
    code = main(["sample", "--checkpoint", str(checkpoint), *arguments])
    found = capsys.readouterr()
    return code, found.out.splitlines(), found.err


def test_several_texts_of_a_prompt(checkpoint: Path, model: LanguageModel, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--prompt", "It was", "--tokens", "6", "--seed", "4"]
    code, out, _ = sample(capsys, checkpoint, *arguments, "--samples", "3")
    texts = "\n".join(out).split("\n---\n")
    alone = ["\n".join(sample(capsys, checkpoint, *arguments[:-1], str(seed))[1]) for seed in (4, 5, 6)]
    assert (code, texts) == (0, alone)
    assert len({*texts}) == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--samples", "0"], "--samples 0 must be at least 1, and 1 with --input, whose rows have seeds"),
        (
            ["--samples", "2", "--temperature", "0"],
            "--samples=2 must be 1 where nothing is drawn: at temperature 0, and with beams",
        ),
        (
            ["--samples", "2", "--beams", "2"],
            "--samples=2 must be 1 where nothing is drawn: at temperature 0, and with beams",
        ),
    ],
)
def test_several_texts_are_drawn(
    arguments: list[str], reason: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = sample(capsys, checkpoint, "--prompt", "It was", *arguments)
    assert (code, out) == (2, [])
    assert error.strip().endswith(reason)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_line_each_in_order(
    as_json: bool, checkpoint: Path, model: LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(generate, "PROMPTS", 2)
    file = tmp_path / "prompts"
    lines = [json.dumps({"text": text, "seed": 3}) if as_json else text for text in TEXTS]
    file.write_text("\n".join(lines))
    code, out, _ = sample(capsys, checkpoint, "--input", str(file), "--tokens", "6", "--seed", "3")
    wanted = [{"prompt": text, "text": model.generate(text, 6, seed=3)} for text in TEXTS]
    assert (code, [json.loads(line) for line in out]) == (0, wanted)
    assert len({one["text"] for one in wanted}) > 3


def test_a_seed_of_its_own_and_beams(
    checkpoint: Path, model: LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"text": "It was", "seed": seed}) + "\n" for seed in (1, 2, 1)))
    _, out, _ = sample(capsys, checkpoint, "--input", str(file), "--tokens", "6")
    texts = [json.loads(line)["text"] for line in out]
    assert texts == [model.generate("It was", 6, seed=seed) for seed in (1, 2, 1)]
    arguments = ["--tokens", "6", "--beams", "3", "--length-penalty", "gnmt", "--length-alpha", "0.6", "--early-end"]
    _, out, _ = sample(capsys, checkpoint, "--input", str(file), *arguments)
    best = model.generate("It was", 6, beams=3, length_penalty="gnmt", length_alpha=0.6, early_end=True)
    assert {json.loads(line)["text"] for line in out} == {best}
    _, out, _ = sample(capsys, checkpoint, "--prompt", "It was", *arguments)
    assert "\n".join(out).startswith("It was")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("p.txt", b"the\n\nfile\n", "line 2: is empty"),
        ("p.jsonl", b'{"text": "a"}\n{"text": 3}\n', 'line 2: needs "text", a string'),
        ("p.jsonl", b'{"text": "a", "seed": -4}\n', "line 1: seed=-4 must be 0 or more"),
        ("p.jsonl", b"text\n", "line 1: not JSON"),
        ("p.txt", b"\xff\n", "line 1: holds bytes that are not UTF-8"),
    ],
)
def test_what_is_no_prompt_is_one_line(
    name: str, content: bytes, says: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    code, _, told = sample(capsys, checkpoint, "--input", str(tmp_path / name), "--tokens", "2")
    assert (code, len(told.splitlines())) == (2, 1)
    assert f"{tmp_path / name} {says}" in told


def test_flags_that_do_not_go_together(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, says in (
        (["--beams", "4", "--top-k", "5"], "--beams=4 must be 1 for temperature, top_k"),
        (["--beams", "4", "--temperature", "1.5"], "--beams=4 must be 1 for temperature, top_k"),
        (["--beams", "4", "--temperature", "0.8"], "--beams=4 must be 1 for temperature, top_k"),  # the default
        (["--early-end"], "--beams=1 must be 2 or more"),
        (["--beams", "0"], "--beams=0 must be at least 1"),
        (["--tokens", "4", "--min-tokens", "5"], "--min-tokens=5 must be 0 or more, and at most tokens=4"),
        (["--repetition-penalty", "0"], "--repetition-penalty=0.0 must be above 0"),
    ):
        code, _, told = sample(capsys, checkpoint, "--prompt", "It", *arguments)
        assert (code, len(told.splitlines())) == (2, 1), told
        assert says in told
    for place, says in (
        (tmp_path / "none", "no such file; --input names one with a prompt a line"),
        (tmp_path, "is a folder; --input names a file with a prompt a line"),
    ):
        code, _, told = sample(capsys, checkpoint, "--input", str(place))
        assert (code, told) == (2, f"gpt1-ds: {place}: {says}\n")


@pytest.mark.parametrize("kind", ["openai", "bert", "t5", "gpt2"])
def test_the_blank_after_a_prompt_is_that_of_the_whole_text(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(kind, tmp_path / "tokenizer")
    checkpoint = make_checkpoint(tmp_path / "c", tmp_path / "tokenizer", SMALL)
    loaded, blanks = gpt1_ds.load(checkpoint), 0
    for prompt in ("It was", "It was ", "It was\n", "and his sister", ""):
        ids = loaded.tokenizer(prompt)
        for seed in range(6):
            sampling = Sampling(tokens=4, seed=seed)
            (found,) = write(loaded.model, loaded.tokenizer, [ids], sampling, name="c")
            text = loaded.generate(prompt, 4, seed=seed)
            whole = loaded.tokenizer.decode([*ids, *found])
            seen, wanted = (prompt + text).lower().split(), whole.lower().split()
            if prompt[-1:].isspace():  # of the author's own blank a tokenizer may know nothing
                assert "".join(seen) == "".join(wanted)
                assert kind == "gpt2" or not text.startswith(" "), "one blank is enough"
            else:
                assert seen == wanted
            blanks += text.startswith(" ")
            if kind == "gpt2":
                assert text == loaded.tokenizer.decode(found)
    assert blanks > 2
    _, out, _ = sample(capsys, checkpoint, "--prompt", "It was", "--tokens", "4", "--seed", "3")
    assert "\n".join(out).strip() == ("It was" + loaded.generate("It was", 4, seed=3)).strip()


def test_half_a_character_is_shown_alone() -> None:
    class Bytes:
        def decode(self, ids: list[int]) -> str:
            return bytes(ids).decode(errors="replace")

    half, rest = list("é".encode()[:1]), list("é".encode()[1:])
    assert generate._text_after(Bytes(), "", half, rest) == "\ufffd"  # type: ignore[arg-type]
    assert generate._text_after(Bytes(), "a", [97], half) == "\ufffd"  # type: ignore[arg-type]
