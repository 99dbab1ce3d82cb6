"""The product's own engines on the fake device: built, stepped, counted. The functions that take `overrides`
(key=value) run as one rank of a world (ranks.run).
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_ds.architecture.facts import COLUMNS
from gpt1_ds.config import Config, load, with_vocabulary
from gpt1_ds.launcher.accelerator import choose, with_fitted_micro_batch
from tools.fakecuda.counter import Counter, Counts

if TYPE_CHECKING:
    from gpt1_ds.engine.base import Engine, MicroBatch, StepResult
    from gpt1_ds.objectives.base import Objective

VOCABULARY = 500  # of a configuration that names none


@dataclass(frozen=True)
class Step:
    """What one rank did in a step, and where its parameters and master weights are."""

    counts: Counts
    result: StepResult
    device: str
    devices: tuple[str, ...]
    config: Config
    world: int
    overrides: tuple[str, ...]

    @property
    def data_ranks(self) -> int:
        return self.world // (self.config.parallel.tensor * self.config.parallel.pipeline)

    @property
    def micro_batches(self) -> int:
        return self.config.train.global_batch // (int(self.config.train.micro_batch) * self.data_ranks)

    @property
    def tokens(self) -> int:
        """Returns the tokens of this rank's part of the batch."""
        return self.config.train.global_batch // self.data_ranks * self.config.model.context

    def waits(self) -> list[tuple[str, int]]:
        """Host syncs and copies to the device by place, most frequent first."""
        events = [*self.counts.syncs, *self.counts.copies]
        return Tally(f"{event.what} at {event.place}" for event in events).most_common()


def configuration(overrides: Sequence[str], world: int, presets: Sequence[str] = ()) -> Config:
    """With the micro-batch that the launcher would choose. Nothing is compiled, for it takes time, unless `overrides`
    say so.
    """
    return with_fitted_micro_batch(load(list(presets), ["train.device=cuda", "train.compile=off", *overrides]), world)


def step(overrides: Sequence[str], world: int, presets: Sequence[str] = ()) -> Step:
    """The second step of pre-training: the first makes the optimizer's moments."""
    return _step(overrides, world, presets)


def warm_step(overrides: Sequence[str], world: int, presets: Sequence[str] = ()) -> Step:
    """The first step, with moments as a checkpoint's: half the time of `step`, and the same but in a pipeline."""
    return _step(overrides, world, presets, steps=1)


def filtered_step(overrides: Sequence[str], world: int, rejected: bool) -> Step:
    """`step` with a filter of updates, which lets the second through or rejects it."""
    return _step(overrides, world, rejections=(False, rejected))


def step_with_new_graphs(overrides: Sequence[str], world: int) -> Step:
    """The second step, after one whose micro-batches are captured and compared with their graphs."""
    return _step(overrides, world, proof=True)


def finetuning_step(overrides: Sequence[str], world: int) -> Step:
    """The second step of fine-tuning on two classes, with the auxiliary loss."""
    from gpt1_ds.architecture.head import HeadSpec
    from gpt1_ds.objectives.supervised import Supervised

    return _step(overrides, world, objective=Supervised(HeadSpec(outputs=2, sequences=1)))


def evaluation(overrides: Sequence[str], world: int) -> Counts:
    """Counts an evaluation of as many micro-batches as a step has."""
    from tools.fakecuda.device import fake_mode

    config = configuration(overrides, world)
    with fake_mode():
        engine = build(config)
        return counted(engine, lambda: engine.evaluate(batches(config, engine)))[0]


def sample(overrides: Sequence[str], tokens: int, temperature: float = 0.0) -> tuple[Counts, str]:
    """Writes `tokens` tokens with a model that stands on the GPU, in graphs where it has proved itself. Returns (what
    it took, the model's device).
    """
    from gpt1_ds.data.tokenizers.base import SpecialIds
    from gpt1_ds.engine.process_groups import connect_alone
    from gpt1_ds.evaluation import graphed_steps
    from gpt1_ds.evaluation.decoding import write
    from gpt1_ds.evaluation.sampling import Sampling
    from gpt1_ds.model.build import DenseModel
    from gpt1_ds.model.layers import TensorParallel
    from tools.fakecuda.device import fake_mode
    from tools.fakecuda.graphs import Repeats

    _believe()
    graphed_steps.CudaRecorder = Repeats  # type: ignore[misc, assignment]
    config = configuration(overrides, 1)
    # every token is read as 1 here, so that another one has to be the end
    tokenizer: Any = SimpleNamespace(vocab_size=VOCABULARY, eod_id=0, pad_id=2, special_ids=SpecialIds(eod=0, pad=2))
    with fake_mode(), Counter() as counter:
        model = DenseModel(config, VOCABULARY, TensorParallel(connect_alone())).eval().to("cuda")
        (text,) = write(model, tokenizer, [[3]], Sampling(tokens, temperature), name="fake")
        assert len(text) == tokens, text
        return counter.counts, str(next(model.parameters()).device)


