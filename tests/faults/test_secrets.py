"""What a run leaves behind is private and holds no secret of the environment."""

from __future__ import annotations

import json
import shlex
import stat
from pathlib import Path

SECRETS = {
    "WANDB_API_KEY": "a1b2c3d4e5f60718293a4b5c6d7e8f9001122334",
    "HF_TOKEN": "hf_thisisnotforanyone",
    "TRACKIO_WRITE_TOKEN": "trackio-token-of-nobody",
    "AWS_SECRET_ACCESS_KEY": "neither/is+this",
    "MY_PASSWORD": "nor-this-one-either",
}


def test_no_secret_in_any_file_and_nothing_for_others(program, tiny_data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = [
        f"data.path={tiny_data}",
        "train.steps=3",
        "model.layers=1",
        *("tracking.wandb=offline", "tracking.tensorboard=true", "tracking.trackio=true"),
        "checkpoint.every=2",
    ]
    result = program("pretrain", *arguments, "--nproc", "2", TRACKIO_DIR=str(tmp_path / "trackio"), **SECRETS)
    assert result.returncode == 0, result.stderr
    assert "is off for the rest" not in result.stderr
    environment = json.loads((tmp_path / "runs" / "run" / "env.json").read_text())
    assert environment["command"] == shlex.join(["gpt1-ds", "pretrain", *arguments, "--nproc", "2"])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert {"tensorboard", "trackio", "wandb"} <= {part for path in files for part in path.parts}
    for path in files:
        content = path.read_bytes()
        for name, secret in SECRETS.items():
            assert secret.encode() not in content, f"{name} is in {path}"
    for path in [tmp_path / "runs" / "run", *(tmp_path / "runs" / "run").rglob("*")]:
        if not path.is_symlink():
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
