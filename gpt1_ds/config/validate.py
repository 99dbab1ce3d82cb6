"""What no single section can see: combinations that would fail late, or run and be wrong; and what looks like a secret.

A configuration is copied into run folders, checkpoints, job scripts and trackers, so that nothing secret may be in it;
a job reads secrets from a file of its user (`. ~/my-secrets.sh`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from gpt1_ds.config import task
from gpt1_ds.config.evaluations import KEY, best_problems
from gpt1_ds.config.model import PROBE_POSITIONS, ModelConfig
from gpt1_ds.config.objective import WHOLE, ObjectiveConfig
from gpt1_ds.config.sections import PAIRS, Config
from gpt1_ds.config.task import TaskConfig
from gpt1_ds.config.values import inside

INHERITED = (  # of the model whose weights are taken over
    *("kind", "decoder_layers", "shared", "width", "heads", "head_width", "context", "ffn", "units"),
    *("mask", "positions", "attention_scale", "norm", "norm_kind", "norm_eps", "embedding_norm", "segments"),
    *("activation", "biases", "head", "tied", "logit_scale"),
)


_KEY = re.compile(r"[a-z_]+\.[a-z_0-9]+(?==)")  # which the line of a problem begins with


def problems(config: Config) -> Iterator[str]:
    """Yields one line per problem that holds for every number of ranks: the key, its value, the way out."""
    if not_finite := list(_not_finite(config)):  # what follows computes with them
        yield from not_finite
        return
    sections = [section.problems() for section in vars(config).values() if hasattr(section, "problems")]
    own = [*chain.from_iterable(sections), *task.problems(config.probes)]
    yield from own
    wrong = [f"{found[0]}=" for line in own if (found := _KEY.match(line))]
    yield from (line for line in _combinations(config) if not any(key in line for key in wrong))


def _combinations(config: Config) -> Iterator[str]:
    """Yields what is wrong with keys that are right each by itself."""
    model, train, parallel = config.model, config.train, config.parallel
    if parallel.tensor > 0 and model.heads % parallel.tensor:
        yield (
            f"parallel.tensor={parallel.tensor} does not divide model.heads={model.heads}: every rank needs whole "
            f"heads; use a divisor of {model.heads}"
        )
    elif parallel.tensor > 0 and model.ffn_width % parallel.tensor:
        yield f"parallel.tensor={parallel.tensor} does not divide model.ffn={model.ffn_width}; use a divisor"
    if model.kind == "lstm" and (model.layers != 1 or parallel.tensor * parallel.pipeline != 1):
        yield (
            f"model.kind=lstm has one layer, on every rank as a whole (model.layers={model.layers}, "
            f"parallel.tensor={parallel.tensor}, parallel.pipeline={parallel.pipeline}); set all three to 1"
        )
    elif sum(model.blocks) < parallel.pipeline:
        what = "model.layers" if model.stacks == 1 else "layers of both stacks"
        yield (
            f"parallel.pipeline={parallel.pipeline} leaves ranks without a layer ({what}={sum(model.blocks)}); "
            f"use parallel.pipeline={max(1, sum(model.blocks))} or fewer"
        )
    yield from _unpatched_problems(config)
    yield from _length_problems(config)
    yield from _measure_problems(config)
    yield from _objective_problems(config)
    if config.task is not None and config.task.makes_vectors:
        yield from _sentence_problems(config, config.task)
    if model.norm_kind == "rms" and train.precision == "fp16":
        yield "train.precision=fp16 overflows with model.norm_kind=rms, whose states grow from block to block; use bf16"
    yield from _sequence_parallel_problems(config)
    if parallel.zero == 0 and train.precision != "fp32":
        yield (
            f"parallel.zero=0 accumulates gradients in {train.precision}; use parallel.zero=1, which keeps them in fp32"
        )
    frozen = None if config.task is None else config.task.frozen_layers
    if frozen is not None and model.stacks > 1:
        yield (
            f"task.frozen_layers={frozen} counts the blocks of one stack, model.kind=encoder_decoder has 2; "
            "leave it out"
        )
    elif frozen is not None and frozen > model.layers:
        yield f"task.frozen_layers={frozen} is more than model.layers={model.layers}; use {model.layers} or less"
    if config.optimizer.layer_decay != 1 and model.stacks > 1:
        yield (
            f"optimizer.layer_decay={config.optimizer.layer_decay} counts the blocks of one stack, "
            f"model.kind={model.kind} has {model.stacks}; use 1"
        )
    if train.recompute == "block" and model.attention == "fused":
        yield "train.recompute=block repeats attention with other dropout masks; use model.attention=exact"


def _sequence_parallel_problems(config: Config) -> Iterator[str]:
    """Yields what does not cut evenly over the ranks of a sequence-parallel group."""
    model, parallel = config.model, config.parallel
    if parallel.sequence and model.context % parallel.tensor:
        yield (
            f"parallel.sequence=true cuts model.context={model.context} over parallel.tensor={parallel.tensor} "
            "ranks; use a context that is a multiple of it"
        )
    elif parallel.sequence and min(model.context, PROBE_POSITIONS) % parallel.tensor:
        yield (
            f"parallel.sequence=true cuts the {min(model.context, PROBE_POSITIONS)} positions of a checkpoint's "
            f"probe over parallel.tensor={parallel.tensor} ranks; use a divisor, or parallel.sequence=false"
        )
    if parallel.sequence and (model.stacks, config.objective.kind) == (2, "spans") and WHOLE % parallel.tensor:
        yield (
            f"parallel.sequence=true cuts targets, whose positions are a multiple of {WHOLE}, over "
            f"parallel.tensor={parallel.tensor} ranks; use a divisor of {WHOLE}"
        )


def _unpatched_problems(config: Config) -> Iterator[str]:
    """Yields what DeepSpeed and Megatron-core cannot do as they come."""
    if config.train.deepspeed_patches != "none":
        return
    if config.parallel.sequence:
        yield "parallel.sequence=true needs train.deepspeed_patches=fast or fixes: Megatron's buffer is not made"
    if config.guard.on_spike == "skip" and config.guard.z:
        yield "guard.on_spike=skip needs train.deepspeed_patches=fast or fixes: DeepSpeed asks nobody before an update"


def _length_problems(config: Config) -> Iterator[str]:
    """Yields what keeps the length of a run, or of its steps, from being known."""
    if config.train.batch_warmup is not None and config.task is not None:
        yield (
            f"train.batch_warmup={config.train.batch_warmup} is for pre-training, whose rows have one length; leave it "
            "out"
        )
    if config.checkpoint.grows_at_resume and config.task is None and config.train.steps is None:
        yield (
            f"checkpoint.positions={config.checkpoint.positions} lets a run continue with longer rows, so that tokens "
            "and epochs do not say how many steps it has; use train.steps"
        )
    if config.checkpoint.grows_at_resume and config.optimizer.name == "adafactor":
        yield (
            f"checkpoint.positions={config.checkpoint.positions}: the means of optimizer.name=adafactor are of whole "
            "matrices, which cannot grow under them; begin with the weights alone, by checkpoint.init_from"
        )


def _measure_problems(config: Config) -> Iterator[str]:
    """Yields what cannot be measured while this run trains."""
    asked, best, model = config.train.evaluations, config.checkpoint.best, config.model
    if any(one.linear for one in asked) and (model.kind == "encoder_decoder" or model.mask == "prefix"):
        yield (
            f"{KEY}: a linear model reads the states of causal and bidirectional models, not of model.kind="
            f"{model.kind} with model.mask={model.mask}; leave linear out"
        )
    if config.task is None:
        yield from () if best is None else best_problems(best, asked, config.objective.kind == "masked")
        return
    if asked:
        yield (
            f"{KEY} asks the language model of pre-training ({', '.join(one.shown for one in asked)}); fine-tuning "
            "scores its own dev split: leave it out"
        )
    if best is not None:
        yield f"checkpoint.best={best} is for pre-training; fine-tuning keeps the best by its task: leave it out"


def _not_finite(config: Config) -> Iterator[str]:
    for name, section in vars(config).items():
        for key, value in getattr(section, "__dict__", {}).items():
            if isinstance(value, float) and not math.isfinite(value):
                yield f"{name}.{key}={value} is not finite; give a number"


def _sentence_problems(config: Config, task: TaskConfig) -> Iterator[str]:
    """Yields vectors of sentences: what is pooled, and which examples are compared."""
    if task.pooling == "cls" and config.model.mask == "causal":
        yield "task.pooling=cls reads nothing of model.mask=causal: its first token sees no other; use mean or max"
    if task.loss == "ranking" and config.train.micro_batch % task.group:
        yield (
            f"task.group={task.group} does not divide train.micro_batch={config.train.micro_batch}: no layout may cut "
            "a group; use a micro-batch that is a multiple of it"
        )
    elif task.loss == "ranking" and config.train.global_batch % task.group:
        yield (
            f"task.group={task.group} does not divide train.global_batch={config.train.global_batch}: no layout may "
            "cut a group; use a multiple of it"
        )


def _objective_problems(config: Config) -> Iterator[str]:
    """Yields one line per pair of settings that do not fit: how a model sees, what it learns, what it reads."""
    model, objective, data = config.model, config.objective, config.data
    if model.kind == "lstm" and (model.mask, model.head, model.segments) != ("causal", "plain", 0):
        yield "model.kind=lstm has no model.mask, model.head or model.segments; leave them out"
    if config.task is not None:
        return
    yield from _visibility_problems(model, objective)
    if objective.kind not in ("masked", "causal") and data.text != "windows":
        yield f"data.text={data.text} needs objective.kind=masked or causal; use data.text=windows"
    if objective.kind == "masked" and objective.probability > 0.5 and data.text != "windows":
        yield (
            f"objective.probability={objective.probability} is above 0.5, but symbols of data.text={data.text} are "
            "never predicted; use 0.5 or less, or data.text=windows"
        )
    if objective.next_sentence and (model.segments != 2 or data.text not in PAIRS):
        yield (
            "objective.next_sentence=true needs model.segments=2, data.text=pairs and a dataset with sentences; build "
            "it with --sentences"
        )
    if data.documents == "masked" and (objective.kind, model.stacks) == ("spans", 1):
        yield (
            "data.documents=masked cannot keep documents apart where one stack reads a source and then its target "
            "(objective.kind=spans); use data.documents=joined, or model.kind=encoder_decoder"
        )
    if objective.copies and data.offsets != "fixed":
        yield (
            f"objective.copies={objective.copies} needs data.offsets=fixed, where every pass has the same windows; "
            "leave one of them out"
        )


def _visibility_problems(model: ModelConfig, objective: ObjectiveConfig) -> Iterator[str]:
    """An objective may predict only what a model does not see."""
    kind = objective.kind
    if model.kind == "encoder_decoder":
        if kind in ("causal", "masked"):
            yield (
                f"objective.kind={kind} has no source for the encoder of model.kind=encoder_decoder; use "
                "objective.kind=spans or prefix, or model.kind=gpt"
            )
    elif kind == "masked" and model.mask != "bidirectional":
        yield (
            f"objective.kind=masked cannot use model.mask={model.mask}: a masked token needs the tokens on both sides; "
            "use model.mask=bidirectional, or objective.kind=causal"
        )
    elif kind != "masked" and model.mask == "bidirectional":
        yield (
            f"objective.kind={kind} cannot train model.mask=bidirectional: each token would see itself; use "
            "objective.kind=masked, or model.mask=causal"
        )
    elif kind == "causal" and model.mask == "prefix":
        yield "objective.kind=causal gives model.mask=prefix no prefix; use objective.kind=prefix, or model.mask=causal"
    elif kind == "prefix" and model.mask == "causal":
        yield "objective.kind=prefix needs model.mask=prefix or model.kind=encoder_decoder; or use kind=causal"
    if objective.predict == "all" and (kind != "spans" or model.stacks == 2 or model.mask != "causal"):
        yield (
            "objective.predict=all needs objective.kind=spans and one stack with model.mask=causal, which does not see "
            "what it predicts; use objective.predict=targets"
        )
    if kind == "spans" and not any(True for _ in objective.problems()):
        yield from _span_problems(model, objective)


def _span_problems(model: ModelConfig, objective: ObjectiveConfig) -> Iterator[str]:
    try:
        row = objective.lengths(model)
    except ValueError:
        yield f"model.context={model.context} is too short for a span and its sentinel; use at least 8"
        return
    _, spans = objective.noise(row.text)
    if spans > objective.sentinels:
        yield (
            f"objective.sentinels={objective.sentinels} is less than the {spans} spans of a text of {row.text} tokens; "
            "use more, or a larger objective.mean_length"
        )
    if row.stacks[-1] > model.context:
        yield (
            f"objective.density={objective.density} makes targets of {row.stacks[-1]} tokens, longer than "
            f"model.context={model.context}; use a smaller one"
        )


def may_grow(config: Config, source: ModelConfig) -> bool:
    """Returns whether the model's context is longer than that of `source`, whose weights it takes over, and may be."""
    return config.checkpoint.positions != "refuse" and config.model.context > source.context


