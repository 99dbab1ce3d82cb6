"""GPT-1 to transformers and back: the same greedy text, the same ids, the same loss on every layout, the commands."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from gpt1_ds import load
from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.cli import main
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.data.tokenizers.base import OPENAI
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.evaluation.decoding import write
from gpt1_ds.evaluation.generate import generate
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.interop import hf_export, hf_weights
from gpt1_ds.launcher import launch
from tests.helpers.foreign import SMALL, evaluate_here, import_hf, make_checkpoint
from tests.helpers.shared_data import shared_data


@pytest.fixture(scope="module")
def checkpoint(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf") / "checkpoint", tokenizer)


@pytest.fixture(scope="module")
def exported(checkpoint: Path) -> Path:
    out = checkpoint.parent / "exported"
    hf_export.export(checkpoint, out)
    return out


@pytest.fixture(scope="module")
def theirs(exported: Path) -> Any:
    return transformers.OpenAIGPTLMHeadModel.from_pretrained(exported).eval()


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    """[B, S + 1] over the ids of the tiny tokenizer."""
    return torch.from_numpy(np.random.default_rng(1).integers(0, 500, (2, SMALL.context + 1)))


def our_logits(checkpoint: Path, tokens: torch.Tensor) -> torch.Tensor:
    loaded = load_checkpoint(checkpoint)
    with torch.no_grad():
        logits = loaded.model.logits(tokens.T)
    return logits.transpose(0, 1)[..., : loaded.tokenizer.vocab_size]


def shown(pieces: list[str], bad_byte_spoils_its_run: bool) -> str:
    """Returns pieces as text. Single bytes in a row (`<0xE2>`) that are not UTF-8 are one \ufffd each for transformers;
    we keep the characters among them.
    """
    text = ""
    for are_bytes, run in itertools.groupby(pieces, lambda piece: re.fullmatch("<0x[0-9A-F]{2}>", piece) is not None):
        parts = list(run)
        if not are_bytes:
            text += "".join(parts)
            continue
        run_bytes = bytes(int(part[3:5], 16) for part in parts)
        kept = run_bytes.decode(errors="replace")
        text += "\ufffd" * len(parts) if bad_byte_spoils_its_run and kept.encode() != run_bytes else kept
    return text


def test_greedy_text_is_ours(checkpoint: Path, exported: Path, theirs: Any) -> None:
    auto = transformers.AutoTokenizer.from_pretrained(exported)
    loaded, greedy, equal = load_checkpoint(checkpoint), Sampling(tokens=24, temperature=0), 0
    for prompt in ("It was a", "def main(", "\n\n  The", "return", " list of ", "if x == 1:", "None", "é"):
        inputs = auto(prompt, return_tensors="pt")
        ids = theirs.generate(**inputs, max_new_tokens=24, do_sample=False)[0][inputs["input_ids"].shape[1] :].tolist()
        assert ids == write(loaded.model, loaded.tokenizer, [inputs["input_ids"][0].tolist()], greedy)[0], prompt
        pieces, found = auto.convert_ids_to_tokens(ids), generate(loaded, prompt, greedy)
        text = auto.decode(ids, skip_special_tokens=True)
        assert (found, text) == (shown(pieces, False), shown(pieces, True)), prompt
        equal += found == text
    assert equal > 0, "a text without bad bytes is the same"


@pytest.fixture(scope="module")
def saved_by_them(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that transformers itself wrote: of either class, whole and in shards."""
    folder = tmp_path_factory.mktemp("theirs")
    config = transformers.OpenAIGPTConfig(vocab_size=500, n_positions=48, n_embd=32, n_layer=2, n_head=4)
    torch.manual_seed(0)
    for name, kind in (("lm", "OpenAIGPTLMHeadModel"), ("double", "OpenAIGPTDoubleHeadsModel")):
        model = getattr(transformers, kind)(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(folder / name)
        model.save_pretrained(folder / f"{name}-shards", max_shard_size="30KB")
    return folder


@pytest.mark.parametrize("name", ["lm", "lm-shards", "double", "double-shards"])
def test_their_folders_give_their_logits(
    name: str, saved_by_them: Path, tokenizer: Path, tokens: torch.Tensor, tmp_path: Path
) -> None:
    source = saved_by_them / name
    assert ("shards" in name) == (source / hf_weights.INDEX).exists()
    remarks = import_hf(source, tmp_path / "imported", tokenizer)
    assert [line.split()[0].rstrip(",") for line in remarks] == ["multiple_choice_head.summary.bias"] * (
        "double" in name
    )
    kind = transformers.OpenAIGPTDoubleHeadsModel if "double" in name else transformers.OpenAIGPTLMHeadModel
    with torch.no_grad():
        wanted = kind.from_pretrained(source).eval()(tokens[:, :-1]).logits
    assert (our_logits(tmp_path / "imported", tokens[:, :-1]) - wanted).abs().max() <= 1e-5


@pytest.mark.parametrize("layout", [(1, 1), (2, 1), (1, 2), (2, 2)], ids=lambda layout: f"tp{layout[0]}-pp{layout[1]}")
def test_an_import_has_their_loss_on_every_layout(
    layout: tuple[int, int], checkpoint: Path, theirs: Any, tokens: torch.Tensor
) -> None:
    with torch.no_grad():
        logits = theirs(tokens[:, :-1]).logits
    wanted = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    tensor, pipeline = layout
    words = [
        "model.layers=2",
        "model.width=32",
        "model.heads=4",
        f"model.context={SMALL.context}",
        "model.vocab_size=500",
    ]
    words += [
        "train.global_batch=2",
        "train.micro_batch=2",
        f"parallel.tensor={tensor}",
        f"parallel.pipeline={pipeline}",
    ]
    arguments = (words, 500, evaluate_here, str(checkpoint), tokens.numpy())
    for loss in launch.run("tests.helpers.engines:on_engine", arguments, tensor * pipeline):
        assert abs(loss - wanted) <= 1e-5


TEXTS = [
    *(
        "",
        " ",
        "  two  spaces ",
        "line\nline\n\n\n  indented\r\n\ttab",
        "a\x00b",
        "\ufeffbom",
        "\u2581\u2581 a \u2581b",
    ),
    *(
        "\U0001f600\U0001f468\u200d\U0001f469 emoji",
        "\u4e2d\u6587 na\u00efve e\u0301 \u00df \u0130",
        "\u00a0nbsp\u2003em",
    ),
    *("<eod><unk><start> <delimiter><extract>", "<0x41><0xFF>", "</s>[PAD]", "aaaaaaaa ------ =-=-=-=-= ababababa"),
]


def test_ids_and_texts_are_those_of_our_tokenizer(exported: Path, tiny_data: Path) -> None:
    ours, auto = load_tokenizer(exported / hf_export.TOKENIZER), transformers.AutoTokenizer.from_pretrained(exported)
    fast = transformers.PreTrainedTokenizerFast.from_pretrained(exported)
    assert len(auto) == ours.vocab_size
    assert (auto.eos_token_id, auto.bos_token_id, auto.unk_token_id) == (ours.eod_id, ours.eod_id, ours.unknown_id)
    documents = [path.read_text() for path in sorted((tiny_data.parent / "text").iterdir())]
    draw, pieces = np.random.default_rng(0), ours.merged_pieces
    drawn = ["".join(draw.choice(pieces, size)) for size in range(1, 200)]
    repeated = ["".join(draw.choice(list("ab-= \n"), size)) for size in range(1, 400)]
    for text in [*TEXTS, *documents, *drawn, *repeated]:
        ids = ours.encode(text).tolist()
        assert auto(text)["input_ids"] == ids, text[:200]
        assert fast.encode(text) == ids
        assert auto.decode(ids) == text
    assert auto.decode([ours.start_id, *ours.encode(" a"), ours.eod_id], skip_special_tokens=True) == " a"


def test_an_export_needs_no_transformers(exported: Path, checkpoint: Path, program: Any, tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text("raise ImportError('not here')")
    paths = f"{tmp_path}:{Path(__file__).parents[2]}"
    done = program("checkpoint", "export", str(checkpoint), "--to", "hf", "--out", "again", PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    for path in exported.rglob("*"):
        if path.is_file():
            assert (tmp_path / "again" / path.relative_to(exported)).read_bytes() == path.read_bytes(), path


def test_a_damaged_checkpoint_is_not_exported(checkpoint: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    path = next(copy.rglob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="sha256 does not match"):
        hf_export.export(copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_is_taken_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    hf_export.export(checkpoint, tmp_path / "empty")
    with pytest.raises(CheckpointError, match="is there already"):
        hf_export.export(checkpoint, tmp_path / "empty")


def test_the_card_tells_what_was_exported(exported: Path) -> None:
    card = (exported / "README.md").read_text()
    assert "AutoTokenizer" in card
    assert "gives the ids that the model was trained on" in card
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["OpenAIGPTLMHeadModel"]
    assert config["vocab_size"] == 500
    assert (config["resid_pdrop"], config["embd_pdrop"], config["attn_pdrop"]) == (0.2, 0.0, 0.1)
    saved = safetensors.torch.load_file(exported / hf_weights.WEIGHTS)
    assert {value.dtype for value in saved.values()} == {torch.float32}
    assert saved["transformer.tokens_embed.weight"].shape == (500, 32), "padding is stripped"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl", "last.ckpt"])
def test_pickles_are_refused_unread(name: str, exported: Path, tmp_path: Path, program: Any) -> None:
    (tmp_path / "source").mkdir()
    shutil.copy(exported / "config.json", tmp_path / "source")
    (tmp_path / "source" / name).write_bytes(b"cos\nsystem\n(S'touch PWNED'\ntR.")
    for source in (tmp_path / "source", tmp_path / "source" / name):
        with pytest.raises(CheckpointError, match=r"never opened; convert it .* safetensors") as caught:
            import_hf(source, tmp_path / "out")
        assert len(caught.value.problems) == 1
    assert not (tmp_path / "PWNED").exists()


def test_the_program_says_it_in_one_line(
    saved_by_them: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "import", "--from", "hf", "--source", str(saved_by_them / "lm"), "--out", "x"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "pass --tokenizer" in error


def test_an_import_serves_every_command(
    exported: Path, tiny_data: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "import", "--from", "hf", "--source", str(exported), "--out", "c"]) == 0
    assert "init_from=c" in capsys.readouterr().out
    assert main(["checkpoint", "inspect", "c"]) == 0
    assert "imported from hf" in capsys.readouterr().out
    assert main(["checkpoint", "verify", "c"]) == 0
    assert main(["sample", "--checkpoint", "c", "--prompt", "It", "--tokens", "4"]) == 0
    loaded = load(in_folder / "c")
    model, tokenizer = loaded
    assert (len(loaded), loaded[0], loaded[-1]) == (2, model, tokenizer)
    data = f"data.path={tiny_data}"
    layout = ["--nproc", "2", "parallel.tensor=2"]
    assert main(["evaluate", "--checkpoint", "c", data, *layout, "--out", "eval.json"]) == 0
    assert json.loads((in_folder / "eval.json").read_text())[0]["metrics"]["loss"] > 0
    words = ["-c", "c/config.yaml", "checkpoint.init_from=c", data, "train.steps=2", "train.global_batch=4"]
    assert main(["pretrain", *words, "train.micro_batch=2", "--nproc", "2", "parallel.pipeline=2"]) == 0
    assert manifest.read(find_checkpoint(in_folder / "runs" / "c"))["step"] == 2
    words = ["-c", "c/config.yaml", "checkpoint.resume=c", data, "run.name=resumed"]
    assert main(["pretrain", *words, "--nproc", "1"]) == 2, "only weights are there: a resume would be another run"


def test_a_folder_of_the_hub_brings_the_2018_tokenizer(tmp_path: Path) -> None:
    """config.json, model.safetensors, vocab.json and merges.txt, as `openai-gpt` has them."""
    bpe = shared_data("gpt1_bpe")
    source, out = tmp_path / "openai-gpt", tmp_path / "out"
    settings = transformers.OpenAIGPTConfig(n_layer=1, n_embd=8, n_head=2, n_positions=16)
    transformers.OpenAIGPTLMHeadModel(settings).save_pretrained(source)
    shutil.copy(bpe / "encoder_bpe_40000.json", source / "vocab.json")
    shutil.copy(bpe / "vocab_40000.bpe", source / "merges.txt")
    assert main(["checkpoint", "import", "--from", "hf", "--source", str(source), "--out", str(out)]) == 0
    assert load_tokenizer(out / "tokenizer").kind == OPENAI
    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(source)
    text = "the morning was bright and still"
    ids = load_tokenizer(out / "tokenizer").encode(text)
    assert [int(token) for token in ids][: len(theirs.encode(text))] == theirs.encode(text)
    (source / "vocab.json").write_text("{}")
    assert main(["checkpoint", "import", "--from", "hf", "--source", str(source), "--out", str(out) + "2"]) == 2
