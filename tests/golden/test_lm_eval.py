"""lm-evaluation-harness on a checkpoint itself gives what its own `hf` model gives on the export, BLiMP as the
program's own probe, LAMBADA as a direct computation from the logits.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import ProcessGroup

from gpt1_ds.config import ModelConfig, ProbeConfig, load
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.engine.process_groups import ProcessGroups, connect_alone
from gpt1_ds.evaluation.continuations import Continuations
from gpt1_ds.evaluation.load import Loaded, load_checkpoint
from gpt1_ds.evaluation.probes import probe_metrics
from gpt1_ds.interop import harness, hf_export
from gpt1_ds.tasks.blimp import PHENOMENON
from gpt1_ds.tasks.zeroshot import read_probe
from tests.helpers.foreign import SMALL, make_checkpoint
from tests.helpers.harness_tasks import LAST, PAIRS, SENTENCES, last_words, write_task
from tests.helpers.shared_data import shared_data

TOLERANCE = 1e-4  # nats, of the sum over a continuation
MODELS = {
    "gpt1": SMALL,
    "gpt2": replace(SMALL, norm="pre"),
    "long": replace(SMALL, norm="pre", context=200),
    "prefix": replace(SMALL, mask="prefix"),
    "lstm": ModelConfig(kind="lstm", layers=1, width=32, units=32, context=48),
    "bert": replace(SMALL, mask="bidirectional", embedding_norm=True, head="masked", segments=2),
    "t5": ModelConfig(
        **{"kind": "encoder_decoder", "norm": "pre", "layers": 1, "width": 32, "heads": 2, "context": 48},
        positions="relative",
    ),
}


def alone() -> ProcessGroups:
    """One rank's groups."""
    return _of_world(connect_alone())


@lru_cache(maxsize=1)
def _of_world(_: ProcessGroup) -> ProcessGroups:
    return ProcessGroups(load())


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "text.txt"
    file.write_text("\n".join(SENTENCES * 20))
    return file


@pytest.fixture(scope="module")
def models(text: Path) -> dict[str, Loaded]:
    place = text.parent
    train_tokenizer([text], place / "tokenizer", 340, masks=True, sentinels=8)
    return {
        name: load_checkpoint(make_checkpoint(place / name, place / "tokenizer", model), "cpu")
        for name, model in MODELS.items()
    }


def scorer(loaded: Loaded) -> Continuations:
    return Continuations(loaded, alone())


def requests(kind: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, one, number) for number, one in enumerate(arguments)]


def exported(loaded: Loaded, out: Path) -> Any:
    """The harness's own `hf` model on an export, with no option."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    hf_export.export(loaded.folder, out)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)


@pytest.mark.parametrize("name", ["gpt1", "gpt2"])
def test_the_harness_says_the_same_of_the_export(name: str, models: dict[str, Loaded], tmp_path: Path) -> None:
    """Contexts that are empty, long, or end in a blank; texts of several windows."""
    theirs = exported(models[name], tmp_path / "export")
    ours = harness.HarnessModel(scorer(models[name]))
    pairs = [*last_words(LAST), ("", "A text."), ("the file ", "is read"), (" ".join(SENTENCES * 3), " in the end")]
    found, wanted = (model.loglikelihood(requests("loglikelihood", pairs)) for model in (ours, theirs))
    assert len(found) == len(pairs)
    for one, other in zip(found, wanted, strict=True):
        assert one[0] == pytest.approx(other[0], abs=TOLERANCE)
        assert one[1] == bool(other[1])
    texts = [(" ".join(SENTENCES),), ("a value",), (SENTENCES[0],)]
    kind = "loglikelihood_rolling"
    found, wanted = (model.loglikelihood_rolling(requests(kind, texts)) for model in (ours, theirs))
    assert found == pytest.approx(wanted, abs=TOLERANCE)


@pytest.mark.parametrize("name", ["gpt1", "gpt2"])
def test_the_harness_writes_the_same_by_the_export(name: str, text: Path, tmp_path: Path) -> None:
    """Of prompts that leave room, or are cut; with stops. A byte-level BPE: both sides show broken characters alike."""
    train_tokenizer([text], tmp_path / "tokenizer", 340, model="gpt2-bpe", masks=True)
    loaded = load_checkpoint(make_checkpoint(tmp_path / name, tmp_path / "tokenizer", MODELS[name]), "cpu")
    ours, theirs = harness.HarnessModel(scorer(loaded)), exported(loaded, tmp_path / "export")
    settings = [{"max_gen_toks": 12, "do_sample": False}, {"max_gen_toks": 47, "until": ["a", "e"]}, {"max_tokens": 30}]
    asked = [(prompt, one) for prompt in ("the file ", *SENTENCES[:2], " ".join(SENTENCES)) for one in settings]
    found, wanted = (model.generate_until(requests("generate_until", [*asked])) for model in (ours, theirs))
    assert found == wanted
    assert len(set(found)) > len(settings)


@pytest.mark.parametrize("name", MODELS)
def test_text_is_written_until_a_stop(name: str, models: dict[str, Loaded]) -> None:
    ours, settings = harness.HarnessModel(scorer(models[name])), {"max_gen_toks": 12, "do_sample": False}
    if not ours.scorer.writes:
        assert name == "bert"
        return
    asked = requests("generate_until", [(SENTENCES[1], settings), ("the file", settings)])
    whole = ours.generate_until(asked)
    stop = max(whole, key=len)[1]
    stopped = ours.generate_until(
        requests("generate_until", [(one.args[0], {**settings, "until": [stop]}) for one in asked])
    )
    assert stopped == [text.split(stop)[0] for text in whole] != whole


def blimp(loaded: Loaded, pairs: Path) -> dict[str, float]:
    """By the program's own probe."""
    return probe_metrics(read_probe(ProbeConfig(name="blimp", path=str(pairs))), loaded, alone())