def transfer_problems(config: Config, source: ModelConfig) -> Iterator[str]:
    """Yields one line per reason why fine-tuning cannot begin with the weights of a checkpoint whose model is
    `source`.
    """
    assert config.task is not None, "fine-tuning has a task"
    model, layers, where = config.model, config.task.transfer_layers, config.checkpoint.init_from
    if layers == -1:
        return
    for key in INHERITED:
        if getattr(model, key) != getattr(source, key) and not (key == "context" and may_grow(config, source)):
            yield f"model.{key}={getattr(model, key)}: {where} has {getattr(source, key)}; leave it out"
    if layers is None and model.layers != source.layers:
        yield (
            f"model.layers={model.layers}: {where} has {source.layers}; leave it out, or say how many of them are "
            "taken over with task.transfer_layers"
        )
    most = min(model.layers, source.layers)
    if layers is not None and layers > most:
        yield f"task.transfer_layers={layers} is more than there are; use {most} or less"


def world_problems(config: Config, world: int) -> Iterator[str]:
    """Yields one line per reason why this configuration cannot run on `world` ranks."""
    parallel, train = config.parallel, config.train
    replica = parallel.tensor * parallel.pipeline
    if world % replica:
        yield (
            f"parallel.tensor={parallel.tensor} x parallel.pipeline={parallel.pipeline} = {replica} ranks do not "
            f"divide the world of {world}; use {replica * max(1, world // replica)} ranks"
        )
        return
    data_ranks = world // replica
    micro_batch = train.micro_batch or 1  # auto
    if train.smallest_batch % (micro_batch * data_ranks):
        key = "global_batch" if train.batch_warmup is None else "batch_warmup"
        part, rest = divmod(train.smallest_batch, data_ranks)
        smaller = "" if rest else f", or train.micro_batch={math.gcd(part, micro_batch)}"  # a run that continues may
        yield (
            f"train.{key}={train.smallest_batch} does not split into {data_ranks} data-parallel ranks x "
            f"train.micro_batch={micro_batch}; use a multiple of {micro_batch * data_ranks}{smaller}"
        )


