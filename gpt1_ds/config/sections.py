"""The configuration: one frozen dataclass per section. Those of a model, an objective, a layout, a task and a job have
files of their own; the others are here, a line per key."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpt1_ds.common.remote import without_secrets
from gpt1_ds.config.batch_sizes import BatchSizes
from gpt1_ds.config.evaluations import EvaluationConfig, evaluation_problems
from gpt1_ds.config.model import ModelConfig
from gpt1_ds.config.objective import ObjectiveConfig, RowLengths
from gpt1_ds.config.parallel import ParallelConfig
from gpt1_ds.config.slurm import SlurmConfig
from gpt1_ds.config.task import ProbeConfig, TaskConfig

_NAME = "letters, digits, '.', '_', '-' and '/' only, no '..'"
EMBEDDED = "python-docs"  # the corpus inside every Python: its documentation
LARGEST_BATCH = 1 << 20  # sequences
RowText = Literal["windows", "full_sentences", "document_sentences", "pairs", "sentence_pairs"]
PAIRS = ("pairs", "sentence_pairs")  # texts of a row, of which the second follows the first, or does not
Watched = Literal["off", "norms", "all"]
Patches = Literal["fast", "fixes", "none"]
NewPositions = Literal["refuse", "draw", "repeat"]
AUTO = 0  # of micro_batch
LENGTH_KEYS = ("steps", "tokens", "epochs")  # exclude one another
NEWTON_SCHULZ_STEPS = 5  # of Muon
WARMUP_KEYS = ("warmup_steps", "warmup_fraction")  # exclude one another
FEWEST_STEPS = 20  # before anything is judged
LONGEST = 1e8  # seconds: three years


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Names a run and the folder that it lives in."""

    name: str = ""  # the run folder is <dir>/<name>; empty: the last config file's stem, else "run"
    dir: str = "runs"  # folder that holds the runs
    seed: int = 1  # of weights, dropout and data order; any integer from 0 to 2**63-1
    share: Literal["private", "group"] = "private"  # who may read the run folder: its owner, or the group too

    def problems(self) -> Iterator[str]:
        if not 0 <= self.seed < 2**63:
            yield f"run.seed={self.seed} is out of range; choose 0 to 2**63-1"
        parts = self.name.split("/")
        legal = all(character.isalnum() or character in "._-/" for character in self.name)
        if self.name and (not legal or any(part in ("", ".", "..") for part in parts)):
            yield f"run.name={self.name!r} cannot name a folder; use {_NAME}"


