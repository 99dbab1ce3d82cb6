"""`evaluate --lm-eval`: tasks of lm-evaluation-harness on checkpoints, results merged into eval.json; and what it asks
of a model (interop/harness.py): how likely texts are.

Tokens are those that the harness's own `hf` model scores on an export: a context and its continuation are encoded
together and cut where the context alone ends, blanks at its end belonging to the continuation; a text without a context
follows the end of a document (tasks/questions.py), and nothing else is put around a causal model's. A masked model's
scores are pseudo-log-likelihoods, an encoder-decoder reads the context and writes the continuation in the place of a
sentinel, both as in the zero-shot probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_ds.checkpoint.restore import same_manifest
from gpt1_ds.common import log
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.engine.agreement import digest
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.engine.session import distributed_session
from gpt1_ds.evaluation.generate import answer, continued, encode_sentinels
from gpt1_ds.evaluation.load import Loaded, load_checkpoint
from gpt1_ds.evaluation.probes import frame_of, shared_scores
from gpt1_ds.evaluation.sampling import TOKENS, Sampling
from gpt1_ds.tasks.questions import Frame
from gpt1_ds.tasks.text import Int32s
from gpt1_ds.tracking.record import Entry, merge, read_entries
from gpt1_ds.tracking.wandb import show_evaluation

SENTINEL = "<extra_id_0>"


class Continuations:
    """A language model as a scorer of the harness; each rank takes its part. Raises ConfigError for a checkpoint that
    has no language model.
    """

    def __init__(self, loaded: Loaded, groups: ProcessGroups) -> None:
        if loaded.task is not None:
            raise ConfigError(
                f"{loaded.folder}: fine-tuned on {loaded.task.name}: --lm-eval asks language models; name the "
                "checkpoint that it was fine-tuned from, or leave --lm-eval out for the task's own scores"
            )
        self.loaded, self.groups, self.frame = loaded, groups, frame_of(loaded)

    @property
    def writes(self) -> int:
        """Returns the number of tokens that it writes of a text at most; 0 of an encoder, which only scores it."""
        return written_at_most(self.loaded.config, self.frame)

    def continuations(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """Returns for each (context, continuation) the log-likelihood (nats), and whether greedy decoding gives it."""
        scores_N2 = self._scored([self._encoded(*pair) for pair in pairs])
        return [(float(total), bool(greedy)) for total, greedy in scores_N2]

    def texts(self, texts: Sequence[str]) -> list[float]:
        """Returns the log-likelihood of each whole text (nats): pieces of the context's size, each token in one of
        them.
        """
        pieces = [self._pieces(self.loaded.tokenizer.encode(text)) for text in texts]
        scores_N2 = self._scored([piece for some in pieces for piece in some])
        ends = np.cumsum([len(some) for some in pieces])
        return [float(part_N2[:, 0].sum()) for part_N2 in np.split(scores_N2, ends[:-1])]

    def written(self, prompts: Sequence[tuple[str, dict[str, Any], Sequence[str]]]) -> list[str]:
        """Returns what follows each prompt, until the end of a document or of `tokens`; what comes after one of the
        last texts may be missing. A prompt is cut at its beginning where it and `tokens` do not fit, as the `hf` model
        does.
        """
        self.groups.compare({"prompts": digest(repr(prompt).encode() for prompt in prompts)})
        mine = prompts[self.groups.rank :: self.groups.world]
        written = self.groups.agree(lambda: [self._write(*prompt) for prompt in mine])
        found = [""] * len(prompts)
        for rank, texts in enumerate(self.groups.gather(written)):
            found[rank :: self.groups.world] = texts
        return found

    def _encoded(self, context: str, continuation: str) -> tuple[Int32s, Int32s]:
        encode, stem = self.loaded.tokenizer.encode, context.rstrip()
        whole = encode(context + continuation)
        if not stem:
            return np.array(self.frame.before, dtype=np.int32), whole
        context_size = len(encode(stem))
        return whole[:context_size], whole[context_size:]

    def _pieces(self, tokens: Int32s) -> list[tuple[Int32s, Int32s]]:
        most, history = self.frame.most, np.concatenate([np.array(self.frame.before, dtype=np.int32), tokens])
        begin = len(self.frame.before)
        return [
            (history[: begin + start], tokens[start : start + most]) for start in range(0, max(1, len(tokens)), most)
        ]

    def _scored(self, pairs: Sequence[tuple[Int32s, Int32s]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Returns [N, 2]; the beginning of what is known is cut where both do not fit, then the end of what is
        scored.
        """
        sequences, counts = [], []
        for history, tokens in pairs:
            scored = tokens[: self.frame.most]
            first = max(0, len(history) + len(scored) - self.frame.capacity)
            sequences.append(self.frame.around(history[first:].tolist(), scored))
            counts.append(len(scored))
        return shared_scores(self.loaded, sequences, counts, self.frame, self.groups)

    def _write(self, prompt: str, settings: dict[str, Any], stops: Sequence[str]) -> str:
        context, tokenizer, sampling = self.loaded.config.model.context, self.loaded.tokenizer, Sampling(**settings)
        ids = tokenizer.encode(prompt).tolist()
        if self.frame.sentinel is None:
            first, longest = self.frame.first, context - (sampling.tokens or TOKENS)
            return continued(self.loaded, [*first, *ids[-(longest - len(first)) :]], sampling, stops)
        excess = len(encode_sentinels(tokenizer, prompt + SENTINEL)) + 1 - context
        if excess > 0:
            prompt = tokenizer.decode(ids[excess:])
        parts = answer(self.loaded, prompt + SENTINEL, sampling).split("<extra_id_")
        return parts[1].partition(">")[2] if len(parts) > 1 and not parts[0] else parts[0]


