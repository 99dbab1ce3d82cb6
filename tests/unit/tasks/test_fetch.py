"""`data fetch`, from a hub on this machine (tests/helpers/folder_hub.py): no network is needed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
import yaml

from gpt1_ds.common.errors import DataError, UserError, WorldError
from gpt1_ds.config import TaskConfig
from gpt1_ds.tasks import fetch, hub_sets
from gpt1_ds.tasks.blimp import read_pairs
from gpt1_ds.tasks.hub_sets import SETS, HubSet, WebSet, way_to
from gpt1_ds.tasks.lambada import read_passages
from gpt1_ds.tasks.reading import read_scored, read_task
from gpt1_ds.tasks.winograd import read_schemas
from tests.helpers.folder_hub import SHA, HubServer, serve

ROOT = Path(__file__).parents[3]
PROGRAM = """
import contextlib, json, sys
from gpt1_ds.cli import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(sys.stderr):
        code = main(["data", "fetch", *words])
    print("exit code", code, file=sys.stderr, flush=True)
"""
BINARY = datasets.ClassLabel(names=["no", "yes"])
TEXT, LIST = datasets.Value("string"), datasets.List(datasets.Value("string"))
NLI = {
    "premise": TEXT,
    "hypothesis": TEXT,
    "label": datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]),
}
QUESTION = {"example_id": TEXT, "article": TEXT, "answer": TEXT, "question": TEXT, "options": LIST}
PAIR = {"sentence_good": TEXT, "sentence_bad": TEXT, "linguistics_term": TEXT, "UID": TEXT, "pair_id": TEXT}


def put(root: Path, name: str, columns: dict[str, Any], rows: dict[str, list[list[Any]]]) -> None:
    """A split of one configuration of the repository of the set `name`, for each key CONFIG/SPLIT of `rows`."""
    one = SETS[name]
    assert isinstance(one, HubSet)
    folder = root / "datasets" / one.hub
    for key, values in rows.items():
        table = {column: list(found) for column, found in zip(columns, zip(*values, strict=True), strict=True)}
        path = folder / f"{key}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(table, datasets.Features(columns)).to_parquet(path)
    found: dict[str, list[dict[str, str]]] = {}
    for path in sorted(folder.glob("*/*.parquet")):
        split = {"split": path.stem, "path": f"{path.parent.name}/{path.name}"}
        found.setdefault(path.parent.name, []).append(split)
    configs = [{"config_name": config, "data_files": splits} for config, splits in found.items()]
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    root = tmp_path_factory.mktemp("hub")
    film = datasets.ClassLabel(names=["negative", "positive"])
    films = [['a "good"\tfilm\n', 1, 0], ["a bad one", 0, 1]]
    splits = {"sst2/train": films, "sst2/validation": films, "sst2/test": [["which?", -1, 0]]}
    put(root, "glue/sst2", {"sentence": TEXT, "label": film, "idx": datasets.Value("int32")}, splits)
    texts = [["he is up", "he sleeps", 2], ["x", "y", 0], ["z", "z", -1]]
    put(root, "snli", NLI, {f"plain_text/{split}": texts for split in ("train", "validation", "test")})
    asked = [
        ["1", "Tom ran.", "B", "Who?", ["a", "Tom", "c", "d"]],
        ["1", "Tom ran.", "A", "How?", ["a", "b", "c", "d"]],
    ]
    configs = [f"{config}/{split}" for config in ("middle", "high") for split in ("train", "validation", "test")]
    put(root, "race", QUESTION, dict.fromkeys(configs, asked))
    for paradigm in ("drop_argument", "passive_1"):
        put(root, "blimp", PAIR, {f"{paradigm}/train": [["good", "bad", "s-selection", paradigm, "0"]]})
    put(root, "lambada", {"text": TEXT}, {"default/test": [["one two three"]]})
    scored = {"sentence1": TEXT, "sentence2": TEXT, "score": datasets.Value("float64")}
    put(root, "stsb_labelled", scored, {f"default/{x}": [["a", "b", 2.5]] for x in ("train", "validation", "test")})
    with serve(root) as server:
        yield server


def run(hub: HubServer, cache: Path, *commands: str, **variables: str) -> list[tuple[int, str]]:
    """(exit code, what it said) of `data fetch` with the words of each command, in one process."""
    given = {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), **variables}
    process = [sys.executable, "-c", PROGRAM, json.dumps([command.split() for command in commands])]
    done = subprocess.run(process, env={**os.environ, **given}, capture_output=True, text=True, timeout=120)
    pieces = re.split(r"exit code (\d+)\n", done.stderr)
    return [(int(code), said.strip()) for said, code in zip(pieces[::2], pieces[1::2], strict=False)]


def test_what_is_fetched_is_what_tasks_and_probes_read(hub: HubServer, tmp_path: Path) -> None:
    names = "glue/sst2 snli race blimp lambada stsb_labelled"
    ((code, said),) = run(hub, tmp_path / "cache", f"{names} --out {tmp_path}")
    assert code == 0, said
    lines = said.splitlines()
    assert lines[0] == (
        f"{tmp_path}/sst2: train.jsonl 2 rows, dev.jsonl 2 rows, test.jsonl 1 rows; "
        f"licence of glue/sst2: {SETS['glue/sst2'].licence}"
    )
    assert [line.partition("; licence of ")[2].partition(":")[0] for line in lines] == names.split()
    sst2 = read_task(TaskConfig(name="sst2", path=str(tmp_path / "sst2"))).splits
    assert [(one.texts, one.label, one.id) for one in sst2["train"]] == [
        (('a "good"\tfilm',), "1", "0"),
        (("a bad one",), "0", "1"),
    ]
    assert [one.label for one in sst2["test"]] == [None]
    snli = read_task(TaskConfig(name="snli", path=str(tmp_path / "snli"))).splits
    assert [one.label for one in snli["dev"]] == ["contradiction", "entailment"]
    race = read_task(TaskConfig(name="race", path=str(tmp_path / "race"))).splits
    assert [(one.group, one.label) for one in race["train"]] == [
        *[("middle", "B"), ("middle", "A")],
        *[("high", "B"), ("high", "A")],
    ]
    assert race["dev"][0].choices == ("a", "Tom", "c", "d")
    assert [pair.id for pair in read_pairs(tmp_path / "blimp")] == ["drop_argument 0", "passive_1 0"]
    assert read_passages(tmp_path / "lambada")[0].texts == ("one two", "three")
    assert read_scored(str(tmp_path / "stsb_labelled"))["test"][0].score == 2.5
    source = json.loads((tmp_path / "sst2" / fetch.SOURCE).read_text())
    assert (source["revision"], source["hub"]) == (SHA, "nyu-mll/glue")
    assert all(SHA in line for line in hub.asked if ".parquet" in line)


def test_what_is_there_is_left_and_a_broken_stream_goes_on(hub: HubServer, tmp_path: Path) -> None:
    hub.missing.add("validation.parquet")
    command = f"glue/sst2 --out {tmp_path}"
    ((code, said),) = run(hub, tmp_path / "cache", command)
    assert (code, len(said.splitlines())) == (2, 1), said
    assert "glue/sst2: sst2 validation" in said
    folder = tmp_path / "sst2"
    assert sorted(path.name for path in folder.iterdir()) == [fetch.SOURCE, "train.jsonl"]
    (folder / "train.jsonl").write_text("left")
    hub.missing.clear()
    hub.broken.append("test.parquet")
    ((code, said),) = run(hub, tmp_path / "cache", command)
    assert code == 0, said
    assert f"{folder}: dev.jsonl 2 rows, test.jsonl 1 rows, 1 files were there" in said
    assert (folder / "train.jsonl").read_text() == "left"
    assert not hub.broken


def test_without_a_hub_one_line_says_where_files_go(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = rf"put train.jsonl, dev.jsonl, test.jsonl into {tmp_path}/scitail$"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    with pytest.raises(DataError, match=f"^scitail: the hub refuses allenai/scitail .*HF_TOKEN.*{by_hand}"):
        fetch.fetch("scitail", tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(WorldError, match=f"^scitail: the hub does not answer .*{by_hand}"):
        fetch.fetch("scitail", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(WorldError, match=f"^scitail: HF_HUB_OFFLINE is set; .*{by_hand}"):
        fetch.fetch("scitail", tmp_path)
    assert not (tmp_path / "scitail").exists()


def test_files_of_another_origin_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "train.tsv").write_text("mine")
    with pytest.raises(DataError, match=r"sst2 holds train.tsv, which data fetch did not write"):
        fetch.fetch("glue/sst2", tmp_path)
    with pytest.raises(UserError, match=r"data fetch sst2: there is no such set; did you mean glue/sst2\?"):
        fetch.fetch("sst2", tmp_path)
    with pytest.raises(DataError, match=r"story_cloze: its authors ask for a form, .* into .*story_cloze"):
        fetch.fetch("story_cloze", tmp_path)


def test_files_of_the_web_are_the_known_ones_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = "Ann saw Eve when [MASK] left.\n[MASK]\nAnn,Eve\nEve\n"
    (tmp_path / "there.txt").write_text(schema)
    address, sha256 = (tmp_path / "there.txt").as_uri(), hashlib.sha256(schema.encode()).hexdigest()
    one = SETS["winograd"]
    assert isinstance(one, WebSet)
    monkeypatch.setitem(hub_sets.SETS, "winograd", replace(one, files={"wsc273.txt": (address, sha256)}))
    assert fetch.fetch("winograd", tmp_path / "out").rows == {"wsc273.txt": 4}
    assert read_schemas("wsc273", tmp_path / "out" / "winograd")[0].label == "1"
    monkeypatch.setitem(hub_sets.SETS, "winograd", replace(one, files={"PDP.txt": (address, "0" * 64)}))
    with pytest.raises(DataError, match="is not the file that is known"):
        fetch.fetch("winograd", tmp_path / "other")
    gone = (tmp_path / "gone.txt").as_uri()
    monkeypatch.setitem(hub_sets.SETS, "winograd", replace(one, files={"PDP.txt": (gone, sha256)}))
    with pytest.raises(WorldError, match=r"does not answer .*; run again with a network, or put it at"):
        fetch.fetch("winograd", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_folder_that_is_missing_is_named_with_the_command_that_makes_it() -> None:
    with pytest.raises(DataError, match="; gpt1-ds data fetch glue/rte makes it"):
        read_task(TaskConfig(name="rte", path="data/rte"))
    assert way_to("data/sst2_sentences") == "; gpt1-ds data fetch sst2_sentences makes it"
    assert way_to("/a/b/blimp") == "; gpt1-ds data fetch blimp --out /a/b makes it"
    assert way_to("/my tasks/blimp") == "; gpt1-ds data fetch blimp --out '/my tasks' makes it", "for a shell"
    assert way_to("reviews") == ""
    assert way_to("data/snli", "nli") == way_to("data/snli"), "which reads it"
    (glue,) = (one for one in SETS.values() if one.name == "glue/cola")
    assert way_to(f"data/{glue.folder}", "cola") == "; gpt1-ds data fetch glue/cola makes it"
    wanted = "called like the folder of glue/cola: does task.name=sst2 fit?"
    assert way_to(f"data/{glue.folder}", "sst2").endswith(wanted)


def values_of(node: Any, key: str = "") -> Iterator[str]:
    """Every string that begins with data/ below a node of YAML."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from values_of(value, str(name))
    elif isinstance(node, list):
        for value in node:
            yield from values_of(value, key)
    elif isinstance(node, str) and node.startswith("data/"):
        yield node


CONFIGURATIONS = sorted(path for part in ("finetune", "evaluate") for path in (ROOT / "configs" / part).rglob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_all_data_that_configurations_name_can_be_made(path: Path) -> None:
    text = path.read_text()
    folders = {f"{hub_sets.OUT}/{one.folder}" for one in SETS.values()}
    makers = [(ROOT / name).read_text() for name in re.findall(r"tools/\w+\.sh", text)]
    makers += [(ROOT / "tools" / "on_novels.sh").read_text()] if makers else []
    for name in values_of(yaml.safe_load(text)):
        if name in folders or name == "data/table":  # one's own
            continue
        made = any(re.search(rf"--out {name}\b|mkdir -p .*\b{name}\b", script) for script in makers)
        assert made, f"{name} is made by no data fetch and by no command that {path.name} names"
