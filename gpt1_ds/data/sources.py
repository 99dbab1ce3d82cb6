"""The datasets that a configuration names, opened and checked against one another and the model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.common.lock import one_at_a_time
from gpt1_ds.common.log import say
from gpt1_ds.config import Config
from gpt1_ds.config.sections import EMBEDDED, PAIRS
from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import DESCRIPTION, Dataset
from gpt1_ds.data.loader import HeldOut, HeldOutData, TrainingData
from gpt1_ds.data.pairs import VERSIONS, Pairs, too_few_documents
from gpt1_ds.data.sentence_data import FullSentences, SentenceHeldOut, SentenceTraining, Text
from gpt1_ds.data.sentences import Sentences
from gpt1_ds.data.spans import SpecialTokens
from gpt1_ds.data.staging import staged
from gpt1_ds.data.tokenizers.base import Tokenizer

EMBEDDED_FOLDER = Path("data") / EMBEDDED
EMBEDDED_VOCAB_SIZE = 4096
LEAST_CONTEXT = 5  # three special tokens, and one of each text


@dataclass(frozen=True)
class Data:
    """The datasets of a run, opened; `held_out` is the validation split of the first source, None where it has none."""

    training: TrainingData | SentenceTraining
    held_out: HeldOut | None
    tokenizer: Tokenizer
    tokenizer_folder: Path
    tokenizer_hash: str
    data_hash: str


def open_data(config: Config) -> Data:
    """Opens the sources of `data.path`. Raises DataError or ConfigError when they do not fit together or the model."""
    datasets = [Dataset(staged(source.path)) for source in config.data.path]
    first = datasets[0]
    tokenizer = first.load_tokenizer()
    for other in datasets[1:]:
        same = other.tokenizer_fingerprint == first.tokenizer_fingerprint
        if not same and other.load_tokenizer().meaning != tokenizer.meaning:
            raise ConfigError(
                f"data.path: {other.folder} was built with another tokenizer than {first.folder}; build both with one"
            )
    ConfigError.raise_all(_missing(config, datasets, tokenizer))
    training, held_out = (_windows if config.data.text == "windows" else _sentences)(config, datasets, tokenizer)
    data_hash = "+".join(dataset.data_hash for dataset in datasets)
    return Data(training, held_out, tokenizer, first.tokenizer_folder, first.tokenizer_fingerprint, data_hash)


def _missing(config: Config, datasets: Sequence[Dataset], tokenizer: Tokenizer) -> Iterator[str]:
    """Yields all that the datasets and their tokenizer lack for the model, the objective and the text of its rows."""
    if config.model.vocab_size is not None and config.model.vocab_size < tokenizer.vocab_size:
        yield (
            f"model.vocab_size={config.model.vocab_size} is smaller than the tokenizer's {tokenizer.vocab_size} in "
            f"{datasets[0].folder}; leave model.vocab_size out"
        )
    if config.data.text != "windows":
        yield from _missing_sentences(config, datasets, tokenizer)
    if config.objective.kind == "masked":
        yield from tokenizer.special_ids.missing(("mask",), "objective.kind=masked")
    elif config.objective.kind == "spans":
        yield from tokenizer.special_ids.missing_sentinels(config.objective.sentinels)


def _missing_sentences(config: Config, datasets: Sequence[Dataset], tokenizer: Tokenizer) -> Iterator[str]:
    """Yields a problem for each dataset that lacks what rows of whole sentences are made of."""
    text, context = f"data.text={config.data.text}", config.model.context
    for dataset in datasets:
        if not dataset.split_sentences:
            yield f"{text}: {dataset.folder} has no sentence borders; build it again with --sentences"
    if context < LEAST_CONTEXT:
        yield f"model.context={context} is too short for {text}; it takes at least {LEAST_CONTEXT}"
    yield from tokenizer.special_ids.missing(("cls", "separator", "pad"), text)
    if config.data.text in PAIRS:
        read = [dataset.split("train") for dataset in datasets]
        read += [datasets[0].split("validation")] if "validation" in datasets[0].splits else []
        for split in read:
            if split.documents_with_text < 2:
                yield f"{text}: {too_few_documents(split)}"


def _windows(config: Config, datasets: Sequence[Dataset], _: Tokenizer) -> tuple[TrainingData, HeldOutData | None]:
    whole, first, held_out = config.objective.kind == "masked", datasets[0], None
    length = config.row.text
    training = TrainingData(
        [dataset.split("train") for dataset in datasets],
        [dataset.data_hash for dataset in datasets],
        [source.weight for source in config.data.path],
        length,
        config.run.seed,
        config.data.unique_tokens,
        config.data.offsets == "epoch",
        whole,
        config.objective.copies,
    )
    if "validation" in first.splits:
        held_out = HeldOutData(first.split("validation"), first.data_hash, length, whole)
    return training, held_out


def _sentences(
    config: Config, datasets: Sequence[Dataset], tokenizer: Tokenizer
) -> tuple[SentenceTraining, SentenceHeldOut | None]:
    text, context, first, held_out = f"data.text={config.data.text}", config.model.context, datasets[0], None
    ids = tokenizer.special_ids
    cls, separator, pad = (ids.require(role, text) for role in ("cls", "separator", "pad"))
    special = SpecialTokens(cls, separator, pad, tokenizer.eod_id)
    texts = [_text(config, dataset, "train", config.run.seed) for dataset in datasets]
    weights, copies = [source.weight for source in config.data.path], config.objective.copies
    training = SentenceTraining(texts, weights, context, special, copies)
    if "validation" in first.splits:
        held_out = SentenceHeldOut(_text(config, first, "validation", 0), context, special)
    return training, held_out


def _text(config: Config, dataset: Dataset, split: str, seed: int) -> Text:
    sentences, context = Sentences(dataset.split(split)), config.model.context
    if config.data.text in PAIRS:
        versions, single = config.objective.copies or VERSIONS, config.data.text == "sentence_pairs"
        return Pairs(sentences, context, dataset.data_hash, seed, versions, single)
    used = None
    if split == "train" and config.data.unique_tokens is not None:
        used = math.ceil(config.data.unique_tokens / context)
    across = config.data.text == "full_sentences"
    return FullSentences(sentences, context, dataset.data_hash, seed, used, across)


def row_note(config: Config, data: Data) -> str | None:
    """Returns what a person who compares inputs by their tokens has to know of rows of sentences, which padding fills:
    whatever they hold, as many tokens as full rows have are the common measure. None for windows.
    """
    if not isinstance(data.training, SentenceTraining):
        return None
    mean, context, batch = data.training.mean_row(), config.model.context, config.train.global_batch
    return (
        f"data.text={config.data.text}: a row has {mean:.1f} of {context} tokens on average; "
        f"train.global_batch={round(batch * context / mean)} has the tokens of {batch} full rows"
    )


def first_passes(config: Config, data: Data) -> list[tuple[str, int]]:
    """Returns each source, and how many sequences of the run there are when it has been read once."""
    whole = sum(source.weight for source in config.data.path)
    rows = zip(config.data.path, data.training.rows_per_pass, strict=True)
    return [(source.path, round(of_source * whole / source.weight)) for source, of_source in rows]


def mixture_note(config: Config, data: Data, sequences: float) -> str | None:
    """Returns how often a run of so many sequences reads each of several sources, and of which its held-out text is;
    None for one source.
    """
    if len(config.data.path) == 1:
        return None
    passes = ", ".join(f"{sequences / once:.2f} times over {path}" for path, once in first_passes(config, data))
    held_out = f"that of {config.data.path[0].path}" if data.held_out else "none: the first source has no such split"
    return f"data.path: the run passes {passes}; the held-out text is {held_out}"


def found_data(config: Config, quietly: bool = False) -> tuple[int | None, int | None]:
    """Returns (vocabulary size, training tokens) of the data that the configuration names; None where it is not there
    yet, which is said unless `quietly`. Nothing is written.
    """
    vocab_size, tokens = config.model.vocab_size, None
    embedded, pieces = embedded_corpus(config)
    config = with_embedded_corpus(config, make=False)
    try:
        datasets = [Dataset(source.path) for source in config.data.path]
        vocab_size = vocab_size or datasets[0].vocab_size
        tokens = sum(dataset.split("train").tokens for dataset in datasets)
    except DataError as error:
        if config.data.path[0].path == str(embedded):
            vocab_size = vocab_size or pieces
            say(f"{embedded}: not there yet: a run first makes it of Python's own docs, with a tokenizer")
        elif not quietly:
            say(f"not there yet: {error}")
    return vocab_size, tokens


def needs_embedded_corpus(config: Config) -> bool:
    """Returns whether `python-docs` is a data source, and no folder of that name."""
    return any(source.path == EMBEDDED and not Path(EMBEDDED).exists() for source in config.data.path)


def embedded_corpus(config: Config) -> tuple[Path, int]:
    """Returns the folder of the embedded corpus and the pieces of its tokenizer: a model with fewer gets its own."""
    wanted = config.model.vocab_size
    if wanted is None or wanted >= EMBEDDED_VOCAB_SIZE:
        return EMBEDDED_FOLDER, EMBEDDED_VOCAB_SIZE
    return EMBEDDED_FOLDER.with_name(f"{EMBEDDED_FOLDER.name}-{wanted}"), wanted


def lacks_embedded_corpus(config: Config) -> bool:
    """Returns whether `python-docs` is a data source that is still to be built."""
    return needs_embedded_corpus(config) and not (embedded_corpus(config)[0] / DESCRIPTION).exists()


def with_embedded_corpus(config: Config, make: bool = True) -> Config:
    """Returns the configuration with the folder of the embedded corpus in the place of `python-docs`; the folder is
    made where it is missing, unless `make` is false.
    """
    if not needs_embedded_corpus(config):
        return config
    folder, pieces = embedded_corpus(config)
    if make:
        make_embedded_corpus(folder, pieces)
    path = [
        replace(source, path=str(folder) if source.path == EMBEDDED else source.path) for source in config.data.path
    ]
    return replace(config, data=replace(config.data, path=path))


def make_embedded_corpus(folder: Path = EMBEDDED_FOLDER, vocab_size: int = EMBEDDED_VOCAB_SIZE) -> None:
    """Tokenizes the documentation inside CPython and builds it as the dataset `folder`, once."""
    if (folder / DESCRIPTION).exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(folder.parent):
        if (folder / DESCRIPTION).exists():  # another run has made it meanwhile
            return
        from gpt1_ds.data.tokenizers.train import train_tokenizer

        say(f"{folder}: building the embedded corpus, once")
        tokenizer = folder.with_name(f"{folder.name}-tokenizer")
        if not tokenizer.exists():
            train_tokenizer([EMBEDDED], tokenizer, vocab_size)
        build([EMBEDDED], tokenizer, folder, validation=0.05)