def cpu_problems(config: Config) -> Iterator[str]:
    """Yields one line per setting that no CPU can run."""
    if config.parallel.sequence:
        yield "parallel.sequence=true needs CUDA (Megatron has no sequence-parallel regions on a CPU); leave it out"
    if config.model.attention == "fused":
        yield "model.attention=fused needs CUDA; leave it out for the exact kernel"


_OTHER_WAY = "export it before submitting, or let slurm.setup source a file of yours"
WAY_OUT = f"a configuration is saved in many places; {_OTHER_WAY}"
_NAME = re.compile(  # of a variable or option whose value is secret
    r"""SECRET | PASSW(?:OR)?D | PASSPHRASE | CREDENTIAL | (?:TOKEN|APIKEY)S?(?![A-Z])
    | (?<![A-Z])(?:KEY|PASS|PWD|PW|O?AUTH|AUTHORIZATION|COOKIE|BEARER)S?(?![A-Z])""",
    re.IGNORECASE | re.VERBOSE,
)
_PLACE = re.compile(r"(?:PATH|FILE|DIR|FOLDER|SOCK)$", re.IGNORECASE)  # the value says where a secret is, not which
_NO_SECRET = re.compile(r"[\"']?(?:\$.*)?[\"']?", re.DOTALL)  # nothing, or what the shell puts there when the job runs
_WORD = r"""("[^"]*"?|'[^']*'?|\$\([^)]*\)?|[^\s;&|]+)"""
_ASSIGNED = re.compile(rf"(?<![\w$-])([A-Za-z_]\w*)={_WORD}")
_OPTION = re.compile(rf"(?<![\w-])--([A-Za-z][\w-]*)(?:=|\s+(?!-)){_WORD}")
_LOGIN = re.compile(r"\bwandb\s+login\s+(?!-)[^\s$;&|]+|\bcurl\b.*\s-u\s*[^\s$:]+:[^\s$]+")
_ADDRESS = re.compile(r"://[^/\s:@$]*:(?!\$)[^/\s@]+@|https?://(?!\$)[^/\s:@]+@")
_QUERY = re.compile(r"://\S*\?(\S+)")
_PLAIN_NAME = re.compile(r"(?:--)?[a-z][a-z_.-]{0,60}")  # of an option or a key
_SIGNATURES = ("sig", "signature", "x-amz-signature", "x-goog-signature")
_ISSUED = re.compile(  # tokens that say by their form what they are
    r"""(?<![\w-])(?:hf_[A-Za-z0-9]{20,} | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,} | glpat-[\w-]{16,}
    | sk-(?=[\w-]{20})[\w-]*?[A-Za-z0-9]{16} | xox[abprs]-[\w-]{10,} | (?:AKIA|ASIA)[0-9A-Z]{16}(?!\w)
    | eyJ[\w-]{10,}\.eyJ[\w-]{10,})
    | -----BEGIN[ A-Z]*PRIVATE\ KEY""",
    re.VERBOSE,
)