def written_at_most(config: Config, frame: Frame) -> int:
    """Returns the number of tokens that a model with this frame writes of a text at most; 0 of an encoder."""
    return config.model.context - 1 - len(frame.first) if frame.mask is None else 0


def evaluate_harness(
    config: Config,
    checkpoints: Sequence[Path],
    out: Path | None,
    tasks: Sequence[str],
    limit: int | None,
    missing: bool,
) -> int:
    """Scores `checkpoints`; rank 0 prints the results and merges them into `out` (eval.json), one by one.

    `missing` leaves out the checkpoints whose results, of as many examples, are in `out` already.
    """
    from gpt1_ds.interop import harness

    arguments = {"checkpoints": checkpoints, "tasks": tasks, "limit": limit, "missing": missing}
    with distributed_session(config, command="evaluate --lm-eval", **arguments) as groups:
        there = groups.on_rank_0(lambda: read_entries(out))  # what is no eval.json is refused before work is done
        done = {(e["task"], e["step"]): e["metrics"].get("examples") for e in there} if missing else {}
        asked = groups.agree(lambda: harness.load_tasks(tasks))
        wanted = asked.examples(limit)
        groups.compare({f"{name}'s examples": count for name, count in wanted.items()})
        for checkpoint in checkpoints:
            step = int(same_manifest(groups, checkpoint)["step"])
            if all(done.get((harness.PREFIX + name, step)) == count for name, count in wanted.items()):
                continue
            scorer = groups.agree(lambda path=checkpoint: Continuations(load_checkpoint(path), groups))  # type: ignore[misc]
            with log.bar(watched=groups.rank == 0) as show:
                show(words=", ".join(tasks))
                found = harness.run(scorer, asked, limit)
            for entry in found:
                groups.on_rank_0(lambda path=checkpoint, one={**entry, "step": step}: _tell(path, out, one))  # type: ignore[misc]
        if groups.rank == 0:
            show_evaluation(config, out)
    return 0


def _tell(checkpoint: Path, out: Path | None, entry: Entry) -> None:
    shown = ", ".join(f"{key} {value:.4g}" for key, value in entry["metrics"].items())
    log.say(f"{checkpoint}: {entry['task']} {entry['split']}: {shown}")
    merge(out, entry)
