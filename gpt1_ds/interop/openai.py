"""`checkpoint import --from openai`: the weights that came with the paper, as they were published in 2018.

github.com/openai/finetune-transformer-lm, folder model/: `params_0.npy` .. `params_9.npy` are one vector of 116,534,784
little-endian float32 numbers cut into ten pieces; joined and split by shape it gives positions, token rows and, layer
by layer, c_attn, c_proj, ln_1, c_fc, c_proj, ln_2, each weight (or gain) before its bias, matrices as [1, in, out].

Files are known by git blob id; type, size and finite values are checked besides.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.checkpoint import external
from gpt1_ds.checkpoint.external import Floats
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.tokenizers.base import OPENAI, read_metadata
from gpt1_ds.data.tokenizers.openai_bpe import MERGES, TEXT_IDS, VOCABULARY
from gpt1_ds.data.tokenizers.registry import import_openai
from gpt1_ds.interop.families.openai_gpt import FAMILY
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.interop.imported import Imported, check_shapes, our_weights

PIECES = tuple(f"params_{number}.npy" for number in range(10))
SHAPES = "params_shapes.json"
BLOB_IDS = {
    PIECES[0]: "84d83ac1f1cc878f56f33b167482c184491875d2",
    PIECES[1]: "0f19f4d4cda3d8f908e3faffd2cb2a8b9a4039da",
    PIECES[2]: "25bc19c72fdff69505a828ec6d73b32063532148",
    PIECES[3]: "5b2e6958d42a930966c9d602a012eb846ca67c83",
    PIECES[4]: "87ad158987e307e6aa64952610f466d750b73bc7",
    PIECES[5]: "74f3853316bba327229605dbedfe921996f11448",
    PIECES[6]: "5ef44e40bc076d0c9686d1273d54cbc16c3f0980",
    PIECES[7]: "d8d5c8d3bee9b20a677605ac1fe6c7af4df57c94",
    PIECES[8]: "f980f4b393716f396ae5ae6401708dcf4f270dc9",
    PIECES[9]: "d389eb2074dd74754444b8062aba78b49f6a9053",
    SHAPES: "29fac299ae848d7e447be84a33345edcf1b5353c",
    VOCABULARY: "9dc3f0af5a80956e57dc8d9401e16dfadcade7c2",
    MERGES: "0023a687b3d4d0b795a5e97cc914bdabb5a253df",
}
MODEL = ModelConfig(layers=12, width=768, heads=12, context=512, vocab_size=TEXT_IDS)
MAX_SHAPES_BYTES = 1 << 16
Arrays = list[tuple[str, tuple[int, ...]]]


def layout() -> Arrays:
    """Returns (transformers' name, shape on disk) of every array, in the order of the vector."""
    width, ffn = MODEL.width, MODEL.ffn_width
    arrays: Arrays = [("positions_embed.weight", (MODEL.context, width)), ("tokens_embed.weight", (TEXT_IDS, width))]
    for layer in range(MODEL.layers):
        for part, inputs, outputs in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("ln_1", 0, width),
            ("mlp.c_fc", width, ffn),
            ("mlp.c_proj", ffn, width),
            ("ln_2", 0, width),
        ):
            weight = (1, inputs, outputs) if inputs else (outputs,)
            arrays += [(f"h.{layer}.{part}.weight", weight), (f"h.{layer}.{part}.bias", (outputs,))]
    return arrays


def read(source: Path, tokenizer: Path | None, scratch: Path, unverified: bool = False) -> tuple[Imported, Path]:
    """Returns the released model in `source`, and the folder of its tokenizer: `tokenizer`, or one made in `scratch`.

    Raises CheckpointError for a file whose blob id is known and differs, unless `unverified`, and for any piece that is
    not what the release has.
    """
    if not source.is_dir():
        external.refuse_pickle(source)
        raise CheckpointError(f"{source}: not a folder; --source names the one that holds {PIECES[0]} .. {PIECES[9]}")
    names = [*PIECES, *(() if tokenizer else (VOCABULARY, MERGES)), *((SHAPES,) if (source / SHAPES).exists() else ())]
    paths = {name: external.inside(source, name) for name in names}
    pieces = [external.npy_floats(paths[name]) for name in PIECES]
    arrays = layout()
    numbers, wanted = sum(map(len, pieces)), sum(math.prod(shape) for _, shape in arrays)
    if numbers != wanted:
        raise CheckpointError(
            f"{source}: the ten pieces hold {numbers:,} numbers, the release has {wanted:,}; download them again"
        )
    if SHAPES in paths:
        _check_listed_shapes(paths[SHAPES], arrays)
    remarks = _verify(paths, unverified)
    tokenizer = _tokenizer(tokenizer, paths, scratch)
    weights = our_weights(FAMILY, _split(source, pieces, arrays), _shapes(), Facts(MODEL.heads))
    return Imported("openai", source, MODEL, weights, tuple(remarks)), tokenizer


def _check_listed_shapes(path: Path, arrays: Arrays) -> None:
    if path.stat().st_size > MAX_SHAPES_BYTES:
        raise CheckpointError(f"{path}: {path.stat().st_size} bytes is too large for this file; download it again")
    try:
        listed = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: not readable as JSON; download it again") from None
    if listed != [list(shape) for _, shape in arrays]:
        raise CheckpointError(f"{path}: does not list the release's {len(arrays)} shapes; download it again")


def _verify(paths: dict[str, Path], unverified: bool) -> list[str]:
    """Compares blob ids; what to tell about the files that were, or were not, what they should be."""
    strange = [name for name, path in paths.items() if external.git_blob_id(path) != BLOB_IDS[name]]
    if strange and not unverified:
        raise CheckpointError(
            f"{paths[strange[0]]}: not the released file: its git blob id is "
            f"{external.git_blob_id(paths[strange[0]])}, the release's {BLOB_IDS[strange[0]]}; download it again, or "
            "pass --unverified to take it as it is"
        )
    known = [name for name in paths if name not in strange]
    remarks = [f"known by git blob id: {', '.join(known)}"] if known else []
    if strange:
        remarks.append(f"NOT the released files, taken as they are (--unverified): {', '.join(strange)}")
    return remarks


def _split(source: Path, pieces: list[Floats], arrays: Arrays) -> dict[str, Tensor]:
    """Returns the joined vector cut into arrays; matrices lose their leading 1."""
    flat = torch.from_numpy(np.concatenate(pieces))
    parts = flat.split([math.prod(shape) for _, shape in arrays])
    theirs = {
        name: part.view(shape[1:] if len(shape) == 3 else shape)
        for (name, shape), part in zip(arrays, parts, strict=True)
    }
    shapes = {name: tuple(value.shape) for name, value in theirs.items()}
    check_shapes(FAMILY, shapes, _shapes(), Facts(MODEL.heads), str(source))
    return theirs


def _shapes() -> dict[str, tuple[int, ...]]:
    return architecture(MODEL, TEXT_IDS).shapes


def _tokenizer(given: Path | None, paths: dict[str, Path], scratch: Path) -> Path:
    if given is None:
        import_openai(paths[VOCABULARY], paths[MERGES], scratch / "tokenizer")
        return scratch / "tokenizer"
    if read_metadata(given).kind != OPENAI:
        raise CheckpointError(
            f"{given}: not the tokenizer of 2018; leave --tokenizer out, or make one with `gpt1-ds tokenizer import`"
        )
    return given
