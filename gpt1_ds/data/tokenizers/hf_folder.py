"""The tokenizer of a Hugging Face folder as a `tokenizer.json`, by transformers' own converters; and such a folder from
the hub.

Whatever the folder has, a tokenizer.json or the files of an older version, each setting and each added token then means
what it means there. No code of the folder is run and no path that it names is opened: what transformers is given is a
folder of copies, whose settings are switches, numbers and symbols.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError, WorldError, one_line
from gpt1_ds.common.files import naming, scratch_folder
from gpt1_ds.common.remote import asked
from gpt1_ds.data.tokenizers import json_file, library, roles, sentencepiece_model, t5_unigram
from gpt1_ds.data.tokenizers.base import published_json
from gpt1_ds.data.tokenizers.json_file import FILE

CONFIG, MODEL_CONFIG = "tokenizer_config.json", "config.json"
VOCABULARIES = {  # files that each hold a vocabulary -> the class of a folder that names none
    FILE: "PreTrainedTokenizerFast",
    t5_unigram.PUBLISHED: "T5Tokenizer",
    "vocab.json": "GPT2Tokenizer",
    "vocab.txt": "BertTokenizer",
}
OTHERS = ("merges.txt", "special_tokens_map.json", "added_tokens.json")
SETTINGS = (CONFIG, MODEL_CONFIG)
ANY_CLASS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # which read a tokenizer.json as it is
MAX_BYTES = 32 << 20  # of a vocabulary; published ones have at most 5 MB
MOST_ADDED = 100_000  # tokens
_SYMBOLS = ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens")
_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_INSTALL = "pip install 'gpt1-ds[hub]'"


def convert(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns (the contents of its tokenizer.json, role -> symbol). Raises DataError in one line for what transformers
    cannot read, and without transformers for all but a tokenizer.json that is used as it is.
    """
    files = [name for name in VOCABULARIES if (folder / name).exists()]
    if not files or (files == ["vocab.json"] and not (folder / "merges.txt").exists()):
        raise DataError(
            f"--hf={folder}: holds none of {FILE}, spiece.model, vocab.json with merges.txt, vocab.txt; name the "
            "folder that save_pretrained of a tokenizer wrote"
        )
    settings = {name: read_json(folder / name) if (folder / name).exists() else {} for name in SETTINGS}
    settings[CONFIG] = _harmless(folder / CONFIG, settings[CONFIG])
    try:
        import transformers
    except ImportError:
        return _as_it_is(folder, files, settings)
    kind, model_type = _class_of(settings), _named(settings[MODEL_CONFIG], "model_type")
    if kind is None and model_type is None:
        kind = _guessed(folder, files[0])
    with scratch_folder() as scratch, _quiet(transformers):
        copies = Path(scratch)
        for name in (*files, *(name for name in OTHERS if (folder / name).exists())):
            _copy(folder / name, copies / name)
        _write(copies / CONFIG, {**settings[CONFIG], **({"tokenizer_class": kind} if kind else {})})
        if model_type:
            _write(copies / MODEL_CONFIG, {"model_type": model_type})
        way_out = f"look at its {CONFIG}, or download it again"
        with library.panics_as_line(f"{folder}: transformers cannot read its tokenizer", way_out):
            theirs = transformers.AutoTokenizer.from_pretrained(scratch, trust_remote_code=False, local_files_only=True)
            backend = getattr(theirs, "backend_tokenizer", None)
            symbols = {key: str(value) for key, value in theirs.special_tokens_map.items() if isinstance(value, str)}
            text = None if backend is None else backend.to_str()
    if text is None:
        raise DataError(
            f"{folder}: {type(theirs).__name__} is a program of transformers, not a {FILE}; use one that the library "
            "tokenizers runs"
        )
    contents = {**json.loads(text), "truncation": None, "padding": None}
    said = {role: symbols[f"{key}_token"] for key, role in roles.NAMES.items() if f"{key}_token" in symbols}
    return json_file.checked(folder / files[0], contents), {**roles.said(folder), **said}


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a file. Raises DataError."""
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: {path.stat().st_size} bytes is too large for this file; download it again")
    with naming(path):
        value = published_json(path, path.read_bytes())
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object; download it again")
    return value


def _as_it_is(
    folder: Path, files: list[str], settings: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the folder's tokenizer.json, where transformers would change nothing of it."""
    said, kind = roles.said(folder), _class_of(settings)
    any_class = kind in ANY_CLASS or (kind is None and not settings[MODEL_CONFIG])
    if FILE in files and any_class and not (folder / "added_tokens.json").exists():
        contents = json_file.read(folder / FILE)
        if set(said.values()) <= json_file.vocabulary_of(folder / FILE, contents).keys():
            return contents, said
    options = "--gpt2, --wordpiece and --sentencepiece do without"
    raise DataError(f"{folder}: transformers converts this tokenizer, and it is not installed: {_INSTALL} ({options})")


