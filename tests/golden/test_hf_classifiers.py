"""Fine-tuned models of transformers as checkpoints that `predict` and `evaluate` read: the scores are theirs."""

from __future__ import annotations

import filecmp
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import load_carried
from gpt1_ds.data.tokenizers import json_sections
from gpt1_ds.interop import folder_tokenizer, hf_export
from gpt1_ds.launcher import launch
from gpt1_ds.tracking.record import of_models
from tests.helpers.foreign import encoder_tokenizers, import_hf
from tests.helpers.served import SENTENCE, predictor_of
from tests.helpers.theirs import random_encoder, theirs_of

TEXTS = (["a list of names", "no object"], ["an error", "two arguments or an error"], ["the module", "file"])
NLI = ["contradiction", "entailment", "neutral"]  # not in the order of the registry
FOUND = {
    "Bert": ("pair", {"num_labels": 3, "classifier_dropout": 0.3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
    "Roberta": ("single", {"id2label": {0: "bad", 1: "good"}}, ("bad", "good")),
    "Bert mnli": ("mnli", {"id2label": dict(enumerate(NLI))}, ("entailment", "neutral", "contradiction")),
    "Roberta qqp": ("qqp", {}, ("0", "1")),
    "Bert stsb": ("stsb", {"num_labels": 1}, ()),
    "Roberta score": ("single", {"num_labels": 1, "problem_type": "regression"}, ()),
    "BertForMultipleChoice": ("copa", {}, ("0", "1")),
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return encoder_tokenizers(tmp_path_factory.mktemp("symbols"))


def make_theirs(name: str, tokenizer: Path, source: Path, **settings: Any) -> Any:
    kind = name.split()[0]
    return random_encoder(kind if "For" in kind else f"{kind}ForSequenceClassification", tokenizer, source, **settings)


@pytest.mark.parametrize("name", list(FOUND))
def test_scores_are_theirs_and_a_second_export_is_the_first(
    name: str, tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    task, settings, labels = FOUND[name]
    tokenizer = tokenizers["bert" if "Bert" in name else "roberta"]
    model = make_theirs(name, tokenizer, tmp_path / "theirs", **settings)
    remarks = import_hf(tmp_path / "theirs", tmp_path / "ours", tokenizer, task)
    assert len(remarks) == (name == "Roberta qqp"), "classes without names are pointed out"
    predictor, reader = predictor_of(tmp_path / "ours")
    assert predictor.task.labels == labels
    assert predictor.settings.head_dropout == settings.get("classifier_dropout", 0.1)
    count = 4 if task == "copa" else len(reader.fields)
    assert count == {"single": 1, "copa": 4}.get(task, 2)
    rows = [text[:count] if count < 3 else [text[0], "cause", *text[:2]] for text in TEXTS]
    found = predictor.scores([reader.of_fields(row) for row in rows])
    hf_export.export(tmp_path / "ours", tmp_path / "again")
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    order = [NLI.index(label) for label in labels] if "mnli" in name else slice(None)
    for row, scores in zip(rows, found, strict=True):
        if task == "copa":
            document = f"{row[0]} What was the cause of this?"
            inputs = auto([document] * 2, row[2:], padding=True, return_tensors="pt")
            inputs = {key: value.unsqueeze(0) for key, value in inputs.items()}
        else:
            inputs = auto(*row, return_tensors="pt")
        with torch.no_grad():
            np.testing.assert_allclose(scores, model(**inputs).logits[0][order], rtol=0, atol=1e-5)
    assert np.ptp(found, axis=0).max() > 0.05, "the texts matter"
    import_hf(tmp_path / "again", tmp_path / "back", task=task)
    hf_export.export(tmp_path / "back", tmp_path / "third")
    files = sorted(path.name for path in (tmp_path / "again").iterdir() if path.is_file())
    assert filecmp.cmpfiles(tmp_path / "again", tmp_path / "third", files, shallow=False) == (files, [], [])


def test_it_is_evaluated(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    """On files whose columns are called as those of lines for `predict`."""
    model = make_theirs("Roberta", tokenizers["roberta"], tmp_path / "theirs", id2label={0: "oui", 1: "non"})
    import_hf(tmp_path / "theirs", tmp_path / "ours", tokenizers["roberta"], "single")
    predictor, reader = predictor_of(tmp_path / "ours", "text")
    texts = [" ".join(SENTENCE.split()[first : first + 5]) for first in range(8)]
    numbers = predictor.scores([reader.of_fields([text]) for text in texts]).argmax(1).tolist()
    given = [model.config.id2label[number] for number in numbers]
    given[0] = {"oui": "non", "non": "oui"}[given[0]]  # one of eight is wrong
    for split in ("train", "dev"):
        lines = [{"text": text, "label": label} for text, label in zip(texts, given, strict=True)]
        lines += [{"text": "file", "label": one} for one in ("oui", "non") if split == "train"]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = load_carried(tmp_path / "ours" / "config.yaml", [], [f"task.path={tmp_path}"])
    arguments = (config, [tmp_path / "ours"], tmp_path / "eval.json")
    assert launch.launch("gpt1_ds.evaluation.evaluate:evaluate_task", arguments, 1) == 0
    (entry,) = of_models(json.loads((tmp_path / "eval.json").read_text()))
    assert (entry["split"], entry["metrics"]["accuracy"]) == ("dev", 0.875)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (None, {}, r"is a fine-tuned model; say what it reads: --task single \(one text\), pair \(two\), or the name"),
        ("mnli", {}, "--task mnli has entailment, neutral, contradiction: use --task pair"),
        ("sst2", {"id2label": {"0": "bad", "1": "good"}}, "names bad, good; --task sst2 has 0, 1: use --task single"),
        ("stsb", {}, "its head is for 2 outputs, --task stsb is a regression; name another task"),
        ("copa", {}, "its head is for 2 outputs, --task copa is a choice; name another task"),
        ("pair", {"problem_type": "multi_label_classification"}, "a text has one class here"),
        ("pair", {"problem_type": "regression"}, "a text has one score here, not 2"),
        ("pair", {"id2label": {"0": "a"}}, r"id2label .* does not name the 2 outputs of the head"),
        ("pair", {"id2label": {"0": "a", "1": "a"}}, "names are lines of text, each another one"),
        ("pair", {"id2label": {"0": "a", "1": ["b"]}}, "names are lines of text, each another one"),
        ("pair", {"architectures": ["BertForSentenceOrder"]}, "its head has no counterpart here; --task none"),
        ("pair", {"architectures": "Bert"}, "architectures 'Bert'"),
    ],
)  # fmt: skip
def test_heads_that_are_not_imported(
    task: str | None, settings: dict[str, Any], message: str, tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    make_theirs("Bert", tokenizers["bert"], tmp_path / "theirs")
    values = json.loads((tmp_path / "theirs" / "config.json").read_text())
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({**values, **settings}))
    with pytest.raises(CheckpointError, match=message) as caught:
        import_hf(tmp_path / "theirs", tmp_path / "ours", tokenizers["bert"], task)
    assert len(caught.value.problems) == 1
    assert not (tmp_path / "ours").exists()


def test_texts_that_lose_their_beginnings(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    """A classifier that cut its texts on the left is refused; a model without a head is none."""
    make_theirs("Bert", tokenizers["bert"], tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    with pytest.raises(CheckpointError, match="truncation_side 'left': texts are cut on the right here"):
        import_hf(tmp_path / "theirs", tmp_path / "ours", tokenizers["bert"], "pair")
    import_hf(tmp_path / "theirs", tmp_path / "ours", tokenizers["bert"], "none")


@pytest.mark.parametrize(
    ("name", "task", "layout", "inputs", "theirs", "ours"),
    [
        ("Bert", "pair", "[CLS] A [SEP] B:1 [SEP]:1", ["token_type_ids"], "", ""),
        ("Roberta", "pair", "<cls> A <sep> <sep> B:1 <sep>:1", [], "", ""),
        ("Bert", "single", "A", ["token_type_ids"], "A", "[CLS] A [SEP]"),
        ("Roberta", "single", "<cls> A", [], "<cls> A", "<cls> A <sep>"),
        ("Roberta", "pair", "<cls> A <sep> B <sep>", [], "<cls> A <sep> B <sep>", "<cls> A <sep> <sep> B <sep>"),
        ("Bert", "pair", "[CLS] A [SEP] B [SEP]", ["token_type_ids"], "[CLS] A [SEP] B [SEP]", "[SEP] B:1 [SEP]:1"),
        ("Bert", "pair", "[CLS] A [SEP] B:1 [SEP]:1", ["input_ids"], "[CLS] A [SEP] B [SEP]", "[SEP] B:1 [SEP]:1"),
        ("Bert", "pair", "[CLS] A [SEP] B:1 [SEP]:1", "DistilBert", "[CLS] A [SEP] B [SEP]", "[SEP] B:1 [SEP]:1"),
    ],
)  # fmt: skip
def test_a_head_that_learned_another_layout_is_refused(
    name: str, task: str, layout: str, inputs: list[str] | str, theirs: str, ours: str,
    tokenizers: dict[str, Path], tmp_path: Path,
) -> None:  # fmt: skip
    """As of a RoBERTa with the tokenizer of a BERT, whose pairs have one separator. Those of here are taken."""
    source, given = tmp_path / "theirs", tokenizers[name.lower()]
    make_theirs(name, given, source)
    contents = folder_tokenizer.load_tokenizer(given).contents
    symbols = {token["content"]: token["id"] for token in contents["added_tokens"]}
    parts = [(part.removesuffix(":1"), int(part.endswith(":1"))) for part in layout.split()]
    single, pair = ([("A", 0)], parts) if task == "pair" else (parts, [*parts, ("B", 0)])
    contents["post_processor"] = json_sections.template(single, pair, symbols)
    (source / "tokenizer.json").write_text(json.dumps(contents))
    roles = {f"{role}_token": symbol for symbol in symbols for role in ("cls", "sep", "pad") if role in symbol.lower()}
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
    settings = {**roles, **(told if isinstance(inputs, list) else {"tokenizer_class": f"{inputs}TokenizerFast"})}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    if not theirs:
        import_hf(source, tmp_path / "ours", task=task)
        return
    with pytest.raises(CheckpointError) as caught:
        import_hf(source, tmp_path / "ours", task=task)
    assert f"lays texts out as {theirs}, and here they are laid out as " in str(caught.value)
    assert f"{ours}, which its head has not learned; pass --task none" in str(caught.value)
    import_hf(source, tmp_path / "ours", given, task)


def test_gpts_read_symbols_that_other_programs_do_not_know(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    start = folder_tokenizer.load_tokenizer(tokenizers["roberta"]).start_id
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=40, vocab_size=start)
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="has no row for the symbol start: it was fine-tuned on texts without it"):
        import_hf(tmp_path / "theirs", tmp_path / "ours", tokenizers["roberta"], "single")
    theirs_of(tmp_path / "theirs", "GPT2ForSequenceClassification").transformer.save_pretrained(tmp_path / "body")
    with pytest.raises(CheckpointError, match="has no head of a fine-tuned model; leave --task single out"):
        import_hf(tmp_path / "body", tmp_path / "ours", tokenizers["roberta"], "single")