@pytest.mark.parametrize("name", MODELS)
def test_blimp_by_both_ways(name: str, models: dict[str, Loaded], tmp_path: Path) -> None:
    tasks = harness.load_tasks([str(write_task(tmp_path, "blimp"))])
    (entry,) = harness.run(scorer(models[name]), tasks, None)
    own = blimp(models[name], tmp_path / "local_blimp.jsonl")
    assert (entry["task"], entry["split"], entry["metrics"]["examples"]) == ("lm-eval/local_blimp", "test", len(PAIRS))
    assert entry["metrics"]["acc"] == pytest.approx(own["accuracy"], abs=1e-9)
    (few,) = harness.run(scorer(models[name]), tasks, 4)
    assert few["metrics"]["examples"] == 4


def test_blimp_of_the_paper_by_both_ways(models: dict[str, Loaded], tmp_path: Path) -> None:
    """Pairs of every paradigm; a task for each phenomenon, whose accuracy the probe also gives. The context
    holds whole sentences: those that are alike where they are cut share the point in the probe, not in the harness.
    """
    files = sorted(shared_data("blimp").glob("*.jsonl"))
    assert len(files) == 67
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()[:2]]
    groups: dict[str, list[Any]] = {}
    for row in rows:
        groups.setdefault(PHENOMENON.get(row["linguistics_term"], row["linguistics_term"]), []).append(row)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = blimp(models["long"], tmp_path / "pairs.jsonl")
    files = [write_task(tmp_path, "blimp", some, name) for name, some in groups.items()]
    found = harness.run(scorer(models["long"]), harness.load_tasks([str(file) for file in files]), None)
    assert len(found) == len(groups) == 12
    for entry in found:
        assert entry["metrics"]["acc"] == pytest.approx(own[entry["task"].removeprefix("lm-eval/")], abs=1e-9)


def logits_of(loaded: Loaded, ids: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return loaded.model.logits(torch.from_numpy(ids.astype(np.int64)).unsqueeze(1))[:, 0]


@pytest.mark.parametrize("name", MODELS)
def test_lambada_by_both_ways(name: str, models: dict[str, Loaded], tmp_path: Path) -> None:
    (entry,) = harness.run(scorer(models[name]), harness.load_tasks([str(write_task(tmp_path, "lambada"))]), None)
    passages = read_probe(ProbeConfig(name="lambada", path=str(tmp_path / "local_lambada.jsonl")))
    own = probe_metrics(passages, models[name], alone())
    assert own["accuracy"] == entry["metrics"]["acc"]
    assert math.log(own["perplexity"]) == pytest.approx(math.log(entry["metrics"]["perplexity"]), rel=1e-6)
    assert own["examples"] == len(LAST)
    if name not in ("gpt1", "gpt2", "lstm"):
        return
    sums, greedy, encode = [], [], models[name].tokenizer.encode
    for before, word in last_words(LAST):
        ids, size = encode(before + word), len(encode(before))
        chances = logits_of(models[name], ids[:-1]).log_softmax(-1)[size - 1 :]
        targets = torch.from_numpy(ids[size:].astype(np.int64))
        sums.append(float(chances.gather(1, targets.unsqueeze(1)).sum()))
        greedy.append(bool((chances.argmax(-1) == targets).all()))
    metrics = entry["metrics"]
    assert math.log(metrics["perplexity"]) == pytest.approx(-np.mean(sums), rel=1e-5)
    assert metrics["acc"] == np.mean(greedy)
