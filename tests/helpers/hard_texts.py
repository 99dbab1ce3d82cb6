"""Texts that tokenizers get wrong, and the places where a text may be cut."""

from __future__ import annotations

import itertools
import unicodedata

from hypothesis import strategies as st

from gpt1_ds.data.tokenizers.base import Tokenizer
from tests.helpers.shared_data import shared_data

SYMBOLS = (
    "<|endoftext|> <s></s> <pad> <unk> <mask> <start><delimiter> <extract> <cls> <sep> <eod> [CLS] [SEP] [PAD] [UNK] "
    "a[MASK]b [unused1] ##ing madeupword0000 <0x0A>"
)
HARD = [
    "",
    " ",
    "\n",
    "   leading, trailing and   several spaces   ",
    "\n\n a\n",
    "two\n\nthree\n\n\nfour \n five\t\n\n",
    "carriage\r\nreturn\r and \t tab \x0b\x0c \x1c\x1d\x1e\x1f \x85 end\r\n",
    "a" + " " * 1000 + "b" + "\n" * 999 + " c" + "\t" * 50 + "d",
    "white\xa0space\u1680\u2000\u2003 \u2028\u2029\u202f\u205f\u3000\u200b\ufeff end\u3000",
    "nul \0 and a\0b \x01\x1f\x7f control \ufffd",
    SYMBOLS,
    "e\u0301 n\u0303 a\u0315\u0300\u05ae\u0062 \u0344 \u1e9b\u0323 \u200d\u200b \u034f",
    unicodedata.normalize("NFD", "Ünïcödé Ångström ñandú Việt Nam 한국어"),
    unicodedata.normalize("NFC", "Ünïcödé Ångström ñandú Việt Nam 한국어"),
    "İstanbul ΌΔΟΣ ΣΑΣ ß ẞ ŉ Ǆ ﬃ \u210c ½ Ⅷ ٣ ३ ² ª",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\u2764\ufe0f \U0010ffff \uffff",
    "汉字漢字 かな カナ 한국어 \U00020000\U0002ceb0 \uf900 العربية עִבְרִית हिन्दी ไทย",
    "don't I'LL we've 's 'S 'tis o'clock ''s it's'd rock'n'roll",
    "a.b,c;d:e!f?g(h)[i]{j}<k>|l~m`n^o_p$q+r=s-t\\u/v*w&x%y#z@ «»\u201c\u201d\u2018\u2019\u2014\u2013…¡¿§€£",
    "1234567890 3.14 1,000,000 1e-5 0x1F 12th",
    "x" * 99 + " " + "y" * 100 + " " + "z" * 101 + " " + "é" * 100 + " " + "w" * 5000,
    "the" * 34 + "!" + "ab" * 2000,
    "\ue000\U000f0000 private \u0378 unassigned \u2047\u2581a \u2581",
]
TEXTS = st.text(st.characters(codec="utf-8")) | st.text(
    st.sampled_from(" \n\t\r\x0b\x85\xa0\u3000\u2581\u0301abKLéß'.,[]<|>#12漢\0\x1c\U0001f600\u200d")
)
CUTS = st.lists(st.integers(0, 100), max_size=3)


def encode_in_parts(tokenizer: Tokenizer, text: str, places: list[int]) -> list[int]:
    """The ids of `text`, cut at some of the places where a text may be cut."""
    allowed = [
        at
        for at in range(1, len(text))
        if (text[at - 1] == "\n" and not text[at].isspace()) or (text[at] == " " and not text[at - 1].isspace())
    ]
    cuts = sorted({allowed[place % len(allowed)] for place in places}) if allowed else []
    borders = [0, *cuts, len(text)]
    return [
        number
        for start, stop in itertools.pairwise(borders)
        for number in tokenizer.encode_part(text[start:stop], text[start - 1 : start], stop < len(text)).tolist()
    ]


def every_character() -> str:
    """Each character to U+30FF, and every seventh one to U+2FFFF, within words and between them."""
    codes = (code for code in range(0x30000) if not 0xD800 <= code < 0xE000 and (code < 0x3100 or code % 7 == 0))
    return "".join(f"a{letter} {letter}{letter}b" for letter in map(chr, codes))


def twelve_novels() -> list[str]:
    """The smallest ones. Skips the test where they are not there."""
    novels = sorted(shared_data("books").glob("*.txt"), key=lambda path: path.stat().st_size)[:12]
    return [novel.read_text("utf-8") for novel in novels]


def lines_of(novels: list[str]) -> list[str]:
    lines = [line for novel in novels for line in novel.splitlines(keepends=True)]
    assert len(lines) > 40_000
    return lines
