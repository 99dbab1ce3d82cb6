"""Honest files changed at random, and signed again as an attacker would: sums and checksums are right. For
tools/fuzz_hostile.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import struct
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import manifest, whole
from gpt1_ds.common.files import sha256_file
from gpt1_ds.data.dataset import hash_data
from gpt1_ds.data.tokenizers.base import METADATA
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.interop import hf_export, hf_weights

TASK = {"name": "x", "kind": "classification", "layout": "single", "labels": ["a", "b"], "metrics": ["accuracy"]}
HEAD = {"outputs": 2, "sequences": 1, "choice": False, "dropout": 0.1, "lm_coefficient": 0.5}
SCALARS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 255, 2**31, 2**48, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.5, 1e308),
    *(float("nan"), float("inf"), "", "a", "1", "../x", "/etc/passwd", "a\0b", "\x1b[2J\x1b]0;x\x07", "a\nb", "\ud800"),
    *("${oc.env:HOME}", "${run.name}", "\u202e", "x" * 300, "y" * 100_000, "fp16", "object", "train", "state", "NaN"),
]


def hostile(draw: random.Random) -> Any:
    """A value that no honest writer writes there."""
    shape = draw.randrange(12)
    if shape == 0:
        return [draw.choice(SCALARS) for _ in range(draw.randrange(4))]
    if shape == 1:
        return {str(draw.choice(SCALARS))[:50]: draw.choice(SCALARS) for _ in range(draw.randrange(4))}
    if shape == 2:
        value: Any = []
        for _ in range(draw.choice((3, 50, 800))):
            value = [value] if draw.random() < 0.5 else {"a": value}
        return value
    if shape == 3 and draw.random() < 0.3:  # a bomb: a few bytes each, much memory
        return [[]] * draw.choice((1000, 100_000, 3_000_000))
    return draw.choice(SCALARS)


def change(draw: random.Random, value: Any) -> Any:
    """Nested mappings and lists with one place changed."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.08:
        return hostile(draw)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw.choice(keys)
    how = draw.randrange(10)
    if how == 0:
        del value[key]
    elif how == 1 and isinstance(value, dict):
        value[str(hostile(draw))[:200]] = value.pop(key)
    elif how == 2:
        value[key] = value[draw.choice(keys)]
    elif how == 3 and isinstance(value, dict):
        value[str(hostile(draw))[:200]] = hostile(draw)
    else:
        value[key] = change(draw, value[key])
    return value


def change_json(draw: random.Random, path: Path) -> None:
    value = json.loads(path.read_text())
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        value = change(draw, value)
    path.write_text(json.dumps(value))


def change_bytes(draw: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 8))):
        at, length = draw.randrange(len(data) + 1), draw.choice((1, 1, 2, 4, 8, 100))
        how = draw.randrange(6)
        if how == 0:
            del data[at : at + length]
        elif how == 1:
            data[at:at] = draw.randbytes(length)
        elif how == 2:
            data[at : at + length] = data[:length]
        elif how == 3 and draw.random() < 0.3:
            del data[at:]
        elif data:
            at = min(at, len(data) - 1)
            data[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, data[at] ^ (1 << draw.randrange(8))))
    path.write_bytes(data)


