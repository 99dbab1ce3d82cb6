"""Whole steps of BERT, RoBERTa and T5 in their base shapes: our engine, and transformers' models in bf16 autocast.

Weights, rows and dropout are alike; the first losses, without dropout, show that the work is the same.

Shapes: B rows, S positions of a row or a source, T of a target, M predicted positions, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpt1_ds.architecture.facts import SECOND, UNTIL
from gpt1_ds.config import Config, load
from gpt1_ds.data.loader import BatchShape
from gpt1_ds.data.sources import open_data
from gpt1_ds.engine.base import MicroBatch
from gpt1_ds.engine.build import training_batches
from gpt1_ds.interop.families.registry import family_of_model
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.interop.families.settings import Settings
from gpt1_ds.objectives.pretraining import pretraining_objective
from tools.bench.loop import Loop
from tools.bench.ours import BATCHES, TINY, Ours, give_weights, tokens_per_step
from tools.families import make_data
from tools.gpu.record import Contact
from tools.gpu.training import WARM_UP, evaluated, first_loss, graphs, rows, tell_graphs, timed, with_rows

PRESETS = {"bert": "pretrain/bert_base", "roberta": "pretrain/roberta_base", "t5": "pretrain/t5_base"}
SENTINELS = 100  # of T5's preset
IGNORED = -100  # the label of what transformers does not predict


def configuration(contact: Contact, family: str, rows: int) -> Config:
    """Returns the family's preset on a small text that its objective can read; all rows in one micro-batch."""
    masks, sentinels = family != "t5", SENTINELS * (family == "t5")
    data = make_data(contact.work / f"text-{'masks' if masks else 'sentinels'}", masks, sentinels)
    arguments = [f"data.path={data}", f"train.global_batch={rows}", f"train.micro_batch={rows}", "train.precision=bf16"]
    if contact.tiny:
        arguments += [*TINY, "model.vocab_size=700"]
    return load([PRESETS[family]], [*arguments, *graphs()])


class Text:
    """The first batches of the family's data as its objective makes them, the same for both contenders."""

    def __init__(self, config: Config) -> None:
        data, train = open_data(config), config.train
        objective = pretraining_objective(config, data.tokenizer, data.data_hash, config.run.seed)
        shape = BatchShape(train.global_batch, train.micro_batch)
        self.pad = data.tokenizer.pad_id
        self.batches = [
            training_batches(objective, data.training.batch(number, shape).micro_batches, config.run.seed, number)
            for number in range(1, BATCHES + 1)
        ]
        named = [[_as_theirs(one) for one in batch] for batch in self.batches]
        self.names = tuple(named[0][0])
        self._theirs = [[tuple(one.values()) for one in batch] for batch in named]

    def ours(self, step: int) -> list[MicroBatch]:
        """Returns the micro-batches of a step as our engine takes them."""
        return self.batches[step % BATCHES]

    def theirs(self, step: int) -> list[tuple[Tensor, ...]]:
        """Returns the same as transformers takes them: what `names` names."""
        return self._theirs[step % BATCHES]


def _as_theirs(batch: MicroBatch) -> dict[str, Tensor]:
    """Returns a micro-batch as transformers' models take it."""
    *tokens, facts_BF = batch.inputs
    ids_BS = tokens[0].T.contiguous()
    place_S = torch.arange(ids_BS.shape[1])
    found = {"input_ids": ids_BS, "attention_mask": (place_S < facts_BF[:, UNTIL, None]).long()}
    if len(tokens) == 2:
        target_TB, weights_TB = batch.labels
        labels_BT = torch.where(weights_TB > 0, target_TB, IGNORED).T.contiguous()
        return {**found, "decoder_input_ids": tokens[1].T.contiguous(), "labels": labels_BT}
    at_MB, ids_MB, weights_MB, *pairs = batch.labels
    labels_BS = torch.full_like(ids_BS, IGNORED)
    row_N, column_N = torch.nonzero(weights_MB.T > 0, as_tuple=True)
    labels_BS[row_N, at_MB.T[row_N, column_N]] = ids_MB.T[row_N, column_N]
    if pairs:
        found["token_type_ids"] = (place_S >= facts_BF[:, SECOND, None]).long() * found["attention_mask"]
        found["next_sentence_label"] = pairs[1].argmax(-1)
    return {**found, "labels": labels_BS}


class Transformers(nn.Module):
    """transformers' model of the family for pre-training, with the weights that our engine begins with."""

    def __init__(self, config: Config, pad: int, names: tuple[str, ...]) -> None:
        import transformers

        super().__init__()
        family = family_of_model(Path(config.run.name), config.model)
        settings = {**family.write_config(config.model, pad), "pad_token_id": pad}
        paired = config.objective.next_sentence and family.pairs
        self.names, kind = names, paired or family.language_model
        self.model: Any = getattr(transformers, kind)(getattr(transformers, f"{family.stem}Config")(**settings))
        facts = Facts(config.model.heads, family.first_position(Settings(Path(kind), settings, family.title)))
        missing = {family.short(name) for name in give_weights(self.model, family, config, facts)}
        assert missing <= set(family.copies), missing

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, tensors, strict=True))).loss  # type: ignore[no-any-return]


def ours(contact: Contact, family: str) -> None:
    """Measures our engine, with CUDA graphs."""
    config = configuration(contact, family, rows(contact))
    text = Text(config)
    engine = Ours(config, text, contact.device)
    first = first_loss(engine, text.ours(0))
    facts = {"first_loss": first, "rows": config.train.global_batch}
    ready = partial(tell_graphs, contact, engine)
    timed(contact, "ours", engine.step, tokens_per_step(config), WARM_UP, ready, **facts)


def transformers(contact: Contact, family: str) -> None:
    """Measures transformers' model in the loop that people write around it."""

    def measure(count: int) -> None:
        config = configuration(contact, family, count)
        text = Text(config)
        model = Transformers(config, text.pad, text.names)
        loop = Loop(model, config.optimizer, text.theirs, contact.device)
        facts = {"first_loss": evaluated(model, text.theirs(0), contact.device), "rows": count}
        step = partial(loop.step, autocast=True)
        timed(contact, "transformers", step, tokens_per_step(config), WARM_UP // 2, **facts)

    with_rows(contact, rows(contact), measure)
