"""`checkpoint export --to hf` and `checkpoint import --from hf`: folders of transformers' OpenAIGPTLMHeadModel, or of a
class with a head for a fine-tuned checkpoint (interop/hf_task.py).

Neither needs transformers. An export holds `model.safetensors` (fp32), `config.json`, `generation_config.json` (greedy
text is then that of `gpt1-ds sample --temperature 0`), the tokenizer in transformers' form, our own one beside it, and
a README.md. An import also reads folders that transformers wrote, of the language model or with the multiple-choice
head, whole or in shards; weights come back bit for bit.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.checkpoint import external, manifest
from gpt1_ds.checkpoint.external import TensorFacts
from gpt1_ds.checkpoint.folders import find
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.shard import write_tensors
from gpt1_ds.checkpoint.verify import check_size, verify_files
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import published_folder, sync_folder, write_atomic, write_json
from gpt1_ds.config import ModelConfig, load_carried
from gpt1_ds.data.tokenizers.base import METADATA, copy_tokenizer, read_metadata
from gpt1_ds.data.tokenizers.registry import import_openai, load_tokenizer
from gpt1_ds.interop.cards import model_card, task_card
from gpt1_ds.interop.conversion import check_shapes, our_weights, their_name, to_theirs
from gpt1_ds.interop.hf_config import CONFIG, generation_config, model_config, their_config
from gpt1_ds.interop.hf_task import FineTuned, lay_out_inputs, to_their_head
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from gpt1_ds.interop.imported import Imported, free_place
from gpt1_ds.model.names import ParameterInfo

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
VOCABULARY, MERGES = "vocab.json", "merges.txt"  # as OpenAIGPTTokenizer calls the files of the 2018 release
TOKENIZER = "gpt1_ds_tokenizer"  # our own tokenizer folder inside an export
PREFIX = "transformer."
MAX_INDEX_BYTES = 16 << 20
MAX_TOKENIZER_BYTES = 64 << 20
_BUFFERS = (".attn.bias", ".attn.masked_bias", "position_ids")  # older versions saved causal masks and positions
_CHOICE_HEAD = ("multiple_choice_head.summary.bias", "multiple_choice_head.summary.weight")
_HEAD, _ROWS = "lm_head.weight", "tokens_embed.weight"


def export(checkpoint: Path, out: Path) -> Path:
    """Write CKPT, verified first, as the folder `out` for transformers; the checkpoint that was read.

    Raises CheckpointError for a damaged checkpoint, for a model that OpenAIGPT cannot express, and when `out` is taken.
    """
    source = find(checkpoint)
    facts = manifest.read(source)
    verify_files(source, facts)
    out = free_place(out)
    config = load_carried(source / "config.yaml")
    model, tokenizer = config.model, load_tokenizer(source / "tokenizer")
    if model.kind == "lstm":
        raise CheckpointError(f"{source}: model.kind=lstm: transformers has no such model; `gpt1-ds predict` runs it")
    if model.ffn_width != 4 * model.width:
        raise CheckpointError(
            f"{source}: model.ffn={model.ffn}: transformers' OpenAIGPT knows only 4 * model.width = {4 * model.width}"
        )
    tuned = FineTuned.of(source, facts, config)
    check_size(source, facts, model, tuned.head if tuned else None)
    assert model.vocab_size is not None, "saved configurations name the vocabulary size"
    settings = their_config(model, tokenizer)
    files = tokenizer_files(tokenizer, tuned.limit if tuned else model.context)
    if tuned:
        settings.update(tuned.config(tokenizer))
        lay_out_inputs(files, tokenizer)
        card = task_card(model, tuned, tokenizer, facts)
    else:
        files["generation_config.json"] = generation_config(tokenizer)
        card = model_card(model, tokenizer, facts, TOKENIZER)
    tensors = _their_tensors(source, model, tuned)
    with published_folder(out) as folder:
        write_tensors(folder / WEIGHTS, tensors, metadata={"format": "pt"})  # transformers asks for the format
        for name, value in {CONFIG: settings, **files}.items():
            write_json(folder / name, value)
        copy_tokenizer(source / "tokenizer", folder / TOKENIZER)
        write_atomic(folder / "README.md", card)
        sync_folder(folder / TOKENIZER)
    return source


def _their_tensors(source: Path, model: ModelConfig, tuned: FineTuned | None) -> dict[str, Tensor]:
    assert model.vocab_size is not None, "saved configurations name the vocabulary size"
    reader, tensors, head = StateReader(source), {}, {}
    for name, shape in architecture(model, model.vocab_size, tuned.head if tuned else None).shapes.items():
        stored = reader.index.get(name)
        dim = stored.dim if stored is not None and stored.dim in range(len(shape)) else None
        value = reader.whole("master", ParameterInfo(name, shape, dim))
        if name.startswith("head."):
            head[name] = value
        else:
            tensors[PREFIX + their_name(name)] = to_theirs(name, value, model.heads)
    if tuned:
        to_their_head(tensors, head["head.weight"], head["head.bias"], tuned, model.layers)
    return tensors


def read(source: Path, tokenizer: Path | None, scratch: Path) -> tuple[Imported, Path]:
    """The model in a folder of transformers, and the tokenizer folder to go with it. Raises CheckpointError.

    Unless `tokenizer` is given it is our own one inside an export of ours, else made in `scratch` of the 2018 BPE's
    vocab.json and merges.txt, which OpenAIGPTTokenizer saves.
    """
    if not source.is_dir():
        if source.is_file():
            external.refuse_pickle(source)
        raise CheckpointError(f"{source}: not a folder; --source names the one that holds {CONFIG} and {WEIGHTS}")
    files = _weight_files(source)
    model = model_config(external.inside(source, CONFIG))
    tokenizer = tokenizer or _carried_tokenizer(source, scratch)
    headers = {file: _header(source, file, expected) for file, expected in files.items()}
    left_out = sorted(name for header in headers.values() for name in header if name in _CHOICE_HEAD)
    wanted = {
        file: {name: x for name, x in header.items() if name not in _CHOICE_HEAD and not name.endswith(_BUFFERS)}
        for file, header in headers.items()
    }
    _check(source, wanted, model)
    weights = our_weights(_tensors(source, wanted), model)
    remarks = (f"{', '.join(left_out)} left out: a multiple-choice head is made anew by fine-tuning",)
    return Imported("hf", source, model, weights, remarks if left_out else ()), tokenizer


def _weight_files(source: Path) -> dict[str, set[str] | None]:
    """File name -> the tensors that the index expects in it (None: all there are)."""
    if (source / WEIGHTS).exists():
        return {external.inside(source, WEIGHTS).name: None}
    if (source / INDEX).exists():
        places = external.read_object(external.inside(source, INDEX), MAX_INDEX_BYTES).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()) or not places:
            raise CheckpointError(f"{source / INDEX}: has no weight_map of tensor names to file names")
        files: dict[str, set[str] | None] = {}
        for name, file in places.items():
            external.refuse_pickle(external.inside(source, file))
            expected = files.setdefault(file, set())
            assert expected is not None
            expected.add(name)
        return files
    for path in sorted(source.iterdir()):
        external.refuse_pickle(path)
    raise CheckpointError(f"{source}: holds neither {WEIGHTS} nor {INDEX}; name the folder of a saved model")


def _header(source: Path, file: str, expected: set[str] | None) -> dict[str, TensorFacts]:
    path = external.inside(source, file)
    header = external.safetensors_header(path)
    if expected is not None and header.keys() != expected:
        name = min(header.keys() ^ expected)
        raise CheckpointError(f"{path}: {INDEX} and this file disagree on {name!r:.80}; download both again")
    return header


def _check(source: Path, headers: dict[str, dict[str, TensorFacts]], model: ModelConfig) -> None:
    """Raise CheckpointError unless the headers list exactly the parameters of `model`, the head being tied."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file, header in headers.items():
        for name, facts in header.items():
            short = name.removeprefix(PREFIX)
            if short in shapes:
                raise CheckpointError(f"{source / file}: {name!r:.80} is there twice; download the folder again")
            shapes[short] = facts.shape
    head = shapes.pop(_HEAD, None)
    if head is not None and shapes.setdefault(_ROWS, head) != head:
        raise CheckpointError(f"{source}: {_HEAD} {list(head)} is not tied to {_ROWS} {list(shapes[_ROWS])}")
    check_shapes(shapes, model, str(source))