@dataclass(frozen=True, kw_only=True)
class DataSource:
    path: str  # a folder that `gpt1-ds data build` made
    weight: float = 1.0  # fraction of the sequences, relative to the other sources


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Chooses what is read, and how often."""

    path: list[DataSource] = field(default_factory=lambda: [DataSource(path=EMBEDDED)])  # a folder, or {path, weight}s
    text: RowText = "windows"  # of a row: tokens; whole sentences, also of one document alone; two texts or sentences
    documents: Literal["joined", "masked"] = "joined"  # masked: tokens see their own one alone, its positions from 0 on
    unique_tokens: int | None = None  # train on this many distinct tokens only (per source); null: all
    offsets: Literal["fixed", "epoch"] = "fixed"  # windows begin at the same tokens in every pass; or elsewhere in each
    verify: bool = True  # compare the hash of every shard before it is read, on every host's disk
    epochs_limit: float | None = None  # refuse to pass over the data more often than this; null: no limit

    @property
    def apart(self) -> bool:
        """Returns whether rows hold several documents that do not see one another; the other texts have one, or a
        pair.
        """
        return self.documents == "masked" and self.text in ("windows", "full_sentences")

    def problems(self) -> Iterator[str]:
        if not self.path:
            yield "data.path is empty; name a folder made by `gpt1-ds data build`"
        whole = sum(source.weight for source in self.path)
        for source in self.path:
            if "://" in source.path:
                address = without_secrets(source.path)
                yield (
                    f"data.path={address} is an address; name a folder: `gpt1-ds data build --input ADDRESS` makes one"
                )
            which = f"data.path: weight={source.weight} of {source.path}"
            if not 0 < source.weight < math.inf:
                yield f"{which} must be a finite number above 0; or leave the source out"
            elif source.weight < 1e-6 * whole:  # the order of a run rounds weights to about this (data/windows.py)
                yield f"{which} is less than a millionth of all weights: a run may never read it; leave the source out"
        if self.unique_tokens is not None and self.unique_tokens < 1:
            yield f"data.unique_tokens={self.unique_tokens} must be at least 1; leave it out to use all"
        if self.unique_tokens is not None and self.offsets == "epoch":
            yield "data.unique_tokens takes whole windows, data.offsets=epoch cuts others in each pass; leave one out"
        if self.text != "windows" and self.offsets == "epoch":
            yield f"data.offsets=epoch moves windows; data.text={self.text} has whole sentences: leave data.offsets out"
        if self.text in PAIRS and self.unique_tokens is not None:
            yield (
                f"data.unique_tokens cannot cap data.text={self.text}, which differ in each pass; build a smaller "
                "dataset"
            )
        if self.epochs_limit is not None and not self.epochs_limit > 0:
            yield f"data.epochs_limit={self.epochs_limit} must be above 0; leave it out for no limit"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Says how long a run is, how much it computes at once, and how precisely."""

    steps: int | None = None  # optimizer steps; of steps, tokens and epochs the last one named counts
    tokens: int | None = None  # training tokens, rounded up to whole steps
    epochs: float | None = None  # passes over the data, rounded up to whole steps; nothing named: 1 epoch
    global_batch: int = 16  # sequences per optimizer step, over all ranks
    batch_warmup: int | None = None  # sequences of the first step; later ones have multiples of it, up to global_batch
    batch_warmup_tokens: int | None = None  # training tokens over which the batch grows linearly to global_batch
    micro_batch: int = 8  # sequences per forward pass of one rank; auto (or 0): as many as fit into its memory
    device: Literal["auto", "cuda", "cpu"] = "auto"  # auto: a GPU where there is one; a job that has GPUs must use them
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"  # of the forward and backward pass; masters are always fp32
    compile: Literal["auto", "on", "off"] = "auto"  # torch.compile of blocks; auto: on a GPU, but no deterministic task
    cuda_graphs: Literal["auto", "on", "off"] = "auto"  # a micro-batch as one launch; auto: once `doctor --gpu` passed
    deepspeed_patches: Patches = "fast"  # replaced parts: all; what right numbers need; none
    deterministic: bool = False  # on GPUs: kernels and NCCL sums that repeat to the bit, at some cost; CPUs always do
    recompute: Literal["none", "block"] = "none"  # block: keep only block inputs, run each block twice, save memory
    label_smoothing: float = 0.0  # fraction of each token's target spread over the vocabulary; never in evaluations
    log_every: int = 10  # steps between lines in metrics.jsonl
    watch: Watched = "off"  # at logged steps: norms by kind of layer; all: more (guide pretraining)
    eval_every: int = 100  # steps between held-out evaluations; 0: only at the end
    eval_batches: int = 8  # batches of global_batch held-out sequences per evaluation, a fixed sample; 0: all of them
    evaluations: list[EvaluationConfig] = field(default_factory=list)  # probes and tasks asked while it trains
    profile: str | None = None  # START:STOP: a trace and a summary of steps START to STOP - 1 in <run>/profile/

    @property
    def profiled(self) -> range:
        """Returns the steps to profile, numbered from 1; what comes after the last step of the run does not come."""
        start, _, stop = (self.profile or "0:0").partition(":")
        return range(int(start), int(stop))

    @property
    def smallest_batch(self) -> int:
        """Returns the number of sequences of the first step; those of every other step are a multiple of them."""
        return self.batch_warmup or self.global_batch

    def batch_sizes(self, row: int) -> BatchSizes:
        """Returns the number of sequences of every step, whose rows have `row` tokens."""
        if self.batch_warmup is None or self.batch_warmup_tokens is None or self.batch_warmup == self.global_batch:
            return BatchSizes.constant(self.global_batch)
        return BatchSizes.growing(self.batch_warmup, self.global_batch, self.batch_warmup_tokens, row)

    def all_steps(self, row: RowLengths, epoch: int) -> int:
        """Returns the number of steps of a whole run. `tokens` are those that the model is fed with, an epoch is
        `epoch` tokens of text.
        """
        sizes = self.batch_sizes(row.fed)
        if self.steps is not None:
            return self.steps
        if self.tokens is not None:
            return sizes.steps(self.tokens / (self.global_batch * row.fed))
        return sizes.steps((1.0 if self.epochs is None else self.epochs) * epoch / (self.global_batch * row.text))

    def problems(self) -> Iterator[str]:
        if self.cuda_graphs == "on" and self.deepspeed_patches != "fast":
            yield (
                f"train.cuda_graphs=on needs train.deepspeed_patches=fast, not {self.deepspeed_patches}; leave one of "
                "the two out"
            )
        for key in ("global_batch", "log_every"):
            if getattr(self, key) < 1:
                yield f"train.{key}={getattr(self, key)} is too small; it must be at least 1"
        if self.global_batch > LARGEST_BATCH:
            yield f"train.global_batch={self.global_batch} is too large; use at most {LARGEST_BATCH}"
        for key in ("micro_batch", "eval_every", "eval_batches"):
            if getattr(self, key) < 0:
                yield f"train.{key}={getattr(self, key)} is negative; use 0 or more"
        for key in LENGTH_KEYS:
            value = getattr(self, key)
            if value is not None and not value > 0:
                yield f"train.{key}={value} must be above 0"
        if self.micro_batch > 0 and self.global_batch <= LARGEST_BATCH and self.global_batch % self.micro_batch:
            candidates = range(1, min(self.global_batch, self.micro_batch) + 1)
            fits = max((n for n in candidates if self.global_batch % n == 0), default=1)
            yield (
                f"train.global_batch={self.global_batch} is not a multiple of train.micro_batch={self.micro_batch}; "
                f"use train.global_batch={-(-self.global_batch // self.micro_batch) * self.micro_batch}, or "
                f"train.micro_batch={fits}"
            )
        yield from self._warmup_problems()
        yield from evaluation_problems(self.evaluations)
        if not 0 <= self.label_smoothing < 1:
            yield f"train.label_smoothing={self.label_smoothing} must be in [0, 1); use 0 for none, or 0.1"
        if self.profile is not None and not re.fullmatch(r"[0-9]{1,15}:[0-9]{1,15}", self.profile):
            yield f"train.profile={self.profile} is not START:STOP; write 20:25 for steps 20 to 24"
        elif self.profile is not None and not (self.profiled.start and len(self.profiled)):
            yield f"train.profile={self.profile} names no step; write START:STOP with 1 <= START < STOP"

    def _warmup_problems(self) -> Iterator[str]:
        """Yields what keeps the batch from growing in equal parts."""
        first, tokens, micro = self.batch_warmup, self.batch_warmup_tokens, self.micro_batch
        if (first is None) != (tokens is None):
            named, missing = ("batch_warmup", "batch_warmup_tokens")[:: 1 if tokens is None else -1]
            yield f"train.{named}={getattr(self, named)} needs train.{missing}; give both, or leave both out"
        if tokens is not None and tokens < 1:
            yield f"train.batch_warmup_tokens={tokens} must be at least 1; leave it out for full batches from the start"
        if first is None:
            return
        if first < 1 or self.global_batch % first:
            yield (
                f"train.batch_warmup={first} does not divide train.global_batch={self.global_batch}: the batch grows "
                "by as many sequences at a time; use a divisor"
            )
        elif micro > 0 and first % micro:
            yield f"train.batch_warmup={first} is not a multiple of train.micro_batch={micro}; use one that is"


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Chooses the update rule."""

    name: Literal["adamw", "adam2018", "muon", "lamb", "adafactor"] = "adamw"  # adam2018: GPT-1's published code
    lr: float = 1e-3  # the schedule's highest learning rate
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])  # decay of the first and second moment
    momentum: float = 0.95  # muon: decay of the mean gradient of blocks' matrices; the rest has AdamW's two
    parameter_scale: bool = True  # adafactor: a weight's rate is lr times its root mean square, of at least 1e-3
    eps: float = 1e-8  # added to the root of the second moment; adafactor has its own
    weight_decay: float = 0.01  # decoupled; on matrices and embeddings, never on biases and gains
    layer_decay: float = 1.0  # a block's learning rate as a fraction of that above it; the head has lr; 1: all have it
    clip: float = 1.0  # largest global gradient norm; 0: no clipping

    def problems(self) -> Iterator[str]:
        if not self.lr > 0:
            yield f"optimizer.lr={self.lr} must be above 0"
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            yield f"optimizer.betas={self.betas} must be two numbers from 0 up to, not including, 1, like [0.9,0.999]"
        if not 0 <= self.momentum < 1:
            yield f"optimizer.momentum={self.momentum} must be from 0 up to, not including, 1, like 0.95"
        if not 0 < self.layer_decay <= 1:
            yield f"optimizer.layer_decay={self.layer_decay} must be above 0, and at most 1; use 1 for none, or 0.8"
        if not self.eps > 0:
            yield f"optimizer.eps={self.eps} must be above 0"
        for key in ("weight_decay", "clip"):
            if getattr(self, key) < 0:
                yield f"optimizer.{key}={getattr(self, key)} is negative; use 0 to switch it off"


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Gives the learning rate as a function of the step."""

    kind: Literal["cosine", "linear", "wsd", "constant", "rsqrt"] = "cosine"  # after the warm-up; rsqrt: 1 / sqrt(step)
    warmup_steps: int | None = None  # optimizer steps of linear warm-up from 0
    warmup_fraction: float | None = None  # warm-up as a fraction of the run; nothing named: 0.02
    decay_fraction: float = 0.2  # wsd: fraction of the run, at its end, in which the rate falls linearly
    final_fraction: float = 0.0  # where the rate ends, one step after the last, as a fraction of optimizer.lr

    def problems(self) -> Iterator[str]:
        if self.warmup_steps is not None and self.warmup_steps < 0:
            yield f"schedule.warmup_steps={self.warmup_steps} is negative; use 0 for no warm-up"
        for key in ("warmup_fraction", "decay_fraction", "final_fraction"):
            value = getattr(self, key)
            if value is not None and not 0 <= value <= 1:
                yield f"schedule.{key}={value} must be in [0, 1]"
        if self.kind == "wsd" and (self.warmup_fraction or 0.0) + self.decay_fraction > 1:
            yield (
                f"schedule.warmup_fraction={self.warmup_fraction} and schedule.decay_fraction={self.decay_fraction} "
                "are more than the whole run: it would fall while it rises; make one smaller"
            )


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Says what a run does when something is wrong."""

    on_spike: Literal["raise", "skip", "rollback"] = "raise"  # end the run; leave the update out; go back and pass over
    z: float = 0.0  # robust standard deviations of loss or gradient norm that are a spike; 0: only what is not finite
    window: int = 128  # last good steps that say what is usual
    rise: float = 0.0  # nats of held-out loss above its best, or above ln(vocabulary), that end it; 0: only not finite
    compare_every: int = 100  # steps between comparisons of what ranks hold in common; 0: only before every save
    step_timeout: float = 600.0  # seconds a rank may go without progress in a step before the run ends
    save_timeout: float = 600.0  # the same while a checkpoint is saved
    init_timeout: float = 600.0  # seconds all ranks have to meet, load and compile, up to their first step's end
    lock_timeout: float = 60.0  # seconds to wait for another process that writes the run folder, or for its lock file

    def problems(self) -> Iterator[str]:
        if self.z < 0:
            yield f"guard.z={self.z} is negative; use 0 for none, or 6 to 10"
        if self.rise < 0:
            yield f"guard.rise={self.rise} is negative; use 0 for none, or 0.5 to 2 nats"
        if self.compare_every < 0:
            yield f"guard.compare_every={self.compare_every} is negative; use 0 to compare only before every save"
        if self.window < FEWEST_STEPS:
            yield f"guard.window={self.window} is too short to say what is usual; use at least {FEWEST_STEPS}"
        for key in ("step_timeout", "save_timeout", "init_timeout", "lock_timeout"):
            if not 0 < getattr(self, key) <= LONGEST:
                yield f"guard.{key}={getattr(self, key)} must be above 0 seconds, and at most {LONGEST:g}"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Says when the state is saved, how much of it is kept, and where a run begins."""

    every: int = 100  # optimizer steps between saves; 0: only at the end and on request
    keep: int = 3  # newest checkpoints kept; none is deleted before a newer one was read back
    keep_every: int = 0  # also keep every checkpoint whose step is a multiple of this; 0: none
    best: str | None = None  # also keep that with the best eval.loss, blimp.accuracy, ... (NAME.METRIC); null: none
    background: Literal["auto", "on", "off"] = "auto"  # write a copy while training continues; auto: if memory allows
    resume: str = "auto"  # auto: from the newest good one; never: begin anew, what is there is moved aside; or a PATH
    init_from: str | None = None  # begin with the weights of this checkpoint, a fresh optimizer and step 0
    mirror: str | None = None  # also copy the run there in the background: s3://BUCKET/FOLDER, or what fsspec knows
    positions: NewPositions = "refuse"  # of a model.context above the checkpoint's: drawn, or the learned ones repeated

    @property
    def grows_at_resume(self) -> bool:
        """Returns whether a run that continues may have a longer context than its checkpoint."""
        return self.positions != "refuse" and self.init_from is None

    def problems(self) -> Iterator[str]:
        if self.every < 0:
            yield f"checkpoint.every={self.every} is negative; use 0 to save only at the end"
        if self.keep < 1:
            yield f"checkpoint.keep={self.keep} is too small; at least the newest checkpoint is kept: use 1"
        if self.keep_every < 0:
            yield f"checkpoint.keep_every={self.keep_every} is negative; use 0 for none"
        if self.mirror is not None and "://" not in self.mirror:
            yield f"checkpoint.mirror={self.mirror!r:.80} is no address; write s3://BUCKET/FOLDER, or file:///FOLDER"
        if self.init_from is not None and self.resume not in ("auto", "never"):
            yield "checkpoint.init_from and checkpoint.resume=PATH both say where to begin; keep one"


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Says where metrics are copied to; metrics.jsonl in the run folder is always the truth."""

    wandb: Literal["off", "offline", "online"] = "off"  # offline: written to the run folder, uploaded later
    tensorboard: bool = False  # event files in <run>/tensorboard, for `tensorboard --logdir`
    trackio: bool = False  # a run in trackio's own database, for `trackio show`; its variables (TRACKIO_DIR) count
    entity: str | None = None  # W&B user or team; null: WANDB_ENTITY, else your own
    project: str = "gpt1-ds"  # W&B and trackio project
    group: str | None = None  # W&B and trackio group, a study's name for example; null: none
    tags: list[str] = field(default_factory=list)  # W&B tags
    facts: dict[str, Any] = field(default_factory=dict)  # shown beside the configuration in W&B: a study's arm, N and D
    artifacts: Literal["reference", "off"] = "reference"  # tell W&B where the best and last checkpoint lie; no upload

    def problems(self) -> Iterator[str]:
        if (self.wandb != "off" or self.trackio) and not self.project:
            yield "tracking.project is empty; name a project, or set tracking.wandb=off and tracking.trackio=false"


@dataclass(frozen=True, kw_only=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    task: TaskConfig | None = None  # fine-tuning only
    probes: list[ProbeConfig] = field(default_factory=list)  # evaluate only

    @property
    def row(self) -> RowLengths:
        """Returns the lengths of a row of pre-training."""
        return self.objective.lengths(self.model)

    @property
    def batch_sizes(self) -> BatchSizes:
        """Returns the number of sequences of every step of pre-training."""
        return self.train.batch_sizes(self.row.fed)


def with_vocabulary(config: Config, vocab_size: int) -> Config:
    """Returns `config` with `model.vocab_size` filled in from the tokenizer, as it is saved."""
    if config.model.vocab_size is not None:
        return config
    return replace(config, model=replace(config.model, vocab_size=vocab_size))
