"""Where the data of the shipped presets, probes and studies comes from: what `data fetch` can be asked for.

A set on the Hugging Face hub becomes a file of JSON lines for each split, with the columns of the hub; classes have
their names. The readers of tasks take these files after the official ones (`registry.SPECS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

OUT = "data"  # the folder in which presets look
SPLITS = {"train": "train", "dev": "validation", "test": "test"}  # ours -> those of the hub
PARQUET = "refs/convert/parquet"  # the hub's own copy of a set that once came with code
EVERY = "*"  # all configurations that there are


@dataclass(frozen=True, kw_only=True)
class DataSet:
    name: str
    licence: str

    @property
    def folder(self) -> str:
        """Returns the name of its folder below `--out`."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class HubSet(DataSet):
    """`splits` maps the stem of a file to the hub's split. Of several configurations each has a file of its own where
    the stem holds {config}; else they are joined, and the column `group` names them.
    """

    hub: str
    configs: tuple[str, ...] = ("default",)
    splits: Mapping[str, str] = field(default_factory=lambda: SPLITS)
    columns: Mapping[str, str] = field(default_factory=dict)  # the hub's names -> those that the reader knows
    revision: str | None = None  # a branch; none: the main one


@dataclass(frozen=True, kw_only=True)
class WebSet(DataSet):
    """`files` maps a name to (address of one version, sha256)."""

    files: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class HandSet(DataSet):
    """A data set that nobody may hand on. `way` says how a person gets it."""

    way: str


def _glue(task: str, licence: str, splits: Mapping[str, str] = SPLITS) -> HubSet:
    return HubSet(name=f"glue/{task}", hub="nyu-mll/glue", configs=(task,), splits=splits, licence=licence)


def _superglue(task: str, licence: str) -> HubSet:
    return HubSet(name=task, hub="aps/super_glue", configs=(task,), licence=licence)


MNLI_SPLITS = {
    **{"train": "train", "dev": "validation_matched", "dev_mm": "validation_mismatched"},
    **{"test": "test_matched", "test_mm": "test_mismatched"},
}
_PUBLISHED = {"train": "train", "dev": "validation"}  # test is kept by its authors
_SNLI_TERMS, _MNLI_TERMS = "CC BY-SA 4.0", "OANC, CC BY 3.0 and CC BY-SA 3.0, by the text's source"
_STSB_TERMS = "scores CC BY-SA 4.0; each source of texts has its own terms"
_WINOGRAD = "https://raw.githubusercontent.com/vid-koci/bert-commonsense/72486e3223baa48b843bd6f39447f1937674024e/data"

