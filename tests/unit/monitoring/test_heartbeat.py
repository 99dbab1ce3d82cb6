"""What a rank reads of another one's heartbeat, and which processes it may send a signal to."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpt1_ds.common.lock import identity, is_alive_here
from gpt1_ds.monitoring import heartbeat
from gpt1_ds.monitoring.heartbeat import HALF, HeartbeatFile, Presence, Progress

PROGRESS = Progress(3, "step", 7, 600.0)
PRESENCE = Presence(1, "host", 4711, 0, 0.5, "", False)


def test_a_beat_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = HeartbeatFile(tmp_path, 1)
    file.write(PROGRESS)
    file.write(PRESENCE)
    found = heartbeat.read(tmp_path, 1)
    assert found is not None
    assert (found.progress, found.presence) == (PROGRESS, PRESENCE)


@pytest.mark.parametrize(
    "wrong", [{"rank": 0}, {"rank": "1"}, {"age": "x"}, {"age": None}, {"more": 1}], ids=lambda wrong: str(wrong)
)
def test_what_is_no_beat_is_none(wrong: dict[str, object], tmp_path: Path) -> None:
    texts = json.dumps(vars(PROGRESS)), json.dumps({**vars(PRESENCE), **wrong})
    (tmp_path / "rank-1.json").write_bytes(b"".join(text.encode().ljust(HALF) for text in texts))
    assert heartbeat.read(tmp_path, 1) is None


def test_only_the_very_process_is_known_again() -> None:
    process = subprocess.Popen(["sleep", "600"])
    mine = identity()
    started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    its = {**mine, "pid": process.pid, "started": started}
    assert is_alive_here(mine)
    assert is_alive_here(its)
    wrong = [{"pid": pid} for pid in (-1, 0, 1, os.getppid(), None, "7")]
    wrong += [
        {"started": "1"},
        {"started": None},
        {"boot": "another"},
        {"host": "another"},
        {"pid_namespace": "pid:[1]"},
    ]
    assert not any(is_alive_here({**its, **change}) for change in wrong)
    process.kill()
    process.wait()
    assert not is_alive_here(its)
