"""Several tasks in one: how often each is drawn, which examples, and what is scored."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import TaskConfig, load
from gpt1_ds.config.task import MIXTURE, TABLE, ColumnsConfig, PartConfig
from gpt1_ds.tasks.batches import TrainBatches
from gpt1_ds.tasks.kinds import Generation
from gpt1_ds.tasks.metrics import score_examples
from gpt1_ds.tasks.mixture import epoch_examples, task_draws
from gpt1_ds.tasks.reading import read_task
from gpt1_ds.tasks.sequences import encode_examples
from gpt1_ds.tasks.token_metrics import objects
from tests.helpers.words import WordTokenizer


def settings(
    *sizes: int, limit: int | None = None, temperature: float = 1.0, weights: tuple[float, ...] = ()
) -> TaskConfig:
    parts = [PartConfig(name=f"t{n}", path="x", weight=weights[n] if weights else 1.0) for n in range(len(sizes))]
    return TaskConfig(name=MIXTURE, mixture=parts, mixture_limit=limit, mixture_temperature=temperature)


def groups(*sizes: int) -> list[str]:
    return [f"t{n}" for n, size in enumerate(sizes) for _ in range(size)]


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        ({}, [100, 300]),  # by size
        ({"limit": 200}, [100, 200]),  # K of T5
        ({"temperature": 1e9}, [200, 200]),  # equal
        ({"temperature": 2.0}, [146, 254]),  # 400 x 10 / (10 + 17.32)
        ({"weights": (3.0, 1.0)}, [200, 200]),
    ],
)
def test_rates(keys: dict[str, float], taken: list[int]) -> None:
    config, rows = settings(100, 300, **keys), groups(100, 300)  # type: ignore[arg-type]
    assert [one.taken for one in task_draws(config, rows)] == taken
    assert epoch_examples(config, rows) == sum(taken)
    assert [(one.first, one.count) for one in task_draws(config, rows)] == [(0, 100), (100, 300)]
    assert task_draws(TaskConfig(), rows) == ()
    assert epoch_examples(TaskConfig(), rows) == 400


def test_each_example_comes_as_often_as_the_others() -> None:
    """What an epoch leaves out comes in the next; a task that is drawn more often than it has examples repeats them."""
    small, large = task_draws(settings(10, 90, temperature=1e9), groups(10, 90))
    first = small.numbers(0)
    assert sorted(Counter(first.tolist()).values()) == [5] * 10
    assert set(first) == set(range(10))
    assert [set(first[n : n + 10]) for n in (0, 10)] == [set(range(10))] * 2
    assert not np.array_equal(first[:10], first[10:20]), "in another order"
    both = np.concatenate([large.numbers(0), large.numbers(1)])
    assert set(both[:90]) == set(range(10, 100))
    np.testing.assert_array_equal(large.numbers(1), both[50:])


def test_batches_are_a_pure_function_and_hold_both(tmp_path: Path) -> None:
    data = read_task(section(tmp_path))
    rows = encode_examples(data.task, data.splits["train"], WordTokenizer(), TaskConfig(), 32, 8)
    parts = task_draws(section(tmp_path), rows.groups)
    one, other = (TrainBatches(rows, 4, seed=1, parts=parts) for _ in range(2))
    assert one.per_epoch == 6, "24 examples, half of each task"
    backwards = [other.at(k).examples for k in reversed(range(13))][::-1]
    np.testing.assert_array_equal(np.stack([one.at(k).examples for k in range(13)]), np.stack(backwards))
    drawn = Counter(rows.groups[number] for k in range(6) for number in one.at(k).examples)
    assert drawn == {"say": 12, "nli": 12}


def section(folder: Path) -> TaskConfig:
    (folder / "say").mkdir(exist_ok=True)
    (folder / "nli").mkdir(exist_ok=True)
    for split, count in (("train", 16), ("dev", 2)):
        texts = [{"source": f"a {n}", "target": f"b {n}"} for n in range(count)]
        (folder / "say" / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in texts))
        pairs = [f"{n}\tp {n}\th\t{('entailment', 'not_entailment')[n % 2]}" for n in range(count // 2)]
        (folder / "nli" / f"{split}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *pairs]) + "\n")
    parts = f'{{name: table, kind: generation, title: say, prefix: "tell: ", path: {folder / "say"}}}'
    task = load([], [
        "task.name=mixture", f"task.mixture=[{parts}, {{name: rte, title: nli, path: {folder / 'nli'}, weight: 2}}]",
    ]).task  # fmt: skip
    assert task is not None
    return task


def test_each_task_is_read_as_it_is_alone(tmp_path: Path) -> None:
    data = read_task(section(tmp_path))
    assert isinstance(data.task, Generation)
    first, *_, last = data.splits["train"]
    assert (first.id, first.texts, first.targets, first.group) == ("say/0", ("tell: a 0",), ("b 0",), "say")
    assert last.texts == ("rte sentence1: p 7 sentence2: h",)
    assert (last.targets, last.group) == (("not_entailment",), "nli")
    found = score_examples(data.task, data.splits["dev"], objects(["b 0", "b", "entailment"])).values
    assert found["exact_match"] == pytest.approx(2 / 3)
    assert (found["exact_match_say"], found["exact_match_nli"]) == (0.5, 1.0)
    assert found["bleu_say"] is not None


def test_tables_are_told_apart_by_their_titles_and_prefixes(tmp_path: Path) -> None:
    """The same text is asked two things."""
    parts = []
    for title, prefix, labels in (("sentiment", "", "pn"), ("language", "say the language: ", "ed")):
        (tmp_path / title).mkdir()
        for split in ("train", "dev"):
            rows = [f"good film {n}\t{label}" for n, label in enumerate(labels)]
            (tmp_path / title / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
        columns = ColumnsConfig(text="sentence", label="label")
        part = PartConfig(name=TABLE, title=title, prefix=prefix, path=str(tmp_path / title), columns=columns)
        parts.append(replace(part, kind="classification"))
    first, _, other, _ = read_task(TaskConfig(name=MIXTURE, mixture=parts)).splits["dev"]
    assert (first.texts, first.targets) == (("sentiment sentence: good film 0",), ("p",))
    assert (other.texts, other.targets) == (("say the language: language sentence: good film 0",), ("e",))


RTE = "{name: rte, path: x}"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["task.name=mixture"], "task.mixture belongs to task.name=mixture"),
        (["task.name=cola", "task.path=x", f"task.mixture=[{RTE}]"], "task.mixture belongs to task.name=mixture"),
        (["task.name=mixture", f"task.mixture=[{RTE}, {RTE}]"], "task.mixture: rte is there 2 times"),
        (["task.name=mixture", "task.mixture=[{name: rte}]"], "task.mixture: rte needs a name and a path"),
        (["task.name=mixture", f"task.mixture=[{RTE[:-1]}, weight: 0}}]"], "task.mixture: weight=0.0 of rte must be"),
        (["task.name=mixture", f"task.mixture=[{RTE}]", "task.path=y"], "task.path=y: each task of task.mixture has"),
        (
            ["task.name=mixture", f"task.mixture=[{RTE}]", "task.mixture_temperature=0.5"],
            "task.mixture_temperature=0.5",
        ),
        (["task.name=mixture", "task.mixture=[{nam: x}]"], "command line: task.mixture: there is no key 'nam' here"),
    ],
)
def test_bad_mixtures(words: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([], words)
    assert caught.value.problems[0].startswith(line)


def test_a_task_that_is_not_learned_in_text(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("a\tO\n\nb\tB-x\n")
    (tmp_path / "dev.conll").write_text("a\tO\n\nb\tB-x\n")
    part = PartConfig(name="table", kind="tagging", path=str(tmp_path))
    with pytest.raises(ConfigError, match=r"^task\.mixture: table is of kind tagging, which is not learned in text$"):
        read_task(TaskConfig(name=MIXTURE, mixture=[part]))