def change_yaml(draw: random.Random, path: Path) -> None:
    lines = path.read_text().splitlines()
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(lines))
        value = draw.choice([*map(str, SCALARS), "1e9", "[" * 2000, "{a: b}", "&a [*a]", "${model.layers}" * 50, "\t"])
        how = draw.randrange(5)
        if how == 0:
            lines[at] = lines[at].split(":")[0] + ": " + value
        elif how == 1:
            lines[at] = " " * draw.randrange(5) + draw.choice(("setup", "layers", "x", "run")) + ": " + value
        elif how == 2:
            lines.insert(at, draw.choice(lines))
        elif how == 3 and len(lines) > 1:
            del lines[at]
        elif draw.random() < 0.2:
            indent = " " * (len(lines[at]) - len(lines[at].lstrip()))
            lines[at:at] = [f"{indent}k{number}: [[], {{}}]" for number in range(draw.choice((100, 3000, 30_000)))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")


def change_header(draw: random.Random, path: Path) -> None:
    """The header of a safetensors file, whose tensors stay."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = json.dumps(change(draw, json.loads(data[8 : 8 + length]))).encode()
    claimed = 2**60 if draw.random() < 0.2 else len(text)
    path.write_bytes(struct.pack("<Q", claimed) + text + data[8 + length :])


def sign_checkpoint(folder: Path, body: dict[str, Any] | None = None) -> None:
    """Sums of the files as they are now, in a manifest whose own is right; of `body` nothing else is changed."""
    if body is None:
        body = json.loads((folder / manifest.NAME).read_text())
        for name in body["files"]:
            body["files"][name] = manifest.file_facts(folder / name)
    body.pop("checksum", None)
    (folder / manifest.NAME).write_text(json.dumps({**body, "checksum": manifest.checksum(body)}))


def sign_tokenizer(folder: Path) -> None:
    path = folder / METADATA
    values = json.loads(path.read_text())
    with contextlib.suppress(AttributeError, TypeError, KeyError, OSError, ValueError):
        values["files"] = {name: sha256_file(folder / name) for name in values["files"]}
        path.write_text(json.dumps(values))


def sign_dataset(folder: Path) -> None:
    path = folder / "dataset.json"
    values = json.loads(path.read_text())
    with contextlib.suppress(AttributeError, TypeError, KeyError, OSError, ValueError):
        for split in values["splits"].values():
            for shard in split["shards"]:
                for kind in ("bin", "idx"):
                    file = folder / f"{shard['name']}.{kind}"
                    shard |= {f"{kind}_sha256": sha256_file(file), f"{kind}_size": file.stat().st_size}
        fingerprint = load_tokenizer(folder / "tokenizer").fingerprint
        values["data_hash"] = hash_data(values["splits"], values["dtype"], fingerprint)
        path.write_text(json.dumps(values))


def mutate_manifest(draw: random.Random, folder: Path) -> None:
    body = json.loads((folder / manifest.NAME).read_text())
    if draw.random() < 0.5:
        body |= {"task": json.loads(json.dumps(TASK)), "head": dict(HEAD)}
    for _ in range(draw.choice((1, 1, 2))):
        part = draw.choice(list(body))
        body[part] = change(draw, body[part])
    sign_checkpoint(folder, body)


def mutate_index(draw: random.Random, folder: Path) -> None:
    change_json(draw, folder / "state/index.json")
    sign_checkpoint(folder)


def mutate_state(draw: random.Random, folder: Path) -> None:
    draw.choice((change_header, change_bytes))(draw, folder / whole.TENSORS)
    sign_checkpoint(folder)


def mutate_configuration(draw: random.Random, folder: Path) -> None:
    change_yaml(draw, folder / "config.yaml")
    sign_checkpoint(folder)


def mutate_tokenizer(draw: random.Random, folder: Path) -> None:
    inner = folder / "tokenizer"
    if draw.random() < 0.6:
        change_bytes(draw, inner / "tokenizer.model")
    else:
        change_json(draw, inner / METADATA)
    sign_tokenizer(inner)
    sign_checkpoint(folder)


def mutate_hf(draw: random.Random, folder: Path) -> None:
    how = draw.randrange(6)
    if how < 2:
        change_json(draw, folder / "config.json")
    elif how == 2:
        draw.choice((change_header, change_bytes))(draw, folder / hf_weights.WEIGHTS)
    elif how == 3:
        header = json.loads((folder / hf_weights.WEIGHTS).read_bytes()[8:].partition(b"}}")[0] + b"}}")
        header.pop("__metadata__", None)
        shutil.move(folder / hf_weights.WEIGHTS, folder / "part.safetensors")
        (folder / hf_weights.INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(header, "part.safetensors")}))
        change_json(draw, folder / hf_weights.INDEX)
    elif how == 4:
        shutil.rmtree(folder / hf_export.TOKENIZER)
        (folder / "vocab.json").write_text(json.dumps(change(draw, {"a</w>": 0, "b": 1, "\n</w>": 2})))
        (folder / "merges.txt").write_text("#version\na b</w>\n" + str(hostile(draw))[:1000], errors="surrogatepass")
    else:
        inner = folder / hf_export.TOKENIZER
        draw.choice((change_bytes, change_bytes))(draw, inner / "tokenizer.model")
        sign_tokenizer(inner)


def mutate_dataset(draw: random.Random, folder: Path) -> None:
    how = draw.randrange(4)
    shards = sorted(folder.glob("*.idx"))
    if how == 0:
        change_bytes(draw, draw.choice(shards))
    elif how == 1:
        change_bytes(draw, draw.choice(shards).with_suffix(".bin"))
    if how < 3:
        sign_dataset(folder)
    if how >= 2:
        change_json(draw, folder / "dataset.json")


def mutate_run(draw: random.Random, folder: Path) -> None:
    """A record of a run folder, or the file itself: as another program or an older disk may leave it."""
    name = draw.choice(("metrics.jsonl", "events.jsonl", "samples.jsonl", "eval.json", "env.json", "config.yaml"))
    path = folder / name
    if draw.random() < 0.15:
        replace_file(draw, path)
    elif name == "config.yaml":
        change_yaml(draw, path)
    elif name.endswith(".json"):
        draw.choice((change_json, change_json, change_bytes))(draw, path)
    else:
        lines = path.read_text().splitlines()
        at = draw.randrange(len(lines))
        lines[at] = json.dumps(change(draw, json.loads(lines[at])))
        path.write_text("\n".join(lines) + "\n")


def mutate_places(draw: random.Random, folder: Path) -> None:
    replace_file(draw, draw.choice(sorted(path for path in folder.rglob("*") if path.is_file())))


def replace_file(draw: random.Random, path: Path) -> None:
    """A folder, an empty file, a link to nothing, to itself or to a device, or a pipe in the place of a file."""
    path.unlink()
    how = draw.randrange(6)
    if how == 0:
        path.mkdir()
    elif how == 1:
        path.touch()
    elif how == 5:
        os.mkfifo(path)
    else:
        path.symlink_to(("nowhere", path.name, "/dev/zero")[how - 2])


def backtracking_tokenizer(draw: random.Random, folder: Path) -> None:
    """A tokenizer.json whose pattern takes exponential time, beside text that shows it."""
    pattern = draw.choice(("(a|a)*$", "(a+)+$", "(?:a|aa)+$", "([a-z]+)*\\d"))
    path = folder / "tokenizer.json"
    body = json.loads(path.read_text())
    body["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(body))


def dictionary_bomb(draw: random.Random, folder: Path) -> None:
    """A Parquet file of some kilobytes, all of whose rows are one long text of its dictionary."""
    import pyarrow
    from pyarrow import parquet

    text = draw.choice("ab ") * draw.choice((1 << 20, 22 << 20))
    rows = pyarrow.array([0] * draw.choice((10, 500)), pyarrow.int32())
    column = pyarrow.DictionaryArray.from_arrays(rows, pyarrow.array([text]))
    table = pyarrow.table({"text": column})
    parquet.write_table(table, folder / "bomb.parquet", compression="zstd", store_schema=False)
