"""Zero-shot probes (section 5 of the paper): tasks as texts that a pre-trained model finds more or less likely.

- cola       the sentence; an average token log-probability above a threshold means acceptable. The threshold is the one
             with the highest Matthews' correlation on train, because that is what dev is scored by.
- sst2       the sentence and `very`, then `positive` or `negative`. Each is one token of the vocabulary of 2018; with
             another one they may be several, and unlike in number, which alone would decide: then each sum counts as
             far as it is above the same word's average over all examples (calibration; no label is used).
- choices    race, story_cloze, cosmosqa, copa: document, question and each choice, joined by blanks; the average token
             log-probability of the choice decides.
- schemas    wsc273, pdp, dprd: each candidate in place of the pronoun; the average over the tokens after it decides
             (partial scoring). They are the same in all sequences of a question.
- blimp      the good and the bad sentence of a minimal pair (Warstadt et al. 2020); the log-probability of all tokens
             decides. Accuracy is the mean over the phenomena, each of which counts alike.
- next_sentence  the true next sentence of a book or another one of it (book_probes.py), after the last few sentences
             that fit half of the context; the average token log-probability decides.
- repeat     a passage of a book right after the same passage, which a model that can look words up finds likely; the
             mean log-probability of its tokens (nats).
- lambada    the last word of a passage; accuracy is how often greedy decoding gives it. As in lm-evaluation-harness
             nothing comes before the passage.

A model that is not fine-tuned yet has no start token, so the first token of a text would have no context. Here it has
what comes before a text in training: the end of the last document (`<eod>`), or in the vocabulary of 2018, whose model
never met that one, the line end (`\\n</w>`). What does not fit the context is cut: of a document the beginning, alike
for all choices, and of a text that is scored the end. Equals share the point, as drawing lots would: in the file of
wsc273 the first candidate is always right.

A template puts any task with classes in words; the log-probability of all tokens of an answer decides. A prefix model
sees all that comes before what is scored at once. An encoder-decoder has it as its source, and writes what is scored
after a sentinel (questions.py).

A masked model sees both sides of a token. In the place of each log-probability stands that of the token when it alone
is masked; their sum is the pseudo-log-likelihood (Salazar et al. 2020). Texts stand in rows as that model has seen
them: `[cls] text [separator]`, or windows without symbols (questions.py). What is cut leaves these symbols in place.

Every probe has a control, scored by the same model on the same examples: what its score is without what it is about.
For choices, lambada, next_sentence, repeat, sst2 and templates it is the answers alone, with nothing before them but
what the frame puts before any text; for schemas the average over a candidate's own tokens, alone; for blimp and cola
the tokens alone: each counts as the model gives it where no other token of the sentence is. A score says something as
far as it is above its control; chance is only what drawing lots gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.config import ProbeConfig, TaskConfig
from gpt1_ds.tasks import blimp, book_probes, lambada, winograd
from gpt1_ds.tasks.dev import capped
from gpt1_ds.tasks.example import Example, Examples
from gpt1_ds.tasks.hub_sets import way_to
from gpt1_ds.tasks.reading import read_split
from gpt1_ds.tasks.registry import SPECS

SENTIMENT = (" negative", " positive")  # by label


@dataclass(frozen=True)
class Probe:
    """A probe's examples; `train` is empty where nothing is fitted. Its `title` names it in results."""

    name: str
    split: str  # of `examples`
    examples: Examples
    train: Examples
    title: str = ""
    template: str = ""
    answers: tuple[str, ...] = ()

    @property
    def sums_tokens(self) -> bool:
        """Returns whether whole sentences are scored, so that its control is of tokens alone."""
        return self.name in ("cola", "blimp") and not self.template


READERS = {
    lambada.LAMBADA: lambada.read_passages,
    book_probes.NEXT_SENTENCE: book_probes.read_books,
    book_probes.REPEAT: book_probes.read_repeats,
}


def read_probe(config: ProbeConfig) -> Probe:
    """Returns the examples of a probe: of dev where the task has dev files, else what is there. Raises DataError."""
    if not Path(config.path).exists():
        raise DataError(
            f"{config.path}: no such folder; give the one that holds the files of {config.name} in probes"
            + way_to(config.path)
        )
    if config.template:
        return _read_template(config)
    name, path, limit = config.name, Path(config.path), config.limit
    split, train = "test", tuple[Example, ...]()
    if name == blimp.BLIMP:
        words = blimp.known_words(Path(config.known_words)) if config.known_words else None
        examples = blimp.read_pairs(path, limit, words)
    elif name in READERS:
        examples = READERS[name](path, limit)
    elif name in winograd.FILES:
        examples = capped(winograd.read_schemas(name, path), limit)
    else:
        task = TaskConfig(name=name, path=config.path)
        split, examples = read_split(task, ["dev", "train"] if SPECS[name].choices else ["dev"])
        examples = capped(examples, limit)
        if name == "cola":
            train = capped(read_split(task, ["train"])[1], config.train_limit)
    return Probe(name, split, examples, train, config.shown)


def _read_template(config: ProbeConfig) -> Probe:
    """Raises ConfigError for a task without classes, and where there is no answer for each."""
    spec = SPECS.get(config.name)
    if spec is None or not spec.labels or spec.choices:
        known = ", ".join(name for name, one in SPECS.items() if one.labels and not one.choices)
        raise ConfigError(f"probes: name={config.name} has no classes that a template can ask for; choose {known}")
    if len(config.answers) != len(spec.labels):
        raise ConfigError(
            f"probes: answers={config.answers} of {config.name} must be one for each of {', '.join(spec.labels)}"
        )
    split, examples = read_split(TaskConfig(name=config.name, path=config.path), ["dev", "train"])
    kept, answers = capped(examples, config.limit), tuple(config.answers)
    return Probe(config.name, split, kept, (), config.shown, config.template, answers)