def _tensors(source: Path, headers: dict[str, dict[str, TensorFacts]]) -> dict[str, Tensor]:
    """Weights under transformers' names without prefix. Token rows are saved as the embedding, as the head (with the
    multiple-choice head), or as both; GPT-1 has them once.
    """
    found = {
        name.removeprefix(PREFIX): value
        for file, header in headers.items()
        for name, value in external.read_weights(external.inside(source, file), header)
    }
    head = found.pop(_HEAD, None)
    if head is not None and not torch.equal(head, found.setdefault(_ROWS, head)):
        raise CheckpointError(f"{source}: {_HEAD} differs from {_ROWS}; GPT-1's head is its embedding")
    return found


def _carried_tokenizer(source: Path, scratch: Path) -> Path:
    """The tokenizer folder inside an export of ours, its files checked to lie there, or the 2018 BPE."""
    folder = source / TOKENIZER
    if not folder.exists() and (source / VOCABULARY).exists() and (source / MERGES).exists():
        vocabulary, merges = (_tokenizer_file(source, name) for name in (VOCABULARY, MERGES))
        import_openai(vocabulary, merges, scratch / "tokenizer")
        return scratch / "tokenizer"
    if not folder.is_dir() or folder.is_symlink():
        raise CheckpointError(
            f"{source}: carries neither a tokenizer of ours nor {VOCABULARY} and {MERGES}; pass --tokenizer with a "
            "folder made by `gpt1-ds tokenizer`"
        )
    external.inside(folder, METADATA)
    for name in read_metadata(folder).files:
        _tokenizer_file(folder, name)
    return folder


def _tokenizer_file(folder: Path, name: str) -> Path:
    path = external.inside(folder, name)
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(f"{path}: {path.stat().st_size} bytes is too large for a tokenizer's file")
    return path
