"""The task that an item of train.evaluations names for a linear model of the states, and its examples. Never imports
torch: a dry run reads them, too.
"""

from __future__ import annotations

from importlib.util import find_spec

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load
from gpt1_ds.config.evaluations import KEY, EvaluationConfig
from gpt1_ds.config.layers import names_task
from gpt1_ds.tasks.reading import TaskData, read_task


def read_linear(one: EvaluationConfig) -> TaskData:
    """Returns its examples, of train `limit` at most. Raises ConfigError for a file without a task of this kind, and
    where scikit-learn is not installed, DataError for files that are not there.
    """
    where = f"{KEY}: linear={one.linear}"
    if not names_task([one.linear], []):
        raise ConfigError(f"{where} names no task; give a preset like finetune/sst2, or a file with a section task")
    if find_spec("sklearn") is None:
        raise ConfigError(f"{where}: linear models need scikit-learn; pip install 'gpt1-ds[finetune]'")
    arguments = [] if one.limit is None else [f"task.train_examples={one.limit}"]
    task = load([one.linear], ["task.form=frozen", *arguments]).task
    assert task is not None, "the file names one"
    data = read_task(task)
    if task.makes_vectors or data.task.reads_tokens or data.task.writes_text:
        raise ConfigError(f"{where}: a linear model chooses a class or gives a score; {data.task.name} asks for more")
    return data
