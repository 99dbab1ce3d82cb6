"""The known tasks by name: the twelve of the paper, WNLI, SuperGLUE's, spans, tags, texts to write, and `table` for any
other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import TaskConfig
from gpt1_ds.config.task import MIXTURE, SENTENCES, TABLE, TaskKind
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.hub_sets import MNLI_SPLITS
from gpt1_ds.tasks.kinds import (
    KINDS,
    Choice,
    Classification,
    Generation,
    Regression,
    Sentences,
    Similarity,
    Span,
    Tagging,
)
from gpt1_ds.tasks.specs import SUPERGLUE, Names, Spec, files_of_each_split, files_of_splits
from gpt1_ds.tasks.superglue import MULTIRC, RECORD

NLI = ("entailment", "neutral", "contradiction")
NOT_NLI = ("entailment", "not_entailment")
BINARY = ("0", "1")
TRUTH = ("False", "True")
_TEXT: dict[str, Any] = {"task": Generation, "text2": (), "no_label": ()}
COLUMNS: dict[str, Any] = {  # of kinds whose files have columns of their own
    "span": {
        "task": Span,
        "metrics": Span.fitting_metrics,
        "text": (("question",),),
        "text2": ("context",),
        "label": ("answers",),
    },
    "tagging": {
        "task": Tagging,
        "metrics": Tagging.fitting_metrics,
        "text": (("tokens",), ("words",)),
        "text2": (),
        "label": ("tags", "ner_tags", "labels"),
        "no_label": (),
    },
    "generation": {
        **_TEXT,
        "metrics": Generation.fitting_metrics,
        "text": (("source",),),
        "label": ("target", "targets"),
    },
}
_SQUAD = files_of_each_split("{0}-v1.1.json|{0}.json")
SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            name="cola",
            metrics=("matthews", "accuracy"),
            text=(("sentence",),),
            text2=(),
            labels=BINARY,
            aliases={"unacceptable": "0", "acceptable": "1"},
            headerless=(("source", "label", "mark", "sentence"),),
            files=files_of_splits(
                train="train.tsv|raw/in_domain_train.tsv|in_domain_train.tsv",
                dev="dev.tsv|raw/in_domain_dev.tsv+raw/out_of_domain_dev.tsv|in_domain_dev.tsv+out_of_domain_dev.tsv",
                test="test.tsv",
            ),
            submission={"test": "CoLA.tsv"},
        ),
        Spec(
            name="sst2",
            text=(("sentence",),),
            text2=(),
            labels=BINARY,
            aliases={"negative": "0", "positive": "1"},
            headerless=(("sentence", "label"),),
            submission={"test": "SST-2.tsv"},
        ),
        Spec(
            name="snli",
            labels=NLI,
            files=files_of_each_split("snli_1.0_{0}.jsonl|snli_1.0_{0}.txt|{0}.tsv"),
            label=("gold_label", "label"),
        ),
        Spec(
            name="nli",
            labels=NLI,
            aliases=dict(zip("012", NLI, strict=True)),
            label=("gold_label", "label"),
            files=files_of_each_split("{0}.tsv|{0}.csv|{0}.jsonl|{0}.json"),
        ),
        Spec(
            name="mnli",
            labels=NLI,
            label=("gold_label", "label"),
            files=files_of_splits(
                train="train.tsv|multinli_1.0_train.jsonl|multinli_1.0_train.txt",
                dev="dev_matched.tsv|multinli_1.0_dev_matched.jsonl|multinli_1.0_dev_matched.txt",
                dev_mm="dev_mismatched.tsv|multinli_1.0_dev_mismatched.jsonl|multinli_1.0_dev_mismatched.txt",
                test="test_matched.tsv",
                test_mm="test_mismatched.tsv",
                # GLUE's diagnostic set, which has no labels, beside these files, or where GLUE and `data fetch` put it
                test_ax="AX.tsv|diagnostic.tsv|../diagnostic/diagnostic.tsv|../AX/AX.tsv|../ax/test.jsonl",
            ),
            hub=MNLI_SPLITS,
            submission={"test": "MNLI-m.tsv", "test_mm": "MNLI-mm.tsv", "test_ax": "AX.tsv"},
        ),
        Spec(
            name="qnli",
            text=(("question",), ("premise",), ("text_a",)),
            text2=("sentence", "hypothesis", "text_b"),
            labels=NOT_NLI,
            submission={"test": "QNLI.tsv"},
        ),
        Spec(name="rte", labels=NOT_NLI, submission={"test": "RTE.tsv"}),
        Spec(
            name="wnli",
            labels=BINARY,
            aliases=dict(zip(NOT_NLI, "10", strict=True)),
            submission={"test": "WNLI.tsv"},
        ),
        Spec(
            name="scitail",
            labels=("neutral", "entails"),
            aliases={"not_entailment": "neutral", "entailment": "entails"},
            label=("gold_label", "label"),
            headerless=(("premise", "hypothesis", "label"),),
            files=files_of_each_split(
                "tsv_format/scitail_1.0_{0}.tsv|scitail_1.0_{0}.tsv|{0}.tsv|"
                "snli_format/scitail_1.0_{0}.txt|scitail_1.0_{0}.txt"
            ),
        ),
        Spec(
            name="mrpc",
            task=Similarity,
            metrics=("f1", "accuracy"),
            text=(("#1 String",), ("sentence1",)),
            text2=("#2 String", "sentence2"),
            label=("Quality", "label"),
            labels=BINARY,
            aliases={"not_equivalent": "0", "equivalent": "1"},
            files=files_of_splits(
                train="train.tsv|msr_paraphrase_train.txt", dev="dev.tsv", test="test.tsv|msr_paraphrase_test.txt"
            ),
            held_out=(408, 0),  # as many as GLUE's; which ones, only GLUE's list says
            dev_ids=("dev_ids.tsv", "#1 ID", "#2 ID"),
            submission={"test": "MRPC.tsv"},
        ),
        Spec(
            name="qqp",
            task=Similarity,
            metrics=("f1", "accuracy"),
            text=(("question1",), ("text_a",)),
            text2=("question2", "text_b"),
            label=("is_duplicate", "label"),
            labels=BINARY,
            aliases={"not_duplicate": "0", "duplicate": "1"},
            files=files_of_splits(train="train.tsv|quora_duplicate_questions.tsv", dev="dev.tsv", test="test.tsv"),
            has_gaps=True,
            submission={"test": "QQP.tsv"},
        ),
        Spec(
            name="stsb",
            task=Regression,
            metrics=("pearson", "spearman"),
            text=(("sentence1",), ("sentence_A",)),
            text2=("sentence2", "sentence_B"),
            label=("score", "label", "relatedness_score"),
            headerless=(("sentence1", "sentence2", "score"),),
            no_label=("-1", "-1.0"),
            files=files_of_each_split("{0}.tsv|stsb-en-{0}.csv"),
            submission={"test": "STS-B.tsv"},
        ),
        Spec(
            name="race",
            task=Choice,
            text=(("article",),),
            text2=("question",),
            label=("answer",),
            choices=(("options",),),
            group=("group",),
            labels=("A", "B", "C", "D"),
            files=files_of_each_split("{0}/middle+{0}/high|RACE/{0}/middle+RACE/{0}/high|{0}/middle|{0}/high"),
        ),
        Spec(
            name="story_cloze",
            task=Choice,
            text=(tuple(f"InputSentence{n}" for n in range(1, 5)), tuple(f"input_sentence_{n}" for n in range(1, 5))),
            text2=(),
            label=("AnswerRightEnding", "answer_right_ending"),
            choices=(
                ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"),
                ("sentence_quiz1", "sentence_quiz2"),
            ),
            id=("InputStoryid", "story_id"),
            labels=("1", "2"),
            files=files_of_splits(
                train="cloze_test_val__spring2016 - cloze_test_ALL_val.csv",
                test="cloze_test_test__spring2016 - cloze_test_ALL_test.csv",
            ),
            hub={"train": "validation", "test": "test"},
            held_out=(374, 3535999445),  # the authors' own
        ),
        Spec(
            name="cosmosqa",
            task=Choice,
            text=(("context",),),
            text2=("question",),
            choices=(("answer0", "answer1", "answer2", "answer3"),),
            labels=("0", "1", "2", "3"),
            files=files_of_splits(train="train.csv", dev="valid.csv", test="test.jsonl"),
        ),
        Spec(
            name="copa",
            task=Choice,
            text=(("premise",),),
            text2=("question",),
            choices=(("choice1", "choice2"),),
            labels=BINARY,
            aliases={"choice1": "0", "choice2": "1"},
            phrases={"cause": "What was the cause of this?", "effect": "What happened as a result?"},
            source_is_choices=True,
            files=files_of_splits(
                train="train.jsonl|balanced-copa-dev-all.xml|copa-dev.xml",
                dev="val.jsonl",
                test="copa-test.xml|test.jsonl",
            ),
        ),
        Spec(
            name="boolq",
            text=(("passage",),),
            text2=("question",),
            labels=TRUTH,
            aliases={"false": "False", "true": "True"},
            files=SUPERGLUE,
        ),
        Spec(
            name="cb",
            metrics=("accuracy", "f1"),
            labels=("entailment", "contradiction", "neutral"),
            files=SUPERGLUE,
        ),
        Spec(
            name="wic",  # whether the word means the same in both sentences
            text=(("word", "sentence1"),),
            labels=TRUTH,
            aliases={"false": "False", "true": "True"},
            files=SUPERGLUE,
        ),
        Spec(
            name="multirc",  # an answer option is an example, a question a group
            metrics=("f1", "exact_match"),
            text=(("paragraph",),),
            text2=("answer",),
            labels=BINARY,
            aliases={"False": "0", "True": "1"},
            group=("group",),
            files=SUPERGLUE,
            unfold=MULTIRC,
        ),
        Spec(
            name="record",
            **COLUMNS["span"],
            files=SUPERGLUE,
            unfold=RECORD,
        ),
        Spec(
            name="swag",
            task=Choice,
            text=(("sent1",),),
            text2=(),
            begin=("sent2",),  # BERT's second text is a whole sentence
            choices=(("ending0", "ending1", "ending2", "ending3"),),
            id=(),
            labels=("0", "1", "2", "3"),
            files=files_of_splits(train="train.csv", dev="val.csv", test="test.csv"),
        ),
        Spec(
            name="squad",
            **COLUMNS["span"],
            files=_SQUAD,
        ),
        Spec(
            name="squad2",
            **COLUMNS["span"],
            files=files_of_each_split("{0}-v2.0.json|{0}.json"),
        ),
        Spec(
            name="conll2003",
            **COLUMNS["tagging"],
            files=files_of_splits(
                train="eng.train|train.txt|train.conll",
                dev="eng.testa|valid.txt|dev.txt|dev.conll",
                test="eng.testb|test.txt|test.conll",
            ),
        ),
        Spec(
            name="pos",
            **{**COLUMNS["tagging"], "metrics": ("accuracy",), "label": ("tags", "pos_tags", "upos", "pos")},
            files=files_of_each_split("{0}.tsv|{0}.txt|{0}.conll"),
        ),
        Spec(
            name="squad_text",  # the same questions, answered in words
            **{**_TEXT, "text2": ("context",)},
            metrics=("f1", "exact_match"),
            text=(("question",),),
            label=("answers",),
            files=_SQUAD,
        ),
        Spec(
            name="translation",
            **_TEXT,
            metrics=("bleu",),
            text=(("en",), ("source",)),
            label=("de", "target"),
            id=(),
        ),
        Spec(
            name="summarization",  # CNN / Daily Mail
            **_TEXT,
            metrics=("rouge1", "rouge2", "rougeLsum"),
            text=(("article",), ("source",)),
            label=("highlights", "target"),
        ),
        Spec(
            name=MIXTURE,
            **_TEXT,
            metrics=("exact_match", "f1", "bleu", "rouge1", "rouge2", "rougeLsum"),
            text=(("source",),),
            label=("target",),
            id=(),
        ),
        Spec(
            name=TABLE,
            id=(),
            no_label=(),
            files=files_of_each_split("{0}.csv|{0}.tsv|{0}.jsonl|{0}.json|{0}.conll"),
        ),
    )
}


def first_metric(config: TaskConfig) -> str:
    """Returns the metric by which the best epoch is chosen."""
    known = Sentences.fitting_metrics if config.makes_vectors else find_spec(config).metrics
    return known[0] if config.metric == "auto" else config.metric


def kind_of(config: TaskConfig | None) -> TaskKind:
    """Returns the kind of a task; `auto` where there is none, and of a mixture, whose tasks may be of several kinds."""
    if config is None or config.name == MIXTURE:
        return "auto"
    return SENTENCES if config.makes_vectors else find_spec(config).task.kind


def find_spec(config: TaskConfig) -> Spec:
    """Returns the registered description of `config.name`, with what the configuration says of it.

    Raises ConfigError for a name that is not there, and for what does not fit the task.
    """
    if config.name not in SPECS:
        raise ConfigError(f"task.name={config.name} is not known; choose {', '.join(SPECS)}")
    spec, columns = SPECS[config.name], config.columns
    if config.name == TABLE and config.kind != "auto":
        rows = KINDS[config.kind]
        if config.makes_vectors:  # of pairs that have a score or a label
            rows = Regression if config.loss == "cosine" else Classification
        spec = replace(spec, task=rows, metrics=rows.fitting_metrics, labels=tuple(config.labels), text2=())
        spec = replace(spec, **COLUMNS.get(config.kind, {}))
    named: dict[str, Any] = {
        key: (value,) for key in ("text2", "label", "id", "group") if (value := getattr(columns, key))
    }
    if columns.text:
        named["text"] = ((columns.text,),)
    if columns.choices:
        named |= {"choices": (tuple(columns.choices),), "begin": ()}
    if config.form == "text":  # T5 reads the value itself
        named["phrases"] = {}
    spec = replace(spec, **named)
    if spec.task.writes_text:  # a pair of files, whose endings are its columns: train.en and train.de
        pairs = {split: (f"{split}.{spec.text[0][0]}",) for split in ("train", "dev", "test")}
        spec = replace(spec, files={split: (*spec.files.get(split, ()), pairs[split]) for split in pairs})
    if config.metric != "auto":
        task = Sentences if config.makes_vectors else spec.task
        if config.metric not in task.fitting_metrics:
            fitting = ", ".join(task.fitting_metrics)
            raise ConfigError(f"task.metric={config.metric} does not fit a task of kind {task.kind}; choose {fitting}")
        spec = replace(spec, metrics=tuple(dict.fromkeys((config.metric, *spec.metrics))))
    return spec


def class_names(task: Task) -> Names:
    """Returns the names of the classes or choices of `task`, in their order, also where its files number them:
    negative, positive of SST-2.
    """
    aliases = SPECS[task.name].aliases if task.name in SPECS else {}
    words = {number: word for word, number in reversed(list(aliases.items())) if number.isdecimal()}
    return tuple(words.get(label, label) for label in task.labels)
