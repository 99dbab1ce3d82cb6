"""Vectors of sentences: what is pooled, what is nearest, and the commands around them."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpt1_ds.cli import main
from gpt1_ds.common.errors import ArgumentError, CheckpointError, ConfigError
from gpt1_ds.config import ModelConfig
from gpt1_ds.config.load import load
from gpt1_ds.engine.session import distributed_session
from gpt1_ds.evaluation.continuations import Continuations
from gpt1_ds.evaluation.embed import Embedder, nearest, normalised, shared_vectors
from gpt1_ds.evaluation.load import Loaded, load_checkpoint
from gpt1_ds.launcher import launch
from tests.helpers.foreign import make_checkpoint

ENCODER = ModelConfig(
    **{"layers": 2, "width": 16, "heads": 2, "context": 32, "mask": "bidirectional", "embedding_norm": True},
    **{"head": "masked", "activation": "gelu", "segments": 2},
)
TEXTS = ["the module returns a list", "a file", "no object is called with two arguments and raises an error"]
LONG = "names " * 50


@pytest.fixture(scope="module")
def folders(sentence_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place, tokenizer = tmp_path_factory.mktemp("embedded"), sentence_data.parent / "tokenizer"
    models = {"encoder": ENCODER, "causal": ModelConfig(layers=2, width=16, heads=2, context=32)}
    return {name: make_checkpoint(place / name, tokenizer, model) for name, model in models.items()}


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path]) -> Loaded:
    return load_checkpoint(folders["encoder"])


def alone(loaded: Loaded, text: str) -> tuple[torch.Tensor, list[int]]:
    """(last states [T, D] of a text in a row by itself, its ids)."""
    special = loaded.tokenizer.special_ids
    ids = [special.cls, *loaded.tokenizer.encode(text).tolist(), special.separator]
    with torch.no_grad():
        hidden_SBD = loaded.model.hidden(torch.tensor(ids).unsqueeze(1))
    return hidden_SBD[:, 0], ids


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "words"])
def test_padding_and_neighbours_change_nothing(pooling: Any, loaded: Loaded) -> None:
    found = Embedder(loaded, pooling).vectors(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        states_TD, ids = alone(loaded, text)
        words = loaded.model.tokens.weight[ids[1:-1]].detach().mean(0)
        wanted = {"mean": states_TD.mean(0), "cls": states_TD[0], "max": states_TD.max(0).values, "words": words}
        np.testing.assert_allclose(vector, wanted[pooling], rtol=0, atol=1e-6)


def test_a_causal_model_pools_its_tokens(folders: dict[str, Path]) -> None:
    loaded = load_checkpoint(folders["causal"])
    (vector,) = Embedder(loaded).vectors(TEXTS[:1])
    ids = [loaded.tokenizer.eod_id, *loaded.tokenizer.encode(TEXTS[0]).tolist()]
    with torch.no_grad():
        hidden_SBD = loaded.model.hidden(torch.tensor(ids).unsqueeze(1))
    np.testing.assert_allclose(vector, hidden_SBD[:, 0].mean(0), rtol=0, atol=1e-6)
    with pytest.raises(ArgumentError, match=r"^pooling=cls: .*: its first token sees no other; use mean or max$"):
        Embedder(loaded, "cls")


@pytest.mark.parametrize("model", ["encoder", "causal"])
def test_long_texts_are_cut_and_counted(model: str, folders: dict[str, Path]) -> None:
    embedder = Embedder(load_checkpoint(folders[model]))
    cut, _ = embedder.vectors([LONG, "a file"])
    assert embedder.cut == 1
    assert np.isfinite(cut).all()


def test_models_without_such_vectors(loaded: Loaded) -> None:
    for change in ({"kind": "encoder_decoder"}, {"mask": "prefix"}):
        model = replace(loaded.config.model, **change)
        with pytest.raises(ConfigError, match="vectors are those of causal and bidirectional models"):
            Embedder(replace(loaded, config=replace(loaded.config, model=model)))
    windows = replace(loaded, step=7)  # as pre-training here makes it, on windows of text
    with pytest.raises(ArgumentError, match="it has seen text without <cls>; use mean or max"):
        Embedder(windows, "cls")


def test_nearest_first() -> None:
    documents_ND = np.array([[0, 2], [3, 0], [1, 1], [0, 0], [-1, 0]], dtype=np.float32)
    found = nearest(np.array([5, 0], dtype=np.float32), documents_ND, 4)
    assert [number for number, _ in found] == [1, 2, 0, 3]
    np.testing.assert_allclose([cosine for _, cosine in found], [1, 0.5**0.5, 0, 0], atol=1e-7)
    assert np.isfinite(normalised(documents_ND)).all()


def test_embed_and_search(folders: dict[str, Path], in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("lines.txt").write_text("\n".join(TEXTS) + "\n")
    Path("lines.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    checkpoint = str(folders["encoder"])
    for source, target in (("lines.txt", "out.npy"), ("lines.jsonl", "out.jsonl")):
        assert main(["embed", checkpoint, "--input", source, "--output", target]) == 0
    vectors = np.load("out.npy")
    assert (vectors.shape, vectors.dtype) == ((3, 16), np.float32)
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    assert (np.array([row["vector"] for row in rows], dtype=np.float32) == vectors).all()
    capsys.readouterr()
    assert main(["search", checkpoint, "--documents", "lines.txt", "--query", TEXTS[1], "--top", "2"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split(maxsplit=2) == ["1.0000", "2", "a file"]
    assert float(second.split()[0]) <= 1


@pytest.mark.parametrize("kind", ["npy", "jsonl"])
def test_older_vectors_stay_where_new_ones_have_no_space(
    kind: str, folders: dict[str, Path], in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lines.txt").write_text("a film\n" * 9)
    older = Path(f"older.{kind}")
    older.write_text("of a day\n")
    Path(f"o.{kind}").symlink_to(older)
    words = ["embed", str(folders["encoder"]), "--input", "lines.txt", "--output", f"o.{kind}"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        assert main(words) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"{older}: larger than a file may be here" in capsys.readouterr().err
    assert older.read_text() == "of a day\n"
    assert sorted(os.listdir()) == ["lines.txt", f"o.{kind}", older.name]
    assert main(words) == 0
    assert Path(f"o.{kind}").is_symlink()
    assert older.stat().st_size > 300


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["embed", "--input", "a.txt", "--output", "o.csv"],
            "--output o.csv: its name ends in neither .npy nor .jsonl",
        ),
        (["embed", "--input", "none.txt", "--output", "o.npy"], "none.txt: no such file; --input names one with a tex"),
        (["embed", "--input", "a.txt", "--output", "no/o.npy"], "no/o.npy: no file can be there; choose another --out"),
        (["embed", "--input", "a.txt", "--output", "/proc/sys/o.npy"], "/proc/sys/o.npy: you may not write there"),
        (["evaluate", "--out", "/proc/sys/e.json"], "/proc/sys/e.json: you may not write there; choose another --out"),
        (["evaluate", "--out", "pipe"], "pipe: no file can be there; choose another --out"),
        (["embed", "--input", "a.jsonl", "--output", "a.jsonl"], "a.jsonl: is what is read, too; choose another --out"),
        (["embed", "--input", "gap.txt", "--output", "o.npy"], "gap.txt line 2: is empty"),
        (["embed", "--input", "empty.txt", "--output", "o.npy"], "empty.txt: is empty; it is to hold a text a line"),
        (["embed", "--input", "/dev/null", "--output", "o.npy"], "/dev/null: is empty; it is to hold a text a line"),
        (["embed", "--input", "empty", "--output", "o.npy"], "empty: is a folder; --input names a file with a text a"),
        (["search", "--documents", "empty", "--query", "x"], "empty: is a folder; --documents names a file with a te"),
        (["embed", "--input", "a.txt", "--output", "o.npy", "--pooling", "last"], "--pooling"),
        (["search", "--documents", "a.txt", "--query", "x", "--top", "0"], "--top 0 must be at least 1"),
        (["search", "--documents", "a.txt", "--query", " "], "--query is empty; say what is looked for"),
        (["evaluate", "--pooling", "cls"], "--pooling cls: says how --sts makes vectors; add --sts PATH (STS-B)"),
        (["evaluate", "--sts", "none"], "none: no such folder or file; name scored pairs, like the folder of STS-B"),
        (["evaluate", "--sts", "empty"], "empty: has no scored pairs; name the folder of STS-B, or a file of"),
    ],
)
def test_refusals_are_one_line(
    words: list[str], message: str, folders: dict[str, Path], in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("a.txt", "x\n"), ("a.jsonl", '{"text": "x"}\n'), ("gap.txt", "x\n\ny\n"), ("empty.txt", "")):
        Path(name).write_text(text)
    Path("empty").mkdir()
    os.mkfifo("pipe")
    assert main([*words[:1], str(folders["encoder"]), *words[1:]]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1), error
    assert message in error


def test_other_pairs_are_scored_though_some_are_there(loaded: Loaded, tmp_path: Path) -> None:
    out = tmp_path / "eval.json"
    for scores in ((1, 3, 5), (5, 1, 3), (1, 3, 5)):
        file = tmp_path / f"{scores[0]}.tsv"
        rows = (f"{text}\t{TEXTS[0]}\t{score}\n" for text, score in zip(TEXTS, scores, strict=True))
        file.write_text("sentence1\tsentence2\tscore\n" + "".join(rows))
        arguments = (loaded.config, [loaded.folder], out, str(file), None, True)
        assert launch.launch("gpt1_ds.evaluation.embed:evaluate_sts", arguments, 1) == 0
    first, second = json.loads(out.read_text())
    assert [first[key] for key in ("task", "split", "step")] == [second[key] for key in ("task", "split", "step")]
    assert first["data"] != second["data"]
    assert first["metrics"] != second["metrics"]


def test_lines_of_a_pipe(folders: dict[str, Path], in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def piped(*words: str) -> int:
        reader, writer = os.pipe()
        os.write(writer, "".join(f"{text}\n" for text in TEXTS).encode())
        os.close(writer)
        try:
            return main([words[0], str(folders["encoder"]), *words[1:], f"/dev/fd/{reader}"])
        finally:
            os.close(reader)

    assert piped("embed", "--output", "out.jsonl", "--input") == 0
    assert [json.loads(line)["text"] for line in Path("out.jsonl").read_text().splitlines()] == TEXTS
    capsys.readouterr()
    assert piped("search", "--query", TEXTS[1], "--top", "1", "--documents") == 0
    assert capsys.readouterr().out.split(maxsplit=2) == ["1.0000", "2", "a file\n"]


def failing_ranks() -> list[str]:
    """On each of two ranks: what it says when one of them alone cannot compute its vectors, or write its texts."""
    config = load(overrides=["data.path=x"])
    told = []
    with distributed_session(config) as groups:

        def fails(*_: object) -> Any:
            if groups.rank == 1:
                raise CheckpointError("no finite numbers")
            return ["text"]

        embedder: Any = SimpleNamespace(vectors=fails)
        scorer: Any = SimpleNamespace(groups=groups, _write=fails)
        for asked in (
            lambda: shared_vectors(embedder, TEXTS, groups, watched=False),
            lambda: Continuations.written(scorer, [(text, {}, ()) for text in TEXTS]),
        ):
            with pytest.raises(CheckpointError) as caught:
                asked()
            told.append(str(caught.value))
        groups.gather(groups.rank)  # both are still together
    return told


def test_a_rank_that_fails_alone_is_told_on_all() -> None:
    assert launch.run(f"{__name__}:failing_ranks", (), 2) == [["no finite numbers"] * 2] * 2
