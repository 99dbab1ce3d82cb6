"""Text from a model: what a causal model continues, what an encoder-decoder writes of a source (sentinels as text:
`<extra_id_0>` is the first one), and what a masked model puts in the place of `<mask>`. Ids are chosen in decoding.py.

`sample --input` takes a prompt or source a line, or a JSON object with the key `text` and, if it likes, a `seed` of its
own, and answers in batches. What has arrived is answered at once, so a pipe may be slow.

Shapes: S positions, V vocabulary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from gpt1_ds.common.errors import ArgumentError, ConfigError, DataError
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.evaluation.decoding import PROMPTS, write
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.predict import windows
from gpt1_ds.evaluation.probes import frame_of
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.tasks.lines import ENDINGS, as_object, decoded
from gpt1_ds.tasks.rows import BadRowError


def generate(loaded: Loaded, prompt: str, sampling: Sampling) -> str:
    """Returns a continuation of `prompt` (not repeated), ended early by the end of a document. Raises ConfigError for a
    model that does not continue text.
    """
    return several_texts(loaded, prompt, sampling, 1, is_source=False)[0]


def answer(loaded: Loaded, source: str, sampling: Sampling) -> str:
    """Returns what the decoder writes; sentinels in it are shown, as they say which span the text after them is. Raises
    ConfigError for a model without a decoder, ArgumentError for a text that is too long.
    """
    return several_texts(loaded, source, sampling, 1, is_source=True)[0]


def several_texts(loaded: Loaded, text: str, sampling: Sampling, count: int, *, is_source: bool) -> list[str]:
    """Returns `count` answers to a source, or continuations of a prompt, drawn with the seeds from `sampling.seed` on.
    Raises ArgumentError for several texts of a way of writing that has one alone.
    """
    answers = loaded.config.model.kind == "encoder_decoder"
    if answers and not is_source:
        raise ConfigError(f"sample: {loaded.folder} is an encoder-decoder, which answers a source; use --source")
    if is_source and not answers:
        raise ConfigError(f"sample: {loaded.folder} has one stack: it continues text; use --prompt, not --source")
    if count > 1 and (sampling.drawn_at == 0 or sampling.beams > 1):
        raise ArgumentError(f"samples={count} must be 1 where nothing is drawn: at temperature 0, and with beams")
    return written(loaded, [text] * count, sampling, range(sampling.seed, sampling.seed + count))


def written(loaded: Loaded, texts: Sequence[str], sampling: Sampling, seeds: Sequence[int] | None = None) -> list[str]:
    """Returns what the model writes after each text, in batches: what `generate` gives of a prompt, and of an
    encoder-decoder what `answer` gives of a source. `seeds` are those of the texts (None: `sampling.seed` for all).
    Raises ConfigError for a masked model, ArgumentError for a source that is too long.
    """
    if loaded.config.model.mask == "bidirectional":
        raise ConfigError(
            f"{loaded.folder} is an encoder (model.mask=bidirectional): it fills <mask> in, it does not "
            "continue text; use fill"
        )
    tokenizer = loaded.tokenizer
    answers = loaded.config.model.kind == "encoder_decoder"
    first = () if answers else frame_of(loaded).first  # of rows of sentences, which begin with it
    ids = [source_ids(loaded, text) if answers else [*first, *tokenizer.encode(text).tolist()] for text in texts]
    found = write(loaded.model, tokenizer, ids, sampling, seeds=seeds, name=str(loaded.folder))
    if answers:
        return [decode_sentinels(tokenizer, one) for one in found]
    return [_text_after(tokenizer, *one) for one in zip(texts, ids, found, strict=True)]


def _text_after(tokenizer: Tokenizer, text: str, before: Sequence[int], added: Sequence[int]) -> str:
    """Returns the text of the ids `added` as it stands right after `text`, whose ids are `before`. Decoded alone they
    may lose the blank in front of them.
    """
    given, whole = tokenizer.decode(before), tokenizer.decode([*before, *added])
    if not whole.startswith(given):  # bytes that make no character change how those before them are shown
        return tokenizer.decode(added)
    if not text[-1:].isspace():  # a blank that ends the last word of `given` stands between the two
        return whole[len(given.rstrip(" ")) :]
    return whole[len(given) :] if given[-1:].isspace() else whole[len(given) :].lstrip(" ")


def continued(loaded: Loaded, prompt: Sequence[int], sampling: Sampling, stops: Sequence[str]) -> str:
    """Returns what follows the ids `prompt`, decoded alone, as lm-evaluation-harness does it; the token that completes
    one of `stops` is the last.
    """
    tokenizer = loaded.tokenizer

    def stopped(ids: list[int]) -> bool:
        text = tokenizer.decode(ids)
        return any(stop in text for stop in stops)

    ask, name = stopped if stops else None, str(loaded.folder)
    return tokenizer.decode(write(loaded.model, tokenizer, [prompt], sampling, stopped=ask, name=name)[0])


_SENTINEL = re.compile(r"<extra_id_(\d{1,9})>")


def source_ids(loaded: Loaded, text: str) -> list[int]:
    """Returns what an encoder reads: the text and an end token. Raises ArgumentError for a text that is too long."""
    ids, context = [*encode_sentinels(loaded.tokenizer, text), loaded.tokenizer.eod_id], loaded.config.model.context
    if len(ids) > context:
        raise ArgumentError(
            f"source has {len(ids)} tokens, the encoder reads model.context={context}; use a shorter one"
        )
    return ids


def encode_sentinels(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the ids of a text in which `<extra_id_0>` is the first sentinel. Raises ArgumentError for an unknown
    one.
    """
    ids: list[int] = []
    for number, part in enumerate(_SENTINEL.split(text)):
        if number % 2 == 0:
            ids += tokenizer.encode(part).tolist()
        elif int(part) < (tokenizer.special_ids.sentinels or 0):
            ids.append(tokenizer.vocab_size - 1 - int(part))
        else:
            raise ArgumentError(
                f"source: the tokenizer has {tokenizer.special_ids.sentinels or 0} sentinels, no {part}"
            )
    return ids


