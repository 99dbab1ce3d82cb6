"""Whatever a YAML file says, the answer is a configuration or a list of problems, soon."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.config import Config, load
from tools.memory import memory_now, memory_peak

ROOT = Path(__file__).parents[3]
PRESETS = sorted((ROOT / "configs").glob("pretrain/*.yaml"))
VALUES = [
    *(
        "",
        "no",
        "off",
        "0123",
        "12:30:45",
        "1e-3",
        "10B",
        "-1",
        "1.5.2",
        "nan",
        ".inf",
        "~",
        "null",
        "'",
        "[",
        "{a: b}",
    ),
    *("[1, 2]", "&a [*a]", "*missing", "!!python/object/apply:os.system ['true']", "${oc.env:HOME}", "${model.layers}"),
    *(
        "\u00e9\u4e2d\U0001f600",
        "\u202e",
        "x" * 10_000,
        "9" * 400,
        "1_000",
        "0x10",
        "yes",
        "=",
        "<<",
        "- - -",
        "\t",
        "#",
    ),
]
KEYS = ["model", "layers", "laers", "train.steps", "", "run", "?", "parallel", "тест", "a" * 300]


def mutated(text: str, draw: random.Random) -> str:
    """A few random edits of a valid file: values, keys, characters, lines."""
    lines = text.splitlines()
    for _ in range(draw.randint(1, 4)):
        number = draw.randrange(len(lines))
        kind = draw.randrange(6)
        if kind == 0 and ":" in lines[number]:
            lines[number] = lines[number].split(":")[0] + ": " + draw.choice(VALUES)
        elif kind == 1:
            lines[number] = " " * draw.randrange(5) + draw.choice(KEYS) + ": " + draw.choice(VALUES)
        elif kind == 2 and lines[number]:
            at = draw.randrange(len(lines[number]))
            lines[number] = lines[number][:at] + chr(draw.randrange(1, 0x3000)) + lines[number][at + 1 :]
        elif kind == 3:
            lines.insert(number, draw.choice(lines))
        elif kind == 4 and len(lines) > 1:
            del lines[number]
        else:
            lines[number] = " " * draw.randrange(4) + lines[number].lstrip()
    return "\n".join(lines) + "\n"


def answer(path: Path) -> Config | UserError:
    try:
        return load([str(path)])
    except UserError as error:
        return error


@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_mutations(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    path = tmp_path / "fuzz.yaml"
    for _ in range(100):
        text = mutated(draw.choice(PRESETS).read_text(), draw)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        began = time.process_time()
        found = answer(path)
        if isinstance(found, UserError):
            assert max(map(len, found.problems)) < 1_000
            assert not any("\n" in problem for problem in found.problems)
        assert time.process_time() - began < 2


BOMBS = {
    "interpolations": "slurm: {account: "
    + "x" * 50
    + "".join(
        f", {key}: '{f'${{slurm.{named}}}' * 20}'"
        for named, key in pairwise(("account", "partition", "qos", "memory", "constraint", "exclude"))
    )
    + "}",
    "a long interpolation": f"slurm: {{account: {'x' * 3000}, qos: '${{slurm.account}}${{slurm.account}}'}}",
    "many interpolations": "slurm: {account: x, options: [" + "'${slurm.account}', " * 200 + "]}",
    "an interpolation of itself": "run: {name: '${run.name}'}",
    "distinct keys, 889 KB": "model:\n" + "".join(f"  k{number}: 1\n" for number in range(80_000)),
    "distinct keys, 64 KB": "model:\n" + "".join(f"  k{number}: 1\n" for number in range(6_000)),
    "distinct variables": "slurm: {environment: {" + ", ".join(f"K{n}: 1" for n in range(6_000)) + "}}",
    "a long list": "slurm: {options: [" + "a, " * 20_000 + "]}",
    "many wrong items": "slurm: {options: [" + "a, " * 3_500 + "]}",
    "as many wrong items as a file holds": "slurm: {options: [" + "a, " * 1_900 + "]}",
    "deep": "[" * 5_000,
    "deep, closed": "parallel: {deepspeed: " + "[" * 5_000 + "]" * 5_000 + "}",
    "a long key": "model: {" + "k" * 60_000 + ": 1}",
    "layers": "model: {layers: 1e9}",
    "a width and heads": "model: {width: 1e12, heads: 7}",
    "a batch": "train: {global_batch: 1000000000001, micro_batch: 999999999999}",
    "digits": f"train: {{steps: {'9' * 4299}T}}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_answered_within_a_second_and_200_mib(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMBS[name])
    before, began = memory_now(), time.process_time()
    found = answer(path)
    assert time.process_time() - began < 1
    assert memory_peak() - before < 200 << 20
    assert isinstance(found, UserError)
    assert len(found.problems) <= ConfigError.MOST
    assert max(map(len, found.problems)) < 1_000


def test_bombs(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    layers = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    path.write_text("a0: &a0 [x, x]\n" + "\n".join(layers))
    with pytest.raises(UserError, match=r"bomb\.yaml"):
        load([str(path)])
    path.write_text("model:\n  layers: 2\n" + "# filler\n" * 1_200_000)
    with pytest.raises(UserError, match="too large"):
        load([str(path)])
    path.write_text("{" * 5_000)
    with pytest.raises(UserError, match=r"bomb\.yaml"):
        load([str(path)])