def _harmless(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the switches, numbers and symbols of a tokenizer_config.json; what else it may hold are names of files
    and of code, and templates of chats. Raises DataError for one that is of no possible type.
    """
    switches = {name: value for name, value in config.items() if value is None or isinstance(value, bool | int | float)}
    symbols = {name: value for name, value in config.items() if name.endswith("_token") and _is_symbol(value)}
    lists = {name: config[name] for name in _SYMBOLS if isinstance(config.get(name), list | dict)}
    if any(len(listed) > MOST_ADDED for listed in lists.values()):
        raise DataError(f"{path}: adds more than {MOST_ADDED} tokens; put them into the vocabulary")
    extra = config.get("extra_ids", 0)
    if type(extra) is not int or not 0 <= extra <= MOST_ADDED:
        raise DataError(f"{path}: extra_ids is {config['extra_ids']!r:.40}; it must be from 0 to {MOST_ADDED}")
    for name in ("do_lower_case", "tokenize_chinese_chars", "add_prefix_space"):
        if name in switches and switches[name] is None:  # as transformers writes what is not set
            del switches[name]
        elif not isinstance(config.get(name, False), bool):
            raise DataError(f"{path}: {name} is {config[name]!r:.40}; it must be true or false")
    kind = _named(config)
    return {**switches, **symbols, **lists, **({"tokenizer_class": kind} if kind else {})}


def _is_symbol(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str))


def _named(values: Mapping[str, Any], key: str = "tokenizer_class") -> str | None:
    """Returns the name of a class or of a model type, if it is one."""
    name = values.get(key)
    return name if isinstance(name, str) and re.fullmatch(r"[\w-]+", name) else None


def _class_of(settings: Mapping[str, dict[str, Any]]) -> str | None:
    """Returns the tokenizer's class, which older folders name in the model's configuration: a RoBERTa may have a
    BERT's.
    """
    return _named(settings[CONFIG]) or _named(settings[MODEL_CONFIG])


def _guessed(folder: Path, file: str) -> str:
    """Returns the class for the vocabulary `file` of a folder that names none. RoBERTa's begins with its own symbols.
    Raises DataError for a SentencePiece model that is not like T5's.
    """
    if file == t5_unigram.PUBLISHED and t5_unigram.model_of_file(folder / file, (folder / file).read_bytes()) is None:
        raise DataError(
            f"{folder / file}: not a model like T5's, and nothing names its class; import it by --sentencepiece"
        )
    if file == "vocab.json" and read_json(folder / file).keys() >= set(_ROBERTA):
        return "RobertaTokenizer"
    return VOCABULARIES[file]


def _copy(source: Path, target: Path) -> None:
    most = json_file.MAX_BYTES if source.name == FILE else MAX_BYTES
    if not source.is_file():
        raise DataError(f"{source}: not a file; download it again")
    if source.stat().st_size > most:
        raise DataError(f"{source}: {source.stat().st_size} bytes is too large for a vocabulary; download it again")
    if source.name == FILE:  # what a library would not survive is refused before
        json_file.vocabulary_of(source, json_file.read(source))
    elif source.suffix == ".json":
        values = read_json(source)
        if source.name == "added_tokens.json" and len(values) > MOST_ADDED:
            raise DataError(f"{source}: adds more than {MOST_ADDED} tokens; put them into the vocabulary")
    elif source.suffix == ".model":
        sentencepiece_model.load(source, source.read_bytes())
    with naming(source):
        shutil.copyfile(source, target)


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values), errors="surrogatepass", encoding="utf-8")


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without the library's warnings; they speak of code that calls it."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")


def download(name: str) -> Path:
    """Returns the folder in the cache (HF_HOME) with the files of the repository `name`.

    Raises DataError for one that is missing, gated or has no tokenizer.json, WorldError where the hub is silent.
    """
    from huggingface_hub import errors, hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    folder = None
    for file in FILES:
        try:
            found = asked(partial(hf_hub_download, name, file))
            folder = Path(found).parent
        except errors.GatedRepoError:
            raise DataError(f"--hf {name}: is gated; ask for access on its page, and set HF_TOKEN") from None
        except (errors.RepositoryNotFoundError, errors.HFValidationError):
            raise DataError(
                f"--hf {name}: neither a folder nor a repository on the hub; look at the name, or set HF_TOKEN to a "
                "token that may read it"
            ) from None
        except errors.LocalEntryNotFoundError as error:
            from huggingface_hub.constants import HF_HUB_OFFLINE

            if file != FILES[0]:
                continue
            if HF_HUB_OFFLINE:
                raise DataError(f"--hf {name}: HF_HUB_OFFLINE is set, and it is not in the cache; unset it") from None
            raise WorldError(f"--hf {name}: the hub does not answer ({one_line(error)}); run again later") from None
        except errors.EntryNotFoundError:
            if file == FILES[0]:
                raise DataError(f"--hf {name}: has no {file}; download its files and name their folder") from None
        except OSError as error:
            raise WorldError(f"--hf {name}: the hub does not answer ({one_line(error)}); run again later") from None
    assert folder is not None, "the first file is there"
    return folder