def decode_sentinels(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Returns the text of ids, sentinels written as `<extra_id_0>`."""
    parts, last = [], tokenizer.vocab_size - 1
    for is_sentinel, some in groupby(ids, key=lambda one: one >= tokenizer.first_sentinel):
        few = list(some)
        parts += [f"<extra_id_{last - one}>" for one in few] if is_sentinel else [tokenizer.decode(few)]
    return "".join(parts)


MASK = "<mask>"


@dataclass(frozen=True)
class Filling:
    """One token for one mask. `text` is the whole text with it, the other masks as they were."""

    mask: int  # 0 is the first
    token: str
    probability: float
    text: str


@torch.no_grad()
def fill(loaded: Loaded, text: str, top: int) -> list[Filling]:
    """Returns the `top` likeliest tokens for each mask, likeliest first. Raises ConfigError for a model that continues
    text, ArgumentError for a text without a mask, and for one that is longer than the context.
    """
    model, special = loaded.config.model, loaded.tokenizer.special_ids
    if model.mask != "bidirectional":
        raise ConfigError(
            f"{loaded.folder} continues text (model.mask={model.mask}), it fills no {MASK} in; use sample, in Python "
            "generate"
        )
    if MASK not in text:
        raise ArgumentError(f"text={text!r:.60} has no {MASK}; write {MASK} where a token is missing")
    mask, frame = special.require("mask", "fill"), frame_of(loaded)
    parts = text.split(MASK)
    stems = [*(part.rstrip(" ") for part in parts[:-1]), parts[-1]]  # the token brings its space
    runs = [loaded.tokenizer.encode(stem).tolist() for stem in stems]
    ids, places = [*frame.first, *runs[0]], []
    for run in runs[1:]:
        places.append(len(ids))
        ids += [mask, *run]
    ids += frame.last
    if len(ids) > model.context:
        raise ArgumentError(f"text has {len(ids)} tokens, the model sees model.context={model.context}; shorten it")
    device = next(loaded.model.parameters()).device
    logits_SV = loaded.model.logits(torch.tensor(ids, device=device).unsqueeze(1))[:, 0].float()
    logits_SV = logits_SV[:, : loaded.tokenizer.vocab_size]
    never = [*{*special.present().values()}]
    logits_SV[:, never] = -torch.inf
    top = min(top, logits_SV.shape[1] - len(never))
    found = []
    for number, place in enumerate(places):
        tokens = logits_SV[place].topk(top).indices  # of logits, as probabilities of 0 are equal
        chances = logits_SV[place].softmax(-1)[tokens]
        for chance, token in zip(chances.tolist(), tokens.tolist(), strict=True):
            word = loaded.tokenizer.decode([token])
            found.append(Filling(number, word, chance, _filled(loaded.tokenizer, parts, runs, number, token)))
    return found


def _filled(tokenizer: Tokenizer, parts: list[str], runs: list[list[int]], number: int, token: int) -> str:
    """Returns the text of the ids `runs` of `parts` with `token` between two of them, and the other masks as they were,
    which have the blanks around them that `parts` have.
    """
    around = slice(number, number + 2)
    parts, runs = [*parts], [*runs]
    parts[around], runs[around] = [MASK.join(parts[around])], [[*runs[number], token, *runs[number + 1]]]
    shown = []
    for at, (part, run) in enumerate(zip(parts, runs, strict=True)):
        text = tokenizer.decode(run)
        before, after = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
        if at > 0 and not text.startswith(before):
            text = before + text
        if at < len(parts) - 1 and not text.endswith(after):
            text += after
        shown.append(text)
    return MASK.join(shown)


@dataclass(frozen=True)
class Prompt:
    text: str
    seed: int


def answers(loaded: Loaded, path: Path, sampling: Sampling) -> Iterator[list[str]]:
    """Yields a JSON line for each line of a file or pipe, batch by batch: its `prompt`, and the `text` that the model
    writes after it. Raises DataError at the first line that is no prompt, when those before its batch are answered.
    """
    number, is_json = 0, ENDINGS.get(path.suffix.lower()) == "jsonl"
    with path.open("rb") as stream:
        for lines in windows(stream.fileno()):
            is_json = is_json or (number == 0 and _is_object(lines[0]))
            for begin in range(0, len(lines), PROMPTS):
                prompts = []
                for line in lines[begin : begin + PROMPTS]:
                    number += 1
                    try:
                        prompts.append(_prompt(loaded, line, number, is_json, sampling))
                    except (BadRowError, ArgumentError) as problem:
                        raise DataError(f"{path} line {number}: {problem}") from None
                texts = written(loaded, [one.text for one in prompts], sampling, [one.seed for one in prompts])
                yield [json.dumps({"prompt": one.text, "text": text}) for one, text in zip(prompts, texts, strict=True)]


def _is_object(line: bytes) -> bool:
    try:
        return "text" in as_object(decoded(line, 1))
    except BadRowError:
        return False


def _prompt(loaded: Loaded, line: bytes, number: int, is_json: bool, sampling: Sampling) -> Prompt:
    """Raises BadRowError for a line that is no prompt, ArgumentError for a source or a seed that cannot be used."""
    text, seed = decoded(line, number), sampling.seed
    if is_json:
        values = as_object(text)
        if not isinstance(values.get("text"), str) or type(values.get("seed", seed)) is not int:
            raise BadRowError('needs "text", a string, and may have "seed", a whole number')
        text, seed = values["text"], values.get("seed", seed)
        replace(sampling, seed=seed)  # checks it
    if loaded.model.stacks == 2:
        source_ids(loaded, text)
    return Prompt(text, seed)
