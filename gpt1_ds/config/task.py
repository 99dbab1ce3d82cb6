"""What a model is fine-tuned on, and what a pre-trained one is asked without being trained for it. The sections are
optional: a pre-training run has none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

MIXTURE = "mixture"  # the task that is made of several, all in text
TABLE = "table"  # the task whose files, columns and labels this section describes
SENTENCES: Final = "sentences"  # the kind of task that makes a vector of each text
TOKEN_KINDS = ("span", "tagging")  # of which every token is scored
GENERATION: Final = "generation"  # the kind of task whose answer is any text
Kind = Literal["classification", "similarity", "regression", "choice", "sentences", "span", "tagging", "generation"]
TaskKind = Literal["auto", Kind]
ClassMetric = Literal["auto", "accuracy", "f1", "matthews", "pearson", "spearman", "exact_match", "entity_f1"]
Metric = Literal[ClassMetric, "bleu", "rouge1", "rouge2", "rougeLsum"]
LARGEST_ALPHA = 40  # its power of a length is a finite number up to ten million tokens
SHORTEST = 8  # tokens: below that, a pair of texts leaves no token of the texts


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig:
    text: str = ""  # column of the first text; of a choice task, the document. In a file without header: 0, 1, ...
    text2: str = ""  # column of the second text; of a choice task, the question, if there is one
    label: str = ""  # column of the class, the score, or the right choice (its number from 0, or one of task.labels)
    choices: list[str] = field(default_factory=list)  # a column per choice, or one column that holds a list (JSON)
    id: str = ""  # column that names a row in predictions; empty: rows are numbered from 0
    group: str = ""  # metrics are also reported for each value of this column; empty: none


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    beams: int = 1  # beginnings of a text that are kept; 1 takes the likeliest token each time
    length_penalty: Literal["plain", "gnmt"] = "plain"  # of beams: n^alpha, or ((5 + n) / 6)^alpha
    length_alpha: float = 1.0  # of beams: 0 compares log-likelihoods as they are, more prefers longer texts
    early_end: bool = False  # of beams: end as soon as there are as many whole texts as beams
    min_tokens: int = 0  # before the end of a text


@dataclass(frozen=True, kw_only=True)
class PartConfig:
    """One task of a mixture."""

    name: str = ""  # a task of the registry, or `table`
    path: str = ""  # as task.path
    weight: float = 1.0  # by which its rate, which follows from its size, is multiplied
    title: str = ""  # its name in scores and ids, and in sources of a `table`; empty: the name
    prefix: str = ""  # what stands before every source of it, of any kind
    kind: TaskKind = "auto"  # as task.kind
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)  # as task.columns

    @property
    def shown(self) -> str:
        return self.title or self.name


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    name: str = ""  # a task of the registry (cola, rte, race, ...), or `table`: your own files, described below
    path: str = ""  # folder of the files, one file (it is `train`), or datasets:NAME[:SUBSET] of the datasets library
    train: list[str] = field(default_factory=list)  # files below path, or splits of datasets:; empty: the official ones
    dev: list[str] = field(default_factory=list)  # the same; the best epoch is chosen on it
    test: list[str] = field(default_factory=list)  # the same; without labels it is for predictions only
    dev_fraction: float = 0.0  # fraction of train held out as dev without a dev file; equal sources stay together
    halves: bool = False  # without labelled test: a fixed half of dev chooses the epoch, the other one (`half`) reports
    train_examples: int | None = None  # use this many training examples only, the same ones for every seed; null: all
    scored_examples: int | None = None  # of each other split with labels score this many only, the same ones; null: all
    kind: TaskKind = "auto"  # of `table`
    form: Literal["head", "text", "frozen"] = "head"  # what answers: a head, text (T5), a linear model of frozen states
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)  # empty: the official names
    labels: list[str] = field(default_factory=list)  # of `table`: names of classes or choices; empty: those of train
    score_range: list[float] = field(default_factory=lambda: [0.0, 5.0])  # regression: lowest and highest score
    regression: Literal["auto", "classes", "value"] = "auto"  # a score: six classes like GPT-1, or one like BERT
    format: Literal["auto", "csv", "tsv", "jsonl", "json"] = "auto"  # auto: by the file's ending, .txt is tsv
    quoting: Literal["auto", "csv", "none"] = "auto"  # whether "..." encloses a field; auto: csv in .csv, none in .tsv
    header: bool = True  # whether the first row of a `table` file names the columns
    bad_rows: Literal["raise", "skip"] = "raise"  # skip: leave out rows that cannot be read, and say how many
    answer: Literal["all", "labelled"] = "all"  # splits that the best epoch answers; labelled: none without labels
    metric: Metric = "auto"  # chooses the best epoch
    pooling: Literal["mean", "cls", "max"] = "mean"  # sentences: what of its states is a sentence's vector
    loss: Literal["nli", "triplet", "cosine", "ranking"] = "nli"  # sentences: what trains the vectors
    margin: float = 1.0  # triplet: by how much the contradiction is to be further away than the entailed text
    group: int = 16  # ranking: consecutive examples whose second texts are one another's wrong answers
    sts: str = ""  # sentences: folder (STS-B) or file of scored pairs that vectors are judged by; cosine may do without
    lm_coefficient: float = 0.5  # weight of the language-model loss on the task's own text; bidirectional models: 0
    head_dropout: float = 0.1  # fraction of the extracted state dropped before the task's head
    label_smoothing: float = 0.0  # fraction of the right class's target spread over all of them; never in evaluations
    transfer_layers: int | None = None  # blocks taken from init_from; -1: nothing, 0: embeddings only, null: all
    frozen_layers: int | None = None  # the embeddings and so many first blocks stay as they are; null: none does
    max_length: int | None = None  # tokens of a sequence, its three special ones included; null: the model's context
    too_long: Literal["cut", "raise"] = "cut"  # what becomes of a longer text; spans and tags never cut one
    prefix: str = ""  # generation: what stands before every source, like "summarize: "
    mixture: list[PartConfig] = field(default_factory=list)  # of name=mixture: tasks that are learned together, in text
    mixture_limit: int | None = None  # examples of a task that its rate counts at most (K of T5); null: all
    mixture_temperature: float = 1.0  # rates are size^(1 / this): 1 by size, more towards equal ones
    target_length: int | None = None  # generation: tokens of a text to write; null: max_length, of one stack half
    decoding: DecodingConfig = field(default_factory=DecodingConfig)  # generation: how a text is written
    decoded_examples: int | None = 256  # generation: of dev so many are written at each epoch; null: all
    stride: int = 128  # span: tokens from the begin of one row of a long context to that of the next
    tokenizer: str | None = None  # folder of a tokenizer, to start from nothing; null: that of checkpoint.init_from

    @property
    def loss_in_words(self) -> str:
        """Returns which losses a training step adds up."""
        language = f" + {self.lm_coefficient:g} x the language model's on the same texts (task.lm_coefficient)"
        return f"the task's loss{language if self.lm_coefficient else ''}"

    @property
    def makes_vectors(self) -> bool:
        """Returns whether a vector of each text is wanted, and no answer."""
        return self.kind == "sentences"

    def problems(self) -> Iterator[str]:
        if not self.name:
            yield f"task.name is empty; add a preset like -c finetune/cola, or set task.name={TABLE} for your own files"
        yield from self._mixture_problems()
        if not self.path and self.name != MIXTURE:
            yield "task.path is empty; name the folder that holds the task's files"
        if self.name == TABLE:
            yield from self._table_problems()
        elif self.kind not in ("auto", SENTENCES) or self.labels:
            yield f"task.kind and task.labels describe task.name={TABLE}; {self.name} has its own: leave them out"
        if self.makes_vectors:
            yield from self._sentence_problems()
        if not 0 <= self.dev_fraction < 1:
            yield f"task.dev_fraction={self.dev_fraction} must be in [0, 1)"
        for key in ("train_examples", "scored_examples"):
            if (count := getattr(self, key)) is not None and count < 1:
                yield f"task.{key}={count} must be at least 1; leave it out to use all"
        if not self.lm_coefficient >= 0:
            yield f"task.lm_coefficient={self.lm_coefficient} must be 0 (none) or more"
        if not 0 <= self.head_dropout < 1:
            yield f"task.head_dropout={self.head_dropout} must be in [0, 1)"
        yield from self._smoothing_problems()
        if self.transfer_layers is not None and self.transfer_layers < -1:
            yield f"task.transfer_layers={self.transfer_layers} must be -1 (nothing), 0 (embeddings only) or more"
        if self.frozen_layers is not None and self.frozen_layers < 0:
            yield f"task.frozen_layers={self.frozen_layers} must be 0 (the embeddings) or more; leave it out for none"
        if self.max_length is not None and self.max_length < SHORTEST:
            yield f"task.max_length={self.max_length} is too short for a pair of texts; use at least {SHORTEST}"
        yield from self._generation_problems()
        if self.stride < 1:
            yield f"task.stride={self.stride} must be at least 1"
        if len(self.score_range) != 2 or not self.score_range[0] < self.score_range[1]:
            yield f"task.score_range={self.score_range} must be two numbers, the lower one first, like [0,5]"
        if self.form != "head" and self.makes_vectors:
            yield f"task.form={self.form} answers a task, task.kind={SENTENCES} makes vectors; leave one of them out"
        if self.form == "text" and self.regression != "auto":
            yield f"task.regression={self.regression} needs task.form=head; in text a score is a number: leave it out"
        for key in ("labels", "train", "dev", "test"):
            names = getattr(self, key)
            if len(set(names)) < len(names):
                yield f"task.{key}={names} names something twice; keep one of each"

    def _mixture_problems(self) -> Iterator[str]:
        if (self.name == MIXTURE) != bool(self.mixture):
            yield f"task.mixture belongs to task.name={MIXTURE}, and to no other; name its tasks, or leave it out"
        titles = [part.shown for part in self.mixture]
        for title in dict.fromkeys(title for title in titles if titles.count(title) > 1):
            yield f"task.mixture: {title} is there {titles.count(title)} times; keep one of it, or give each a title"
        for part in self.mixture:
            if not part.name or not part.path:
                yield f"task.mixture: {part.shown or part.path or 'a task'} needs a name and a path"
            if not 0 < part.weight < math.inf:
                yield f"task.mixture: weight={part.weight} of {part.shown} must be above 0; leave a task out instead"
        if self.mixture and self.path:
            yield f"task.path={self.path}: each task of task.mixture has its own; leave it out"
        if self.mixture_limit is not None and self.mixture_limit < 1:
            yield f"task.mixture_limit={self.mixture_limit} must be at least 1; leave it out for no limit"
        if not 1 <= self.mixture_temperature < math.inf:
            yield f"task.mixture_temperature={self.mixture_temperature} must be 1 or more; 1 draws by size"

    def part(self, of: PartConfig) -> TaskConfig:
        """Returns the section of one task of the mixture alone: it shares all that it does not say itself."""
        alone = replace(self, name=of.name, path=of.path, kind=of.kind, columns=of.columns, prefix=of.prefix)
        return replace(alone, mixture=[], metric="auto")

    def _generation_problems(self) -> Iterator[str]:
        for key in ("target_length", "decoded_examples"):
            if (count := getattr(self, key)) is not None and count < 1:
                yield f"task.{key}={count} must be at least 1; leave it out, or write null for no limit"
        decoding = self.decoding
        if decoding.beams < 1:
            yield f"task.decoding.beams={decoding.beams} must be at least 1; 1 chooses token by token"
        of_beams = (decoding.length_penalty, decoding.length_alpha, decoding.early_end)
        if decoding.beams == 1 and of_beams != ("plain", 1.0, False):
            yield "task.decoding.beams=1 must be 2 or more for length_penalty, length_alpha and early_end"
        if not -LARGEST_ALPHA <= decoding.length_alpha <= LARGEST_ALPHA:
            yield (
                f"task.decoding.length_alpha={decoding.length_alpha} must be a number from {-LARGEST_ALPHA} to "
                f"{LARGEST_ALPHA}; 0 compares texts as they are"
            )
        if not 0 <= decoding.min_tokens < (self.target_length or math.inf):
            yield (
                f"task.decoding.min_tokens={decoding.min_tokens} must be 0 or more, and below "
                f"task.target_length={self.target_length}"
            )

    def _smoothing_problems(self) -> Iterator[str]:
        given = f"task.label_smoothing={self.label_smoothing}"
        if not 0 <= self.label_smoothing < 1:
            yield f"{given} must be in [0, 1); use 0 for none, or 0.1"
        elif self.label_smoothing and self.form == "text":
            yield f"{given} smooths classes, task.form=text writes tokens; use train.label_smoothing"
        elif self.label_smoothing and self.form == "frozen":
            yield f"{given} smooths what a head learns, task.form=frozen has none; leave it out"
        elif self.label_smoothing and self.makes_vectors and self.loss != "nli":
            yield f"{given} smooths classes, task.loss={self.loss} has none; leave it out"

    def _sentence_problems(self) -> Iterator[str]:
        if not self.margin > 0:
            yield f"task.margin={self.margin} must be above 0"
        if self.group < 2:
            yield f"task.group={self.group} must be at least 2: an example alone has no wrong answers"
        if not self.sts and self.loss != "cosine":
            yield f"task.sts is empty; name the scored pairs (STS-B) that judge the vectors of task.loss={self.loss}"
        if self.dev_fraction and self.sts:
            yield f"task.dev_fraction={self.dev_fraction}: the scored pairs of task.sts are dev; leave it out"

    def _table_problems(self) -> Iterator[str]:
        columns, choices = self.columns, self.columns.choices
        if self.kind == "auto":
            yield f"task.kind is needed for task.name={TABLE}; {', '.join(get_args(Kind))}"
        if self.kind in (*TOKEN_KINDS, GENERATION):  # whose columns have names
            return
        if not columns.text:
            yield "task.columns.text is empty; name the column of the text"
        if self.kind in ("similarity", SENTENCES) and not columns.text2:
            yield f"task.columns.text2 is empty; task.kind={self.kind} compares two texts"
        if (self.kind == "choice") != bool(choices):
            yield f"task.columns.choices={choices} does not fit task.kind={self.kind}; choice needs it, no other has it"
        if not columns.label:
            yield "task.columns.label is empty; name the column of the label"
        named = [name for name in (columns.text, columns.text2, columns.label, *choices) if name]
        if len(set(named)) < len(named):
            yield f"task.columns names one column twice ({', '.join(named)}); texts, label and choices differ"
        if len(choices) > 1 and self.labels and len(self.labels) != len(choices):
            yield f"task.labels={self.labels} names {len(self.labels)} of {len(choices)} choices; name each, or none"
        if len(self.labels) == 1:
            yield f"task.labels={self.labels} is one class only; name at least two, or leave it out"


@dataclass(frozen=True)
class Scale:
    """A probe's score in figures: (score - chance) / (best - chance), so 0 is guessing and 1 is `best`."""

    metric: str  # the score that is drawn
    best: float
    source: str  # where `best` is from


