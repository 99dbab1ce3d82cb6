"""The weights of a folder of transformers: one file or several with an index, whole or not at all.

Nothing is read that was not checked: sizes and names by the headers of the files first, then tensor by tensor.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gpt1_ds.checkpoint import external
from gpt1_ds.checkpoint.external import TensorFacts
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.interop.imported import Parts, check_shapes

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 << 20
_BUFFERS = (".attn.bias", ".attn.masked_bias", "position_ids")  # older versions saved causal masks and positions
Headers = dict[str, dict[str, TensorFacts]]  # file name -> tensor name -> type and shape


def weight_files(source: Path) -> dict[str, set[str] | None]:
    """Returns file name -> the names of the tensors that the index expects in it (None: all there are)."""
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


def header_of(source: Path, file: str, expected: set[str] | None) -> dict[str, TensorFacts]:
    path = external.inside(source, file)
    header = external.safetensors_header(path)
    if expected is not None and header.keys() != expected:
        name = min(header.keys() ^ expected)
        raise CheckpointError(f"{path}: {INDEX} and this file disagree on {name!r:.80}; download both again")
    return header


def differ(source: Path, headers: Headers, one: str, other: str) -> bool:
    """Returns whether the files have both tensors, and they differ."""
    tensors = [
        value
        for name in (one, other)
        for file, header in headers.items()
        if name in header
        for _, value in external.read_weights(external.inside(source, file), {name: header[name]})
    ]
    return len(tensors) == 2 and not torch.equal(*tensors)


def without_left_out(family: Family, headers: Headers) -> tuple[list[str], Headers]:
    """Returns remarks on what an import does not take over, and the headers without it and without buffers."""
    names = sorted(n for header in headers.values() for n in header if family.short(n) in family.left_out)
    remarks = [f"{', '.join(names)} left out: {family.why_left_out}"] if names else []
    wanted = {
        file: {n: facts for n, facts in header.items() if n not in names and not n.endswith(_BUFFERS)}
        for file, header in headers.items()
    }
    return remarks, wanted


def check_parameters(source: Path, headers: Headers, family: Family, parts: Parts, facts: Facts) -> None:
    """Raises CheckpointError unless the headers list exactly the parameters of the model, some of them twice."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file, header in headers.items():
        for name, tensor in header.items():
            short = family.short(name)
            if short in shapes:
                raise CheckpointError(f"{source / file}: {name!r:.80} is there twice; download the folder again")
            shapes[short] = tensor.shape
    for copy, original in family.copies.items():
        shape = shapes.pop(copy, None)
        if shape is not None and shapes.setdefault(original, shape) != shape:
            raise CheckpointError(f"{source}: {copy} {list(shape)} is not tied to {original} {list(shapes[original])}")
    check_shapes(family, shapes, parts.shapes, facts, str(source))


def read_tensors(source: Path, headers: Headers, family: Family) -> dict[str, Tensor]:
    """Returns the weights under transformers' short names. Some may be saved under either of two names, or under
    both.
    """
    tensors = {
        family.short(name): value
        for file, header in headers.items()
        for name, value in external.read_weights(external.inside(source, file), header)
    }
    for copy, original in family.copies.items():
        value = tensors.pop(copy, None)
        if value is not None and not torch.equal(value, tensors.setdefault(original, value)):
            raise CheckpointError(f"{source}: {copy} differs from {original}; in {family.title} they are one")
    return tensors
