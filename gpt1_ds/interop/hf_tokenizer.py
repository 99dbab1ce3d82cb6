"""Our tokenizers as `tokenizer.json`, the format of the `tokenizers` library that transformers reads.

**SentencePiece: the same ids for every text.** Spaces stay spaces (our pieces hold them as such), so a genuine U+2581
needs no special case: like every character outside the vocabulary it falls back to its bytes. SentencePiece merges the
pair whose result has the lowest id; `tokenizers` wants a rank for each pair, so a piece's rank goes to each of its
splits (see `_splits`). Text is cut before every space, as our own encoder does, which no piece reaches across.

**The 2018 BPE: nearly the same ids.** Its ftfy and spaCy steps cannot be written in this format; `openai_json` stands
in for them with regular expressions, much closer than transformers' own OpenAIGPTTokenizer, which knows no dashes,
newlines, clitics or titles. Measured against our exact encoder on novels of the 19th century, 100 kB of each:

                                       openai_json   OpenAIGPTTokenizer
    lines alike, 12 novels not seen    99.8 %        81.9 %               of 12,196
    lines alike, 12 novels tuned on    99.4 %        76.7 %               of 9,160
    tokens, 12 novels not seen         273,380       276,457              exact: 273,373
    tokens in other places             0.01 %        not measured         passages of 8 paragraphs

**Byte-level BPE, WordPiece, T5's unigram model and any other tokenizer.json: the file itself**, which the same library
runs here, with the template that it has for a text or a pair of texts. The tokenizer of a model that continues text
puts nothing around it. A SentencePiece model that is neither ours nor T5's has no such form.

Control symbols are declared special, and `split_special_tokens` makes their text in an input ordinary text again. It
does not where there are sentinels, which a text may name, nor in an imported unigram model, which has their names as
pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers import base, json_sections
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.openai_bpe import OpenAIBpe
from gpt1_ds.data.tokenizers.sentencepiece_bpe import SentencePieceBpe, SentencePieceUnigram
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson

UNKNOWN = "<unk>"
OPENAI_SYMBOLS = ("_start_", "_delimiter_", "_classify_", "<eod>")  # the first three are the release's own names
END = "</w>"
TOKENS = {"cls": "cls_token", "separator": "sep_token", "pad": "pad_token", "mask": "mask_token"}  # role -> their key
DIFFERENCE = """The tokenizer comes close to the 2018 original, whose ftfy and spaCy steps cannot be written in
  `tokenizer.json`: on 12 novels (1.2 MB) that it was not tuned on, 99.8 % of the lines get the same ids and 0.01 % of
  the tokens differ (transformers' own `OpenAIGPTTokenizer`: 81.9 % of the lines). Text that ftfy would fix, rare
  abbreviations and emoticons are where it differs; `gpt1_ds.load` encodes exactly."""

# The 2018 pipeline's clean-up: ftfy's straight quotes, text_standardize's dashes, and newlines without blanks around
_REPLACED = (
    *(("\u2014", "-"), ("\u2013", "-"), ("\u2015", "-"), ("\u2026", "..."), ("\u00b4", "'")),
    *(("\u2018", "'"), ("\u2019", "'"), ("\u201c", '"'), ("\u201d", '"')),
)
# What text_standardize puts blanks around; of runs, spaCy leaves only these four kinds together
_PUNCTUATION = r'-+|~+|/+|\|+|[!";?+,)(*\[\]}{_]'
# What spaCy's English rules do to a word, as far as novels need it: titles keep their point, clitics are split off, and
# a point, a colon or a quote is cut off where a word ends or begins
_TITLES = r"mr|mrs|ms|dr|st|jr|sr|prof|rev|gen|col|capt|messrs|mt|gov|sen|rep|co|corp|inc|ltd|vs|a\.m|p\.m|e\.g|i\.e"
_NEGATED = "ai|are|ca|could|dare|did|does|do|had|has|have|is|may|might|must|need|ought|sha|should|was|were|wo|would"
_WORDS = (
    rf"(?<![\w.])(?:{_TITLES}|[a-z])\.(?![\w.])|(?<!\w)(?:{_NEGATED})(?=n'?t(?!\w))|(?<!\w)can(?=not(?!\w))|"
    r"(?<!\w)'(?:em|bout|cos|cause)(?!\w)|(?<!\w)(?:do|go|hav|lov|noth|nuth|someth)in'(?!\w)|(?<!\w)ol'(?!\w)|"
    r"'(?:s|re|ve|ll|d|m)(?!\w)|\.{2,}|(?<=\w|')\.(?=['\s:]|$)|"
    r"(?<!\w)'+|'+(?!\w)|:(?!\d)|=|[%&$#<>`](?!\w)|(?<!\w)[%&$#<>`]"
)


def tokenizer_files(tokenizer: Tokenizer, context: int, plain: bool = False) -> dict[str, Any]:
    """Returns file name -> JSON value of what transformers needs beside the model. With `plain` nothing is put around a
    text, as a model that continues it has seen it. Raises DataError for a kind that this format does not hold.
    """
    if tokenizer.kind not in FORMS:  # sentencepiece's algorithms are more than this format has
        raise DataError(
            f"a tokenizer of the kind {tokenizer.kind} cannot be written as tokenizer.json; take the model's own by "
            "tokenizer import --hf, if it has one"
        )
    contents = FORMS[tokenizer.kind](tokenizer)
    if plain:
        contents["post_processor"] = None
    symbols = {token["id"]: token["content"] for token in contents["added_tokens"]}
    named = {role: symbols[number] for role, number in tokenizer.special_ids.present().items()}
    ends = named["eod"]  # what a text begins after; nothing adds it by itself
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "unk_token": named.get("unknown", ends),  # byte-level vocabularies have none and need none
        "bos_token": ends if plain else named.get("cls", ends),
        "eos_token": ends,
        **{TOKENS[role]: symbol for role, symbol in named.items() if role in TOKENS},
        "additional_special_tokens": [named[role] for role in ("start", "delimiter", "extract") if role in named],
        "split_special_tokens": not tokenizer.special_ids.sentinels,  # which a text may name
        "clean_up_tokenization_spaces": False,
    }
    if contents["model"].get("type") == "WordPiece":
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return {"tokenizer.json": contents, "tokenizer_config.json": config}


def sentencepiece_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns `tokenizer.json` with the ids of a SentencePiece tokenizer of ours."""
    assert isinstance(tokenizer, SentencePieceBpe), tokenizer.kind
    special = {UNKNOWN: tokenizer.unknown_id, **tokenizer.symbols}
    bytes_at = {f"<0x{byte:02X}>": tokenizer.first_byte + byte for byte in range(256)}
    pieces = tokenizer.merged_pieces
    first = tokenizer.first_byte + 256
    vocabulary = {**special, **bytes_at, **{piece: first + number for number, piece in enumerate(pieces)}}
    known = set(pieces)
    merges = [pair for piece in pieces for pair in _splits(piece) if known.issuperset(pair)]
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithNext", "invert": False}
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    model = json_sections.bpe_model(vocabulary, merges, unk_token=UNKNOWN, byte_fallback=True)
    return json_sections.whole_file(special, None, split, decoder, model)


def unigram_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns `tokenizer.json` of a unigram model of ours. A text ends with the end of a document, as T5's do."""
    assert isinstance(tokenizer, SentencePieceUnigram), tokenizer.kind
    special = {UNKNOWN: tokenizer.unknown_id, **tokenizer.symbols}
    last = tokenizer.vocab_size - 1
    special |= {f"<extra_id_{k}>": last - k for k in reversed(range(tokenizer.special_ids.sentinels or 0))}
    splits = [
        {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithNext", "invert": False},
        {"type": "Split", "pattern": _inside_names(tokenizer), "behavior": "MergedWithPrevious", "invert": False},
    ]
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    model = {"type": "Unigram", "unk_id": tokenizer.unknown_id, "vocab": tokenizer.scored, "byte_fallback": True}
    cut = {"type": "Sequence", "pretokenizers": splits}
    around = json_sections.eod_template(special, tokenizer.eod_id)
    return json_sections.whole_file(special, None, cut, decoder, model, around)


def _inside_names(tokenizer: SentencePieceUnigram) -> dict[str, str]:
    """Returns a pattern for the beginning of every name that is no text, such as `<eod>` and `<0x41>`: the library's
    unigram model would take the name for the symbol or byte, SentencePiece does not. Where a name can be cut without
    cutting a piece of text, the pattern ends there, else after its `<`.
    """
    inside = {pair for piece in tokenizer.merged_pieces for pair in pairwise(piece)}
    ends: dict[str, list[str]] = {}
    for name, _ in tokenizer.scored[: tokenizer.first_byte + 256]:
        at = next((at for at in range(1, len(name)) if (name[at - 1], name[at]) not in inside), 1)
        ends.setdefault(name[:at], []).append(name[at:])
    return {"Regex": "|".join(f"{begin}(?={'|'.join(rest)})" for begin, rest in ends.items())}


def openai_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns `tokenizer.json` that comes close to the 2018 pipeline (see DIFFERENCE)."""
    assert isinstance(tokenizer, OpenAIBpe), tokenizer.kind
    special = {UNKNOWN: tokenizer.unknown_id}
    numbers = (tokenizer.start_id, tokenizer.delimiter_id, tokenizer.extract_id, tokenizer.eod_id)
    special.update(zip(OPENAI_SYMBOLS, numbers, strict=True))
    normalizers = [
        *({"type": "Replace", "pattern": {"String": old}, "content": new} for old, new in _REPLACED),
        {"type": "Replace", "pattern": {"Regex": r"\s*\n\s*"}, "content": "\n"},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Lowercase"},
    ]
    cuts = ((r"\n", "Isolated"), (r"[^\S\n]+", "Removed"), (_PUNCTUATION, "Isolated"), (_WORDS, "Isolated"))
    splits = [{"type": "Split", "pattern": {"Regex": cut}, "behavior": how, "invert": False} for cut, how in cuts]
    vocabulary, merges = {**tokenizer.pieces, **special}, list(tokenizer.ranks)
    return json_sections.whole_file(
        special,
        {"type": "Sequence", "normalizers": normalizers},
        {"type": "Sequence", "pretokenizers": splits},
        {"type": "BPEDecoder", "suffix": END},
        json_sections.bpe_model(vocabulary, merges, unk_token=UNKNOWN, end_of_word_suffix=END),
    )


def library_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the file that was imported, its roles declared as symbols."""
    assert isinstance(tokenizer, TokenizerJson), tokenizer.kind
    added = [dict(token) for token in tokenizer.contents.get("added_tokens") or ()]
    known, control = {token["id"] for token in added}, set(tokenizer.special_ids.present().values())
    missing = {tokenizer.names[number]: number for number in sorted(control - known)}
    for token in added:
        token["special"] = token["special"] or token["id"] in control
    return {
        **tokenizer.contents,
        "added_tokens": [*added, *json_sections.whole_file(missing, None, None, None, None)["added_tokens"]],
    }


FORMS: dict[str, Callable[[Tokenizer], dict[str, Any]]] = {
    base.SENTENCEPIECE: sentencepiece_json,
    base.UNIGRAM: unigram_json,
    base.OPENAI: openai_json,
    **dict.fromkeys((base.GPT2, base.WORDPIECE, base.T5, base.TOKENIZER_JSON), library_json),
}


def _splits(piece: str) -> Iterator[tuple[str, str]]:
    """The ways a piece can be made of two, those at a period of it first.

    SentencePiece takes the leftmost of several pairs that make the same piece, `tokenizers` the one with the lower
    rank. It matters only where pairs overlap: X + Y == Y + Z == piece, which makes |X| a period of it. Ranking (X, Y)
    before (Y, Z) is taking the leftmost.
    """
    cuts = sorted(range(1, len(piece)), key=lambda cut: not piece.startswith(piece[cut:]))
    return ((piece[:cut], piece[cut:]) for cut in cuts)