def secret_problems(config: Any) -> Iterator[str]:
    """Yields one line per place of a configuration that seems to hold a secret, which the line does not repeat."""
    for key, text in _texts(config):
        if what := _secret_in(text, is_shell=key.startswith("slurm.")):
            yield f"{key}: {what}: {WAY_OUT}"


def secret_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """Yields one line per argument of a job's command that seems to hold a secret, which the line does not repeat."""
    before = "the command"
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        is_named = bool(equals and _PLAIN_NAME.fullmatch(option))
        if what := _secret_in(argument, is_shell=False):
            name = option if is_named else before
            yield f"{name}: {what}: the arguments of a job are saved in its folder; {_OTHER_WAY}"
        if argument.startswith("--"):
            before = option if _PLAIN_NAME.fullmatch(option) else "an option"


def is_secret_name(name: str) -> bool:
    """Returns whether the value of a variable or option of this name is secret."""
    return bool(_NAME.search(name)) and not _PLACE.search(name)


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields (key, text) of all texts inside; those of slurm.environment as a shell assigns them."""
    if isinstance(value, (str, int, float)):
        yield key, f"{key.rpartition('.')[2]}='{value}'" if key.startswith("slurm.environment.") else str(value)
    for name, one in inside(value, first=1).items():
        yield from _texts(one, f"{key}.{name}" if key else str(name))


def _secret_in(text: str, is_shell: bool) -> str | None:
    """Returns what kind of secret a text holds, if any; one for a shell may assign it to a name."""
    if _ISSUED.search(text):
        return "this looks like a token or a key"
    queries = (part.partition("=") for query in _QUERY.findall(text) for part in query.split("&"))
    signed = any(given and (is_secret_name(name) or name.lower() in _SIGNATURES) for name, _, given in queries)
    if signed or _ADDRESS.search(text):
        return "this is an address with a password or a signature"
    for name, given in (*_ASSIGNED.findall(text), *_OPTION.findall(text)) if is_shell else ():
        if is_secret_name(name) and not _NO_SECRET.fullmatch(given):
            return f"{name:.80} seems to be a secret"
    return "this gives a password to a command" if is_shell and _LOGIN.search(text) else None