SETS = {
    one.name: one
    for one in (
        _glue("cola", "none stated; excerpts of published works, for research"),
        _glue("sst2", "none stated; film reviews of Rotten Tomatoes"),
        _glue("mrpc", "the terms of Microsoft Research's Paraphrase Corpus"),
        _glue("qqp", "Quora's terms of service, for non-commercial use"),
        _glue("stsb", _STSB_TERMS),
        _glue("mnli", _MNLI_TERMS, MNLI_SPLITS),
        _glue("ax", "none stated; GLUE's diagnostic set, answers with its server", {"test": "test"}),
        _glue("qnli", "CC BY-SA 4.0, as SQuAD"),
        _glue("rte", "none stated"),
        _glue("wnli", "CC BY 4.0, as the Winograd schemas"),
        HubSet(
            name="sst2_sentences",  # whole sentences, labels of test
            hub="SetFit/sst2",
            columns={"text": "sentence"},
            licence="none stated; film reviews of Rotten Tomatoes",
        ),
        HubSet(
            name="stsb_labelled",  # labels of test, which GLUE keeps
            hub="mteb/stsbenchmark-sts",
            licence=_STSB_TERMS,
        ),
        HubSet(name="snli", hub="stanfordnlp/snli", configs=("plain_text",), licence=_SNLI_TERMS),
        HubSet(
            name="nli",  # SNLI and MNLI, one after the other
            hub="sentence-transformers/all-nli",
            configs=("pair-class",),
            splits={"train": "train", "dev": "dev", "test": "test"},
            licence=f"SNLI: {_SNLI_TERMS}; MNLI: {_MNLI_TERMS}",
        ),
        HubSet(
            name="scitail",
            hub="allenai/scitail",
            configs=("tsv_format",),
            licence="Apache-2.0, as its authors' repository",
        ),
        HubSet(
            name="race",
            hub="ehovy/race",
            configs=("middle", "high"),
            licence="for non-commercial research only",
        ),
        _superglue("copa", "BSD 2-Clause"),
        _superglue("boolq", "CC BY-SA 3.0"),
        _superglue("cb", "none stated, for research"),
        _superglue("wic", "CC BY-NC 4.0"),
        _superglue("multirc", "none stated, for research"),
        _superglue("record", "none stated; news of CNN and the Daily Mail"),
        HubSet(name="swag", hub="allenai/swag", configs=("regular",), licence="MIT"),
        HubSet(name="cosmosqa", hub="allenai/cosmos_qa", revision=PARQUET, licence="CC BY 4.0"),
        HubSet(
            name="squad",
            hub="rajpurkar/squad",
            configs=("plain_text",),
            splits=_PUBLISHED,
            licence="CC BY-SA 4.0",
        ),
        HubSet(
            name="squad2",
            hub="rajpurkar/squad_v2",
            configs=("squad_v2",),
            splits=_PUBLISHED,
            licence="CC BY-SA 4.0",
        ),
        HubSet(
            name="translation/multi30k",
            hub="bentrevett/multi30k",
            licence="for research, non-commercial; captions of Flickr",
        ),
        HubSet(
            name="summarization/cnn_dailymail",
            hub="abisee/cnn_dailymail",
            configs=("3.0.0",),
            licence="Apache-2.0; articles of CNN and the Daily Mail",
        ),
        HubSet(
            name="conll2003",
            hub="eriktks/conll2003",
            configs=("conll2003",),
            columns={"ner_tags": "tags"},
            revision=PARQUET,
            licence="the terms of Reuters' corpus RCV1, for research",
        ),
        HubSet(
            name="pos",  # the English web treebank
            hub="universal-dependencies/universal_dependencies",
            configs=("en_ewt",),
            columns={"upos": "tags"},
            revision=PARQUET,
            licence="CC BY-SA 4.0",
        ),
        HubSet(
            name="blimp",
            hub="nyu-mll/blimp",
            configs=(EVERY,),
            splits={"{config}": "train"},
            columns={"pair_id": "pairID"},
            licence="CC BY 4.0",
        ),
        HubSet(
            name="lambada",
            hub="EleutherAI/lambada_openai",
            splits={"lambada_test": "test"},
            licence="CC BY 4.0; OpenAI's edition of the text: MIT",
        ),
        WebSet(
            name="winograd",
            files={
                "wsc273.txt": (
                    f"{_WINOGRAD}/wsc273.txt",
                    "43103428d77df28b1bb37156eaf3c43a954a02b5dc7ff72453f5c54abf394bad",
                ),
                "PDP.txt": (
                    f"{_WINOGRAD}/PDP.txt",
                    "8dce1517ccdbe79c1f411e4a4fd7ade2091a955bc83ebe5c6fb4150e84c83aa9",
                ),
            },
            licence="WSC273: CC BY 4.0; PDP: none stated",
        ),
        HandSet(
            name="story_cloze",
            licence="by agreement with its authors",
            way="its authors ask for a form, https://cs.rochester.edu/nlp/rocstories; put their two CSV files of 2016",
        ),
    )
}


def way_to(path: str | Path, task: str = "") -> str:
    """Returns what to add to the message that nothing usable is at `path`: the command that makes it, or that the
    folder is called like that of another task than `task`; empty where neither is known.
    """
    path = Path(path)
    found = next((one for one in SETS.values() if one.folder == path.name), None)
    if found is None:
        return ""
    if task and task.removesuffix("_text") not in found.name:  # the same data, answered in words
        return f"; {path.name} is called like the folder of {found.name}: does task.name={task} fit?"
    out = "" if str(path.parent) == OUT else f" --out {quote(str(path.parent))}"
    return f"; gpt1-ds data fetch {found.name}{out} makes it"