_TABLE_3 = "GPT-1 fine-tuned, table 3 of the paper"
_TABLE_4 = "GPT-1 fine-tuned, table 4 of the paper"
_ALL = "every question right"
# The paper divides by the state of the art of 2018 and does not print it; these are its own results where it has some.
SCALES = {
    "cola": Scale("matthews", 0.454, _TABLE_4),
    "sst2": Scale("accuracy", 0.913, _TABLE_4),
    "race": Scale("accuracy", 0.590, _TABLE_3),
    "story_cloze": Scale("accuracy", 0.865, _TABLE_3),
    "cosmosqa": Scale("accuracy", 1.0, _ALL),
    "copa": Scale("accuracy", 1.0, _ALL),
    "wsc273": Scale("accuracy", 1.0, _ALL),
    "pdp": Scale("accuracy", 1.0, _ALL),
    "dprd": Scale("accuracy", 1.0, _ALL),
    "blimp": Scale("accuracy", 0.886, "people, Warstadt et al. 2020"),
    "lambada": Scale("accuracy", 1.0, _ALL),
    "next_sentence": Scale("accuracy", 1.0, _ALL),
    "repeat": Scale("log_probability", 0.0, "certainty"),
}
PREFIX = "zero-shot/"  # of a probe's name as a task of eval.json


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    name: str = ""  # cola, sst2, race, story_cloze, cosmosqa, copa, wsc273, pdp, dprd, blimp, lambada, ... (guide)
    path: str = ""  # folder of the official files, or one file; of next_sentence and repeat books, .txt
    known_words: str = ""  # text, .txt: blimp asks only pairs of words that are there twice; empty: all pairs
    limit: int | None = None  # ask this many questions only, the same ones of every checkpoint; null: all
    train_limit: int | None = None  # fit CoLA's threshold on this many training sentences; null: all
    template: str = ""  # ask any task in these words; {text}, {text2}: the example's; an answer follows; empty: none
    answers: list[str] = field(default_factory=list)  # of a template: what may follow, one for each class, in order
    title: str = ""  # its name in results; empty: the name, with a template NAME-template

    @property
    def shown(self) -> str:
        if self.title or not (self.template or self.known_words):
            return self.title or self.name
        return f"{self.name}-template" if self.template else f"{self.name}-known"


