"""What training shows in trackers: what the run is, where it stands at the end, and its checkpoints."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpt1_ds.architecture.count import counts, parameters, training_flops_per_token
from gpt1_ds.checkpoint import manifest
from gpt1_ds.common import log
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import Config, to_yaml
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.tracking.record import Entry, of_own_data, read_entries
from gpt1_ds.tracking.sinks import GONE, Ending, Reference, Sink, TensorBoardSink, TrackioSink, WandbLogger
from gpt1_ds.tracking.wandb import run_id, start, tables
from gpt1_ds.training.provenance import git_revision, provenance
from gpt1_ds.training.state import TrainingState
from gpt1_ds.training.workload import Workload

FAILED = "failed"


def begin(workload: Workload, run_dir: RunDir, groups: ProcessGroups) -> list[Sink]:
    """Returns the sinks of a segment that begins, each with one run of its tracker for all segments of a run. Rank 0
    only.
    """
    config = workload.config
    tracking = config.tracking
    job_type = "pretrain" if config.task is None else "finetune"
    sinks: list[Sink] = []
    try:
        if tracking.wandb != "off":
            sinks.append(WandbLogger(start(config, run_dir, job_type, facts(workload, run_dir, groups.world))))
        if tracking.tensorboard:
            sinks.append(TensorBoardSink(str(run_dir.tensorboard.resolve()), to_yaml(config)))
        if tracking.trackio:
            name = f"{config.run.name} {run_id(run_dir)[:6]}"  # trackio knows runs by their names
            sinks.append(TrackioSink(tracking.project, name, tracking.group, asdict(config)))
    except OSError as error:
        log.say(f"trackers are off for the rest of this run ({error}); metrics.jsonl has everything")
    return sinks


def facts(workload: Workload, run_dir: RunDir, world: int) -> dict[str, Any]:
    """Returns the resolved configuration, the counts derived from it, and which segment this is, by SLURM job."""
    config, model = workload.config, workload.config.model
    vocab_size = model.vocab_size or 0
    sizes = counts(model, vocab_size)
    tokens_per_step = config.train.global_batch * config.row.fed if config.task is None else None
    tokens = tokens_per_step and round(tokens_per_step * workload.batch_sizes.position(workload.steps))
    before = [event.get("job") or "" for event in read_jsonl(run_dir.events) if event.get("event") == "started"]
    return {
        **asdict(config),
        **({"N": sizes["matrices_head"], "D": tokens} if tokens else {}),
        **config.tracking.facts,  # a scaling study counts N in its own convention
        "parameters": sizes["all"],
        "parameters_matrices_head": sizes["matrices_head"],
        "parameters_transformer": sizes["transformer"],
        "parameters_padded": parameters(model, -(-vocab_size // model.vocab_multiple) * model.vocab_multiple),
        "flops_per_token": workload.flops_per_token,
        **({"flops_per_token_causal": training_flops_per_token(config, vocab_size, causal=True)} if tokens else {}),
        "steps": workload.steps,
        "tokens_per_step": tokens_per_step,
        "training_tokens": tokens,
        "training_flops": tokens and tokens * workload.flops_per_token,
        "world": world,
        "data_parallel": world // (config.parallel.tensor * config.parallel.pipeline),
        "segment": len(before) + 1,
        "jobs": [*before, os.environ.get("SLURM_JOB_ID", "")],
        "provenance": {**provenance(), "git": git_revision()},
    }


def close(sinks: Sequence[Sink], config: Config, run_dir: RunDir, state: TrainingState, reason: str) -> None:
    """Sends what is known at the end of a segment, after `reason`: done, user, handover or failed."""
    try:
        entries = read_entries(run_dir.evaluation)
        references = _references(run_dir) if config.tracking.artifacts == "reference" else []
        final = summary(run_dir, state, reason, entries)
        ending = Ending(summary=final, tables=tables(run_dir, entries), references=references, failed=reason == FAILED)
    except Exception as error:  # nothing here may change how the run ends
        log.say(GONE.format("the end of tracking", f"{type(error).__name__}: {error}"))
        ending = Ending(summary={"outcome": reason}, failed=reason == FAILED)
    for sink in sinks:
        sink.close(ending)


def _references(run_dir: RunDir) -> list[Reference]:
    """Returns where the best and the newest checkpoint lie."""
    names: dict[str, list[str]] = {}
    for name, file in (("best", run_dir.best), ("last", run_dir.latest)):
        if file.exists():
            names.setdefault(file.read_text(encoding="utf-8").strip(), []).append(name)
    found = []
    for name, aliases in names.items():
        folder = run_dir.checkpoints / name
        if folder.is_dir():
            known = manifest.read(folder)
            shown = {key: known[key] for key in ("step", "tokens", "hashes")}
            found.append(Reference(f"checkpoint-{run_id(run_dir)}", folder, aliases, shown))
    return found


def summary(run_dir: RunDir, state: TrainingState, reason: str, entries: Sequence[Entry]) -> dict[str, Any]:
    """Returns where the whole run stands, all its segments together: metrics.jsonl, eval.json and the checkpoints
    know.
    """
    found: dict[str, Any] = {"outcome": reason, "final/step": state.step, "final/tokens": state.tokens}
    lines = list(read_jsonl(run_dir.metrics))
    trained, held_out, scored = ([x for x in lines if x["kind"] == kind] for kind in ("train", "eval", "task"))
    if trained:
        found["final/loss"] = trained[-1]["loss"]
    if held_out:
        shown = (key for key in held_out[-1] if key not in ("kind", "step", "tokens"))
        found |= {f"final/held_out_{key}": held_out[-1][key] for key in shown}
        best = min(held_out, key=lambda line: math.inf if line["loss"] is None else line["loss"])
        found |= {"best/held_out_loss": best["loss"], "best/step": best["step"]}
    for line in scored:
        found |= {f"final/{line['task']}/{line['split']}/{name}": score for name, score in line["metrics"].items()}
    if state.best is not None:
        found |= {"best/score": state.best.score, "best/step": state.best.step}
        for entry in (entry for entry in of_own_data(entries) if entry["step"] == state.best.step):
            found |= {f"best/{entry['task']}/{entry['split']}/{name}": x for name, x in entry["metrics"].items()}
    return found
