"""The held-out loss of masked text on one rank of a layout, and the same computed plainly, without engine or loss."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

OTHERS = 2  # draws of masks besides the one of every evaluation


def measure(overrides: list[str], plainly: bool) -> dict[str, Any]:
    """Runs on every rank: the record as a dictionary, the deviation among masks; with `plainly` also `plain` ones."""
    import torch.distributed as dist

    from gpt1_ds.config import load, with_vocabulary
    from gpt1_ds.data.sources import open_data
    from gpt1_ds.engine.build import batch_shape, build_engine
    from gpt1_ds.engine.process_groups import ProcessGroups, connect
    from gpt1_ds.evaluation.held_out import held_out_loss
    from gpt1_ds.evaluation.measures import mask_deviation
    from gpt1_ds.objectives.pretraining import pretraining_objective
    from tests.helpers.engines import fill
    from tests.helpers.foreign import random_weights

    torch.set_num_threads(1)
    config = load([], overrides)
    connect(120)
    groups, data = ProcessGroups(config), open_data(config)
    config = with_vocabulary(config, data.tokenizer.vocab_size)
    draws = [pretraining_objective(config, data.tokenizer, data.data_hash, seed) for seed in range(1 + OTHERS)]
    engine = build_engine(config, groups, initialise=False, objective=draws[0])
    weights = random_weights(config.model, data.tokenizer.vocab_size, head=draws[0].head)
    counts = np.bincount(data.held_out.stream.read(0, data.held_out.stream.tokens))
    weights["masked.bias"][torch.from_numpy(np.argsort(-counts)[:8].copy())] += 6  # so that some are right
    fill(engine, {name: value.numpy() for name, value in weights.items()})
    shape = batch_shape(config, groups)
    found, later = (asdict(held_out_loss(engine, data, draws[0], shape, step, tokens=70, limit=0)) for step in (7, 9))
    assert later == {**found, "step": 9}, "masks do not depend on the step"
    found["mask_deviation"] = mask_deviation(engine, data, draws, shape, limit=2)
    if plainly:
        found["plain"] = _plain(engine.module, list(data.held_out.batches(shape)), draws[0])
    dist.destroy_process_group()
    return found


@torch.no_grad()
def _plain(model: Any, batches: list[Any], objective: Any) -> dict[str, float]:
    """Row by row, by the logits of the whole row."""
    nats, hits, pair_nats, pair_hits = [], [], [], []
    for part in (part for batch in batches for part in batch):
        host = objective.batch(part)
        at_MB, ids_MB, weights_MB = host.labels[:3]
        for row in np.flatnonzero(part.row_B >= 0):
            length, second = (int(span[row]) for span in host.spans)
            tokens_S1 = torch.from_numpy(host.inputs[0][:length, row : row + 1].copy())
            facts_13 = torch.tensor([[0, length, second]])
            chances_SV = model.logits(tokens_S1, facts_13)[:, 0].double().log_softmax(-1)
            for place, token in zip(at_MB[:, row], ids_MB[:, row], strict=True):
                if weights_MB[list(at_MB[:, row]).index(place), row] > 0:
                    nats.append(-float(chances_SV[place, token]))
                    hits.append(int(chances_SV[place].argmax()) == token)
            if objective.head is not None:
                found = model.heads["task_head"](model.states(tokens_S1, facts_BF=facts_13))
                scores = found.scores[0, 0].double().log_softmax(-1)
                pair_nats.append(-float(scores[part.follows_B[row]]))
                pair_hits.append(int(scores.argmax()) == part.follows_B[row])
    found = {"loss": np.mean(nats), "masked_accuracy": np.mean(hits)}
    if pair_nats:
        found |= {"pair_loss": np.mean(pair_nats), "pair_accuracy": np.mean(pair_hits)}
    return {name: float(value) for name, value in found.items()}