def problems(probes: Sequence[ProbeConfig], key: str = "probes") -> Iterator[str]:
    """Yields one line per problem of the whole list, which is that of `key`."""
    names = [probe.shown for probe in probes]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"{key}: {name} is there {names.count(name)} times; keep one of it, or give each a title"
    for probe in probes:
        if probe.template or probe.answers:
            yield from _template_problems(probe, key)
        elif probe.name not in SCALES:
            yield f"{key}: name={probe.name} is no zero-shot probe; choose {', '.join(SCALES)}"
        if probe.known_words and probe.name != "blimp":
            yield f"{key}: known_words={probe.known_words} is for blimp; leave it out of {probe.name}"
        if not probe.path:
            yield f"{key}: {probe.name} has no path; name the folder that holds its files"
        for field_name in ("limit", "train_limit"):
            value = getattr(probe, field_name)
            if value is not None and value < 1:
                yield f"{key}: {field_name}={value} of {probe.name} must be at least 1; leave it out to use all"


def _template_problems(probe: ProbeConfig, key: str) -> Iterator[str]:
    if "{text}" not in probe.template:
        yield f"{key}: template={probe.template!r:.60} of {probe.name} has no {{text}}; write it where the text stands"
    if len(set(probe.answers)) < max(2, len(probe.answers)):
        yield f"{key}: answers={probe.answers} of {probe.name} must be two or more different ones, one for each class"
