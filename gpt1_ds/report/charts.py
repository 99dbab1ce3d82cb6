"""The charts of a run's page: which column of metrics.jsonl each draws, its title and its caption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpt1_ds.report.runs import RunStory


@dataclass(frozen=True)
class Chart:
    """One chart of the page; `key` is the column of metrics.jsonl that it draws, or the beginning of several: a
    curve for each kind of layer, position or source.
    """

    key: str
    title: str
    caption: str
    noisy: bool = True  # whether smoothing is for it
    log: bool = False  # whether heights are logarithmic at first
    name: str = ""  # of its file and its element of the page; empty: the key

    def columns(self, story: RunStory) -> list[str]:
        """Returns the columns of logged steps that it draws."""
        return [key for key in story.columns if key == self.key or key.startswith(f"{self.key}/")]


CHARTS = (
    Chart(
        "loss",
        "Loss, nats per token",
        "Loss of each logged training batch (with dropout, if there is any).",
    ),
    Chart("task_loss", "Loss of the task", "Mean over the examples of the training batch, with dropout."),
    Chart(
        "language_loss",
        "Loss of the language model beside the task, nats per token",
        "Of the same batch, before task.lm_coefficient.",
    ),
    Chart(
        "accuracy",
        "Accuracy on the training batch",
        "Fraction of its examples that are right, with dropout; above the score of dev they are learned by heart.",
    ),
    Chart("learning_rate", "Learning rate", "Learning rate of each logged step.", noisy=False),
    Chart("grad_norm", "Gradient norm", "Global gradient norm before clipping.", name="gradient_norm"),
    Chart(
        "tokens_per_second",
        "Throughput, tokens per second",
        "All ranks together, in the interval before each logged step, without evaluations and saves.",
        name="throughput",
    ),
    Chart("mfu", "MFU", "Model FLOPs as a fraction of the device's peak."),
    Chart(
        "data_wait_seconds",
        "Waiting for data, seconds per step",
        "How long a step waits for its batch, mean of the interval before each logged step.",
        name="waiting",
    ),
    Chart("peak_memory_gib", "Peak memory, GiB", "The largest of all ranks.", noisy=False, name="memory"),
    Chart(
        "clipped",
        "Clipped steps",
        "Fraction of the steps since the last logged one whose gradient was longer than optimizer.clip.",
    ),
    Chart("loss_scale", "Loss scale", "fp16 only.", noisy=False),
    Chart(
        "gradient_norms",
        "Gradient norm by kind of layer",
        "Norms of the gradients of all layers of a kind together, before clipping (train.watch).",
        log=True,
    ),
    Chart(
        "weight_norms",
        "Weight norm by kind of layer",
        "Norms of the fp32 weights after each logged step.",
        noisy=False,
        log=True,
    ),
    Chart(
        "update_norms",
        "Update norm by kind of layer",
        "Norms of what a logged step changed of the weights.",
        log=True,
    ),
    Chart(
        "noise_scale",
        "Gradient noise scale, sequences",
        "The batch at which noise and gradient are equal: far below it a larger batch saves steps, far above it hardly "
        "(McCandlish et al. 2018; the ratio of means over the last logged steps).",
        log=True,
    ),
    Chart(
        "largest_activations",
        "Largest activation by kind of output",
        "Largest absolute value of all outputs of a kind in a logged step.",
        log=True,
    ),
    Chart(
        "loss_by_position",
        "Loss by position, nats per token",
        "Loss of the training batch at positions of a row.",
    ),
    Chart(
        "loss_by_source",
        "Loss by source, nats per token",
        "Loss of the rows of each dataset of data.path.",
    ),
)

CONTROL = ", control"  # after a probe's name
SCORES: dict[str, tuple[str, list[dict[str, Any]]]] = {  # chart -> title, marks
    "zero_shot": ("Zero-shot probes: 0 is chance, 1 the best", [{"label": "chance", "value": 0.0}]),
    "task": ("Scores of the task", []),
}
