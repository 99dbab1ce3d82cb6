"""What a run may continue from, and begin with: which keys it may change in its folder; which checkpoint it begins
with, whose model's shape it takes, and what keeps its weights or its state from being taken over. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import pretraining_head
from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint, published_name, refuse_to_start_over, steps_in
from gpt1_ds.checkpoint.verify import verify_sizes
from gpt1_ds.common.errors import CheckpointError, ConfigError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, ModelConfig, load_carried, load_recorded
from gpt1_ds.config.layers import default_name, named
from gpt1_ds.config.model import PROBE_POSITIONS
from gpt1_ds.config.sections import LENGTH_KEYS
from gpt1_ds.config.validate import INHERITED, may_grow
from gpt1_ds.data.tokenizers.registry import encode_alike

MAY_CHANGE = (
    "run.name",
    "run.dir",
    "run.share",
    "parallel.",
    "train.device",
    "train.deterministic",
    "train.micro_batch",
    "train.recompute",
    "train.compile",
    "train.cuda_graphs",
    "train.deepspeed_patches",
    "train.steps",
    "train.tokens",
    "train.epochs",
    "train.log_every",
    "train.eval_every",
    "train.eval_batches",
    "train.evaluations",
    "train.profile",
    "train.watch",
    "checkpoint.",
    "guard.",
    "tracking.",
    "slurm.",
    "data.epochs_limit",
    "data.verify",
    "probes",
)


CONTEXT, DATA, RESUME = "model.context", "data.path", "checkpoint.resume"
ITS_STATE = ("model.", "objective.", "data.", "task.", "optimizer.name")  # what another state comes of
ALIKE = ("adamw", "adam2018", "lamb")  # optimizers that keep the same means: of every gradient and of its square
FEW = 5  # keys that are named one by one


def changes(before: Config, now: Config) -> dict[str, tuple[Any, Any]]:
    """Returns key -> (before, now) of everything that differs."""
    old, new = _flat(asdict(before)), _flat(asdict(now))
    return {key: (old.get(key), new.get(key)) for key in sorted({*old, *new}) if old.get(key) != new.get(key)}


def check(folder: str, changed: dict[str, tuple[Any, Any]], grows: bool = False) -> None:
    """Raises ConfigError naming every changed key that would make it another run; of many, how many they are. With
    `grows` its context may be longer than before.
    """
    wrong = forbidden(changed, grows)
    way_out = "set it back, choose another run.name, or begin anew with checkpoint.resume=never"
    if not any(key.startswith(ITS_STATE) and key != DATA for key in wrong):  # its state is of use
        same = " on the same data, which are elsewhere now," if DATA in wrong else ""
        way_out = f"to continue with it{same} in a new folder: run.name=NEW checkpoint.resume={folder}; or {way_out}"
    if len(wrong) > FEW:  # not the same run with a slip, but another one
        shown = ", ".join(list(wrong)[:FEW])
        raise ConfigError(
            f"{folder} belongs to another configuration: {len(wrong)} keys have other values ({shown}, ...); choose "
            "another run.name, or begin anew with checkpoint.resume=never"
        )
    ConfigError.raise_all(
        f"{folder} belongs to another configuration: {key} was {old!r} and is now {new!r}; {way_out}"
        for key, (old, new) in wrong.items()
    )


def length_note(changed: dict[str, tuple[Any, Any]]) -> str | None:
    """Returns what a run of another length has to know: its schedule is a function of the whole length, so a part that
    is a fraction of it moves, a warm-up that was over as well.
    """
    keys = (f"train.{key}" for key in LENGTH_KEYS)
    shown = [f"{key} {changed[key][0]} -> {changed[key][1]}" for key in keys if key in changed]
    return f"{', '.join(shown)}: rates are now those of a run that had this length from its start" if shown else None


def forbidden(changed: dict[str, tuple[Any, Any]], grows: bool = False) -> dict[str, tuple[Any, Any]]:
    """Returns those of the changed keys that would make it another run; with `grows` a longer context does not."""
    wrong = {key: pair for key, pair in changed.items() if not key.startswith(MAY_CHANGE)}
    if grows and CONTEXT in wrong and wrong[CONTEXT][1] > wrong[CONTEXT][0]:
        del wrong[CONTEXT]
    return wrong


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def named_checkpoint(config: Config) -> tuple[str, str] | None:
    """Returns (key, CKPT) of the checkpoint that a new run begins with; None: it begins with fresh weights."""
    settings = config.checkpoint
    if settings.init_from is not None:
        return "checkpoint.init_from", settings.init_from
    return None if settings.resume in ("auto", "never") else (RESUME, settings.resume)


def model_of(files: Sequence[str], overrides: Sequence[str]) -> Path | None:
    """Returns the configuration that says what the model is, beneath all that the user says: that of the checkpoint
    which the run begins with, or the run's own when that is gone. None for a run with fresh weights. Raises
    CheckpointError.
    """
    source = named(files, overrides, "checkpoint", "init_from")
    resume = named(files, overrides, "checkpoint", "resume") or "auto"
    if source is None and resume in ("auto", "never"):
        return None
    try:
        return find_checkpoint(Path(source or resume), newest=source is None) / "config.yaml"
    except CheckpointError:
        folder = Path(named(files, overrides, "run", "dir") or "runs")
        own = folder / (named(files, overrides, "run", "name") or default_name(files)) / "config.yaml"
        if own.is_file():
            return own
        raise


def newest_readable(run_dir: RunDir) -> Path | None:
    """Returns the checkpoint from which a run in this folder continues, as far as manifests and sizes of files tell;
    None where there is none. Raises CheckpointError when there were some and none is good.
    """
    folder, damaged = newest_whole(run_dir)
    if folder is None and damaged:
        raise CheckpointError(
            f"{run_dir.checkpoints}: no good checkpoint is left: {'; '.join(damaged.values())}; put one back, or "
            "choose another run.name to start over"
        )
    if folder is None:
        refuse_to_start_over(run_dir)
    return folder


def newest_whole(run_dir: RunDir) -> tuple[Path | None, dict[Path, str]]:
    """Returns (the newest checkpoint whose files have their sizes or None, newer ones -> what is wrong with them)"""
    damaged: dict[Path, str] = {}
    for folder in reversed(steps_in(run_dir.checkpoints)):
        try:
            verify_sizes(folder, manifest.read(folder))
            return folder, damaged
        except manifest.NewerFormatError:
            raise
        except CheckpointError as error:
            damaged[folder] = str(error)
    return None, damaged


def first_note(run_dir: RunDir, config: Config) -> str | None:
    """Says that a run which continues from its own checkpoint does not read another one that its configuration now
    names, or which rows a run reads that resumes another one's; None where the configuration names what it named
    before, as in a requeued job, and where its rows are the next ones.
    """
    if (asked := named_checkpoint(config)) is None:
        return None
    (own, _), (key, source) = newest_whole(run_dir), asked
    if own is None:
        return _rows_note(config, source) if key == RESUME and config.task is None else None
    if not run_dir.config.is_file() or asked == named_checkpoint(load_recorded(run_dir.config)):
        return None
    if key == RESUME and Path(source).resolve() in (run_dir.path.resolve(), own.resolve()):
        return None
    return (
        f"{run_dir.path} has checkpoints of its own and continues from {published_name(own)}: {key}={source} "
        "is not read; to begin with it choose another run.name"
    )


def _rows_note(config: Config, source: str) -> str | None:
    """Batch k is a function of its number, the seed and the data, not of what a checkpoint has read before it."""
    folder = find_checkpoint(Path(source), newest=True)
    facts, before = manifest.read(folder), load_carried(folder / "config.yaml")
    step, seed = facts["step"], facts["seed"]
    orders = [_order(seed, before), _order(config.run.seed, config)]
    changed = [f"{key} {old} -> {new}" for key, old in orders[0].items() if old != (new := orders[1][key])]
    if changed:
        return (
            f"{RESUME}={source}: {', '.join(changed)}: the rows come in another order than that in which it has read "
            f"{before.batch_sizes.before(step + 1)} of them by step {step}; some are read again, others later"
        )
    read, begins = (one.batch_sizes.before(step + 1) for one in (before, config))
    if read == begins:
        return None
    what = f"{begins - read} rows are skipped" if begins > read else f"{read - begins} rows are read again"
    return (
        f"{RESUME}={source}: it had read {read} rows of text by step {step}, this run's batches begin at row {begins}: "
        f"{what}"
    )


def _order(seed: int, config: Config) -> dict[str, Any]:
    """Returns what the order of rows depends on besides the text, by key."""
    data, whole = config.data, sum(one.weight for one in config.data.path)
    weights = [round(one.weight / whole, 9) for one in data.path]
    keys = {f"data.{key}": getattr(data, key) for key in ("text", "unique_tokens", "offsets")}
    keys |= {"objective.copies": config.objective.copies, "tokens of text in a row": config.row.text}
    return {"run.seed": seed, CONTEXT: config.model.context, "fractions of data.path": weights, **keys}


def check_data(config: Config, folder: Path, facts: dict[str, Any], here: str) -> None:
    """Raises ConfigError where a run cannot continue from the state in `folder`, which was trained on other data."""
    if facts["hashes"]["data"] != here:
        key = DATA if config.task is None else "task.path"
        raise ConfigError(f"{folder}: was trained on other data than {key} now has; set {key} back")


def check_tokenizer(config: Config, folder: Path, facts: dict[str, Any], here: str, tokenizer: Path) -> None:
    """Raises ConfigError where the weights in `folder` have learned other tokens than the data of this run have."""
    if facts["hashes"]["tokenizer"] != here and not encode_alike(folder / "tokenizer", tokenizer):
        raise ConfigError(
            f"{folder}: was trained with another tokenizer than that of data.path={config.data.path[0].path}, so its "
            f"ids mean other pieces; build the data with the checkpoint's: gpt1-ds data build --tokenizer "
            f"{folder / 'tokenizer'}"
        )


def check_moments(config: Config, folder: Path, facts: dict[str, Any]) -> None:
    """Raises ConfigError where the optimizer keeps other means of the gradients than that of the state in `folder`,
    which is resumed. A state before the first update has none.
    """
    now, before = config.optimizer.name, load_carried(folder / "config.yaml").optimizer.name
    is_alike = now == before or (now in ALIKE and before in ALIKE)
    if not is_alike and facts["updates"] > 0:
        raise ConfigError(
            f"optimizer.name={now}: {RESUME}={config.checkpoint.resume} has the means of gradients that "
            f"optimizer.name={before} keeps, which are others; set it back, or take the weights alone: "
            f"checkpoint.init_from={config.checkpoint.resume}"
        )


def check_steps_left(config: Config, folder: Path, facts: dict[str, Any], steps: int) -> None:
    """Raises ConfigError where a checkpoint that a run resumes leaves nothing to train."""
    if facts["step"] >= steps:
        raise ConfigError(
            f"checkpoint.resume={config.checkpoint.resume}: {folder.name} has {facts['step']} of {steps} steps: "
            "nothing is left to train; ask for more steps, or resume an earlier checkpoint"
        )


def check_model(config: Config, folder: Path, facts: dict[str, Any]) -> None:
    """Raises ConfigError where the weights in `folder` are not those of this pre-training run's model."""
    model, theirs = config.model, load_carried(folder / "config.yaml").model
    if differing := [key for key in _differing(model, theirs) if key != "context" or not may_grow(config, theirs)]:
        here = ", ".join(f"model.{one}={getattr(model, one)}" for one in differing)
        there = ", ".join(str(getattr(theirs, one)) for one in differing)
        way_out = "leave these keys out"
        if differing == ["context"] and model.context > theirs.context:
            way_out = "leave this key out, or let positions grow with checkpoint.positions=draw"
        raise ConfigError(f"{folder}: has a model of another shape than {here} (there {there}); {way_out}")
    probed, tensor = min(theirs.context, PROBE_POSITIONS), config.parallel.tensor
    if config.parallel.sequence and probed % tensor:
        raise ConfigError(
            f"parallel.sequence=true cuts the {probed} positions of {folder}'s probe over parallel.tensor={tensor} "
            "ranks; use a divisor, or parallel.sequence=false"
        )
    assert model.vocab_size is not None, "the configuration is resolved"
    wanted = architecture(model, model.vocab_size, pretraining_head(config)).shapes.keys()
    missing, more = sorted(wanted - facts["parameters"].keys()), sorted(facts["parameters"].keys() - wanted)
    if missing or more:
        what = f"lacks {missing[0]}" if missing else f"has {more[0]}, which is not in this run's model"
        raise ConfigError(f"{folder}: {what}: it was trained with another objective; start from one of this objective")


def _differing(model: ModelConfig, theirs: ModelConfig) -> Iterator[str]:
    """Yields keys of the shape that are not alike. A width that is named may be what one that is left out stands
    for.
    """
    for key in ("layers", *INHERITED, "vocab_size"):
        spellings = (key, {"ffn": "ffn_width", "head_width": "head_dim"}.get(key, key))
        if all(getattr(model, one) != getattr(theirs, one) for one in spellings):
            yield key