def build(config: Config, objective: Objective | None = None) -> Engine:
    """The engine of this rank, under a fake mode. Weights are not drawn: they have no values."""
    from gpt1_ds.engine.build import build_engine
    from gpt1_ds.engine.process_groups import ProcessGroups, connect
    from tools.fakecuda import compiled

    _believe()
    if config.train.compile == "on":
        compiled.install()
    if config.parallel.zero == 3:
        _trust_the_others()
    connect(config.guard.init_timeout, choose(config))
    config = with_vocabulary(config, VOCABULARY)
    with Counter():  # DeepSpeed asks for values here, too
        engine = build_engine(config, ProcessGroups(config), initialise=False, objective=objective)
    if config.parallel.pipelined:
        _announce_shapes(config, engine)
    return engine


def _believe() -> None:
    """The graph of launches is that of a GPU whose self-proof has passed, unless a test has decided otherwise."""
    from gpt1_ds.model import proof

    if not proof.is_decided():
        proof.decide(True)


def _trust_the_others() -> None:
    """ZeRO 3 compares the order of its modules with rank 0's, by values that are not there: unproven here."""
    from deepspeed.runtime.zero import partitioned_param_coordinator

    partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda *_: None


def _announce_shapes(config: Config, engine: Engine) -> None:
    """The first message between stages tells the shapes that follow, in a tensor whose values are not there: it is
    received as it would be, and the shapes come from the configuration. That DeepSpeed decodes it right is unproven
    here; tests/parallel does that on CPUs.
    """
    import torch
    from deepspeed.runtime.pipe import p2p
    from deepspeed.runtime.pipe.engine import TENSOR_META_SIZE

    train, parallel = config.train, config.parallel
    positions = config.model.context // (parallel.tensor if parallel.sequence else 1)
    precision = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[train.precision]
    rows = int(train.micro_batch)
    shapes = (([positions, rows, config.model.width], precision), ([rows, COLUMNS], torch.int64))

    def receive(stage: int) -> tuple[Any, ...]:
        p2p.recv(torch.empty(TENSOR_META_SIZE, dtype=torch.int32, device=engine.device), stage)
        allocate = engine.deepspeed._allocate_or_extend_buffers
        return tuple(allocate(place, shape, kind) for place, (shape, kind) in enumerate(shapes))

    engine.deepspeed._recv_tensor_meta = receive


def batches(config: Config, engine: Engine) -> list[MicroBatch]:
    """Returns the micro-batches of one step, in the objective's own form; every token is 0."""
    from gpt1_ds.data.loader import Rows
    from gpt1_ds.engine.base import MicroBatch
    from gpt1_ds.engine.build import batch_shape
    from gpt1_ds.model.dropout import row_keys

    found = []
    for rows in batch_shape(config, engine.groups).rows():
        count, length = len(rows), config.model.context
        if engine.objective.head is None:
            batch = engine.objective.batch(Rows(np.zeros((count, length + 1), np.int64), rows))  # type: ignore[attr-defined]
        else:
            tokens_ECT, length_EC = np.zeros((count, 1, length), np.int64), np.full((count, 1), length)
            weights_ECS, targets_EK = np.ones((count, 1, length - 1), np.float32), np.ones((count, 2), np.float32)
            arrays = (tokens_ECT, weights_ECS, length_EC, length_EC, targets_EK, np.ones(count, np.float32))
            batch = engine.objective.batch(*arrays)  # type: ignore[attr-defined]
        found.append(MicroBatch.of(batch, row_keys(config.run.seed, 1, rows)))
    return found


def counted(engine: Engine, action: Callable[[], Any]) -> tuple[Counts, Any]:
    """(what `action` asked of the device, its result)."""
    with Counter() as counter:

        def hears(phase: str) -> None:
            counter.phase = phase

        engine.progress = hears
        result = action()
    return counter.counts, result


def _step(
    overrides: Sequence[str],
    world: int,
    presets: Sequence[str] = (),
    objective: Objective | None = None,
    steps: int = 2,
    rejections: Sequence[bool] = (),
    proof: bool = False,
) -> Step:
    from gpt1_ds.engine import master_weights
    from tools.fakecuda import graphs
    from tools.fakecuda.device import fake_mode

    graphs.install(proof)
    config = configuration(overrides, world, presets)
    with fake_mode():
        engine = build(config, objective)
        if rejections:
            answers = iter(rejections)
            engine.filter_updates(lambda loss, norm: next(answers))
        if steps == 1:
            master_weights.make_moments(engine, 1)
        for _ in range(steps):
            counts, result = counted(engine, lambda: engine.step(batches(config, engine), 1e-4))
        tensors = [*engine.module.parameters(), *(one.master for one in master_weights.fragments(engine))]
        devices = tuple(sorted({str(tensor.device) for tensor in tensors}))
        return Step(counts, result, str(engine.device), devices, config, world, tuple(overrides))
