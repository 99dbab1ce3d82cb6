"""Ranks that were started differently end before the first step, all of them, with one line that says how."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import Dataset
from tests.helpers import apart
from tests.helpers.apart import Ended, Host
from tools import runs

SECONDS = 30.0  # that refusing takes at most, on a busy machine; a hang takes guard.init_timeout, 600
SAME = "start all ranks with the same arguments and configuration"
CONFIGURATIONS = (  # (arguments of rank 0, of rank 1, the line)
    ([], ["optimizer.lr=0.002"], f"optimizer.lr: 0.001 on rank 0, 0.002 on rank 1; {SAME}"),
    ([], ["run.seed=8"], f"run.seed: 1 on rank 0, 8 on rank 1; {SAME}"),
    ([], ["model.residual_dropout=0.3"], f"model.residual_dropout: 0.1 on rank 0, 0.3 on rank 1; {SAME}"),
    ([], ["train.steps=4"], f"train.steps: 3 on rank 0, 4 on rank 1; {SAME}"),
    ([], ["checkpoint.every=1"], f"checkpoint.every: 5 on rank 0, 1 on rank 1; {SAME}"),
    ([], ["guard.compare_every=1"], f"guard.compare_every: 100 on rank 0, 1 on rank 1; {SAME}"),
    ([], ["run.name=other"], f"run.name: run on rank 0, other on rank 1; {SAME}"),
    ([], ["parallel.tensor=2"], f"parallel.tensor: 1 on rank 0, 2 on rank 1; {SAME}"),
    (["parallel.pipeline=2"], [], f"parallel.pipeline: 2 on rank 0, 1 on rank 1; {SAME}"),
    ([], ["model.layers=3", "run.seed=8"], f"run.seed: 1 on rank 0, 8 on rank 1 (1 more differ: model.layers); {SAME}"),
)


def arguments(data: Path | str, folder: Path, *more: str) -> list[str]:
    return ["pretrain", *runs.TINY, f"data.path={data}", f"run.dir={folder / 'runs'}", "train.steps=3", *more]


def line(ended: list[Ended]) -> str:
    """What rank 0 said; all ended with 2 within seconds, the others in silence."""
    assert {one.code for one in ended} == {2}, ended
    assert max(one.seconds for one in ended) < SECONDS
    assert not any(one.said for one in ended[1:]), ended
    (said,) = ended[0].said.splitlines()
    return said.removeprefix("gpt1-ds: ")


def test_other_configurations_are_refused_by_all_ranks(tiny_data: Path, tmp_path: Path) -> None:
    commands = [
        [Host(arguments(tiny_data, tmp_path, *more), tmp_path) for more in (here, there)]
        for here, there, _ in CONFIGURATIONS
    ]
    assert [line(ended) for ended in apart.start(*commands)] == [said for *_, said in CONFIGURATIONS]
    assert not (tmp_path / "runs").exists(), "no run folder was made"


def test_other_code_and_versions_are_refused(tiny_data: Path, tmp_path: Path) -> None:
    told = arguments(tiny_data, tmp_path)
    code, version = (
        [Host(told, tmp_path, name="a"), Host(told, tmp_path, gives={f"gpt1_ds.engine.{name}": value}, name="b")]
        for name, value in (("agreement.source_hash", "0" * 16), ("agreement.installed", "0.1"))
    )
    said = [line(ended) for ended in apart.start(code, version)]
    assert said[0].startswith("gpt1-ds: ")
    assert said[0].endswith("(code 0000000000000000) on rank 1 (host b); install the same gpt1-ds on every host")
    assert said[1].startswith("torch: ")
    assert "0.1 on rank 1 (host b)" in said[1]
    assert said[1].endswith("; install the same torch on every host")


def test_other_files_at_the_same_path_are_refused(tiny_data: Path, tmp_path: Path) -> None:
    """Hosts with disks of their own: another dataset, a copy that is damaged where only the other host would have
    looked, another checkpoint, and a run folder that is not the same one.
    """
    data, other, damaged, runs_here = (tmp_path / name for name in ("data", "other", "damaged", "runs"))
    data.mkdir()
    runs_here.mkdir()
    (tmp_path / "text.txt").write_text("This is another text.\n" * 200)
    build([tmp_path / "text.txt"], tiny_data.parent / "tokenizer", other, workers=1, validation=0.1)
    shutil.copytree(tiny_data, damaged)
    shard = damaged / f"{Dataset(damaged).split('train').shards[0]['name']}.bin"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    (tmp_path / "own").mkdir()

    def command(own: Path, name: str, **mounts: str) -> list[Host]:
        told = arguments(data, tmp_path, f"run.name={name}", "data.path=data")
        here, there = (
            {str(data): str(place), **({str(runs_here): str(tmp_path / "own")} if mine else {})}
            for place, mine in ((tiny_data, False), (own, bool(mounts)))
        )
        return [Host(told, tmp_path, here, name="a"), Host(told, tmp_path, there, name="b")]

    ended = apart.start(command(other, "x"), command(damaged, "y"), command(tiny_data, "z", runs="own"))
    first, second, third = map(line, ended)
    assert first.startswith("data.path: ")
    assert first.endswith(" on rank 1 (host b); every host needs the same files there")
    assert second.startswith(f"data/{shard.name}: its sha256 differs from the one in dataset.json; ")
    assert third.startswith("run.dir: rank 1 on b does not see what rank 0 on a writes in ")
    assert third.endswith("/runs/z; choose a folder on a disk that all hosts share")


def test_equal_ranks_train_and_evaluate_only_alike(tiny_data: Path, tmp_path: Path) -> None:
    run = str(tmp_path / "runs" / "run")
    trained, evaluated = apart.start(
        [Host(arguments(tiny_data, tmp_path), tmp_path)] * 2,
        [Host(["evaluate", "--checkpoint", run, *more], tmp_path) for more in ([], ["--every"])],
    )
    assert [one.code for one in trained] == [0, 0], trained
    assert line(evaluated) == f"missing: False on rank 0, True on rank 1; {SAME}"
