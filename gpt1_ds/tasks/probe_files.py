"""The files of five probes: minimal pairs of BLiMP (which of two sentences is English?), passages of LAMBADA (what is
the last word?), Winograd schemas (whom does the pronoun mean?), sentences of a book (which one comes next?), and
passages of a book (what does a model make of one that it has just read?).

BLiMP (Warstadt et al. 2020): a file of JSON lines holds the pairs of one paradigm (UID), of which there are 67, in 12
phenomena. Its words were chosen for adults' models. BabyLM (Warstadt et al. 2023) asks only pairs whose words all occur
at least twice in the text that models may read; so does `known_words`, which counts words in lower case.

LAMBADA (Paperno et al. 2016): the last word of a passage needs more than its last sentence.

Winograd schemas (WSC273, PDP-60; DPRD, Rahman and Ng 2012): blocks of four lines between blank lines: the sentence, the
mark that stands in the pronoun's place, the candidates with commas between them, and the right one. The mark is [MASK],
or in DPRD the pronoun itself, where its first place counts. For a possessive pronoun stands the candidate with 's.
Where the mark is [MASK], nobody knows which pronoun it was.

Next sentence: sentences are those of `data build --sentences` (data/splitter.py), hard-wrapped lines joined. Both
candidates follow another sentence within a paragraph, so that line ends do not distinguish them. The wrong one is from
the same book, so that names and style do not either, has nearly the same length in letters, and does not come from the
neighbourhood of the question. Which sentences are asked for is a hash of the book.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby, islice, zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.segments import Segment, SourceFile, Unit
from gpt1_ds.data.splitter import sentences
from gpt1_ds.data.windows import key_of, permute
from gpt1_ds.tasks import intervals
from gpt1_ds.tasks.base import Example, Examples
from gpt1_ds.tasks.dev import capped
from gpt1_ds.tasks.formats import TableRow, brief, open_table, open_text, unusable
from gpt1_ds.tasks.hub_sets import way_to
from gpt1_ds.tasks.rows import FEW

PHENOMENON = {"s-selection": "argument_structure"}  # the paper's tables count its two paradigms there
KEYS = ("UID", "linguistics_term", "sentence_good", "sentence_bad")


_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
OFTEN = 2  # times that a word is known from


def known_words(path: Path) -> frozenset[str]:
    """The words, in lower case, that are at least twice in a text or the .txt files of a folder. Raises DataError."""
    files = [path] if path.is_file() else sorted(path.glob("*.txt"))
    if not files:
        raise DataError(f"{path}: holds no .txt file; name the text that the model has read as known_words of blimp")
    counts: Counter[str] = Counter()
    for file in files:
        with open_text(file) as lines:
            for line in lines:
                counts.update(_WORD.findall(line.lower()))
    return frozenset(word for word, count in counts.items() if count >= OFTEN)


def read_pairs(path: Path, limit: int | None = None, words: frozenset[str] | None = None) -> Examples:
    """`texts` are the good and the bad sentence, `group` is the phenomenon, `source` the paradigm; in the order of the
    files' names.

    `path` is one file or the folder of all. With `words` only pairs of these words are there. `limit` takes the same
    number of every paradigm, `limit` together at most. Raises DataError for what is not there or no pair, and for a
    limit that leaves a paradigm out.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))
    if not files:
        raise DataError(f"{path}: holds no .jsonl file; name the folder that holds those of BLiMP" + way_to(path))
    paradigms: dict[str, list[Example]] = {}
    problems = []
    for file in files:
        for row in open_table(file, "jsonl").rows:
            try:
                paradigm, example = _pair(row)
            except ValueError as error:
                problems.append(f"{file} {row.place}: {error}; fix this line")
                continue
            if words is None or words.issuperset(_WORD.findall(" ".join(example.texts).lower())):
                paradigms.setdefault(paradigm, []).append(example)
    DataError.raise_all(problems[:FEW])
    if not paradigms:
        raise DataError(f"{path}: known_words knows the words of no pair; name the text that the model has read")
    if limit is not None and limit < len(paradigms):
        raise DataError(f"probes: limit={limit} of blimp leaves paradigms out; use {len(paradigms)} or more")
    each = None if limit is None else limit // len(paradigms)
    return tuple(example for pairs in paradigms.values() for example in capped(tuple(pairs), each))


def _pair(row: TableRow) -> tuple[str, Example]:
    """(its paradigm, the pair). Raises ValueError with what is wrong with the row."""
    if row.problem:
        raise ValueError(row.problem)
    values = [row.values.get(key) for key in KEYS]
    for key, value in zip(KEYS, values, strict=True):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{key} is no text")
    paradigm, phenomenon, good, bad = (str(value).strip() for value in values)
    number = f"{paradigm} {row.values.get('pairID', row.place)}"
    group = PHENOMENON.get(phenomenon, phenomenon)
    return paradigm, Example(number, (good, bad), label="0", group=group, source=paradigm)


LAMBADA = "lambada"
FILE = "lambada_test.jsonl"  # OpenAI's, with the case and line breaks of the books

Float64s = NDArray[np.float64]


def read_passages(path: Path, limit: int | None = None) -> Examples:
    """`texts` are what comes before the last blank, and the word after it. `path` is the folder of OpenAI's file, or a
    file of JSON lines with `text`. Raises DataError for what is not there, and for passages of one word.
    """
    file = path if path.is_file() else path / FILE
    if not file.is_file():
        raise DataError(
            f"{path}: holds no {FILE}; name the folder that holds it, or a file of JSON lines with text" + way_to(path)
        )
    examples: list[Example] = []
    problems = []
    for number, row in enumerate(open_table(file, "jsonl").rows):
        text = row.values.get("text") if not row.problem else None
        before, _, word = text.strip().rpartition(" ") if isinstance(text, str) else ("", "", "")
        if before.strip():
            examples.append(Example(str(number), (before, word)))
        else:
            problems.append(f"{file} {row.place}: {row.problem or 'text has no two words'}; correct this line")
    DataError.raise_all(problems[:FEW])
    return capped(tuple(examples), limit)


def measured(sums_N: Float64s, likeliest_N: Float64s) -> dict[str, float]:
    """Returns, from the log-probabilities of the words (nats) and whether each token of a word is the likeliest, how
    often greedy decoding gives the word, and the perplexity of a word.
    """
    accuracy = float(likeliest_N.mean())
    low, high = intervals.of_shares([accuracy], [len(sums_N)])
    return {
        **{"accuracy": accuracy, "low": low, "high": high, "chance": 0.0},
        "perplexity": float(np.exp(-sums_N.mean())),
        "examples": len(sums_N),
    }


FILES = {"wsc273": ("wsc273.txt",), "pdp": ("PDP.txt", "pdp.txt"), "dprd": ("test.c.txt",)}
LINES = 4
_ENDS = tuple('.!?"')  # after one of them a sentence begins
_POSSESSIVE = {"my", "your", "his", "its", "our", "their", "whose"}
_AFTER_OBJECT = {  # after one of them "her" is no possessive
    *("a", "an", "the", "to", "for", "of", "in", "on", "at", "by", "with", "from", "into", "about", "off", "up", "out"),
    *("and", "or", "but", "because", "since", "so", "that", "when", "while", "as", "if", "not", "too", "again"),
}
_WITH_VERB = {"made", "make", "makes", "let", "lets", "saw", "see", "sees", "heard", "watched"}  # her gasp
_DETERMINERS = {"The", "A", "An", "My", "His", "Her", "Their", "Our"}  # what else is capital is a name


def read_schemas(name: str, path: Path) -> tuple[Example, ...]:
    """`texts` are what comes before and after the pronoun, and "'s" where it is a possessive one; `label` is the
    number of the right one of `choices`.

    `path` is the file or the folder that it lies in. Raises DataError for what is not there or no schema.
    """
    places = [path / file for file in FILES[name]]
    found = path if path.is_file() else next((place for place in places if place.is_file()), None)
    if found is None:
        raise DataError(
            f"{path}: holds no {' or '.join(FILES[name])}; name the folder that holds the file of {name}" + way_to(path)
        )
    examples, problems = [], []
    for number, (line, block) in enumerate(_blocks(found)):
        try:
            examples.append(_schema(str(number), block))
        except ValueError as error:
            problems.append(f"{found} line {line}: {error}; fix this block")
    DataError.raise_all(problems[:FEW])
    if not examples:
        raise DataError(f"{found}: is empty; it needs at least one block of {LINES} lines")
    return tuple(examples)


def substituted(example: Example, candidate: str) -> tuple[str, str]:
    """(the sentence up to and with `candidate` in the pronoun's place, what follows it)."""
    before, after, *ending = example.texts
    if ending:
        candidate += "'" if candidate.endswith("s") else "'s"
    first, blank, others = candidate.partition(" ")
    if not before or before.endswith(_ENDS):
        first = first[:1].upper() + first[1:]
    elif first in _DETERMINERS:
        first = first.lower()
    return f"{before} {first}{blank}{others}".lstrip(), after


def _blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, its lines) of every block."""
    with open_text(path) as stream:
        lines = [line.strip() for line in stream]
    for filled, block in groupby(enumerate(lines, start=1), key=lambda line: bool(line[1])):
        if filled:
            numbers, texts = zip(*block, strict=True)
            yield numbers[0], list(texts)


def _schema(number: str, block: list[str]) -> Example:
    if len(block) != LINES:
        raise ValueError(f"{len(block)} lines where {LINES} are expected: sentence, pronoun, candidates, answer")
    if problem := next(filter(None, map(unusable, block)), ""):
        raise ValueError(f"this block {problem}")
    sentence, mark, listed, answer = (" ".join(line.split()) for line in block)
    place = re.search(rf"(?<!\w){re.escape(mark)}(?!\w)", sentence)
    if place is None:
        raise ValueError(f"{brief(mark)} is not in the sentence")
    candidates = tuple(candidate.strip() for candidate in listed.split(","))
    if len(set(candidates)) < len(candidates) or len(candidates) < 2 or "" in candidates:
        raise ValueError(f"{brief(listed)} does not name two candidates or more")
    if answer not in candidates:
        raise ValueError(f"{brief(answer)} is none of its candidates")
    before, after = sentence[: place.start()].rstrip(), re.sub("^ (?=[.,;:!?])", "", sentence[place.end() :])
    ending = ("'s",) if _is_possessive(mark.lower(), before, after) else ()
    return Example(number, (before, after, *ending), candidates, str(candidates.index(answer)))


def _is_possessive(pronoun: str, before: str, after: str) -> bool:
    """Whether the pronoun stands for "somebody's". "her" does before a noun: that is guessed from its neighbours."""
    if pronoun != "her":
        return pronoun in _POSSESSIVE
    follows = re.match(r" ([a-z]+)", after)
    precedes = before.rpartition(" ")[2].lower()
    return follows is not None and follows[1] not in _AFTER_OBJECT and precedes not in _WITH_VERB


NEXT_SENTENCE = "next_sentence"
BEFORE = 10  # sentences before a question, at most; as far from it comes no wrong candidate
LETTERS = range(20, 301)  # of a candidate
NEAR = 10  # the wrong candidate is one of so many next shorter and next longer ones,
UNLIKE = 0.1  # whose lengths differ by this share at most


def read_books(path: Path, limit: int | None = None) -> Examples:
    """`texts` are the sentences before, each with the blanks before it; `choices` the true next sentence and another.

    `path` is one book or a folder of .txt files. The questions of all books come in turn; `limit` takes the first ones.
    Raises DataError for what is not there or no text, and where nothing can be asked.
    """
    return _of_books(path, NEXT_SENTENCE, _questions, limit, "with paragraphs of several sentences")


def _of_books(
    path: Path, name: str, asked: Callable[[str, list[str]], Iterator[Example]], limit: int | None, wanted: str
) -> Examples:
    """Returns the first `limit` examples that `asked` makes of books (name, sentences); the books come in turn, in the
    order of a hash of their names. Raises DataError for what is not there, and where nothing can be asked, which says
    what is `wanted`.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.txt"), key=lambda file: key_of(name, file.name))
    if not files:
        raise DataError(f"{path}: holds no .txt file; name a book, or the folder that holds books")
    rounds = zip_longest(*(asked(file.name, _sentences(file)) for file in files))
    found = tuple(islice((one for one in chain.from_iterable(rounds) if one is not None), limit))
    if not found:
        raise DataError(f"{path}: nothing can be asked; {name} needs books {wanted}")
    return found


def _sentences(file: Path) -> list[str]:
    status = file.stat()
    source = SourceFile(str(file), file.name, ".txt", "", status.st_size, status.st_mtime_ns)
    book = Unit(0, 0, (Segment(source, 0, status.st_size),))
    return [piece.text for piece in sentences(read_unit(book, unwrapped=True))]


def _questions(book: str, texts: list[str]) -> Iterator[Example]:
    inside = [n for n in range(1, len(texts)) if texts[n].startswith(" ") and len(texts[n].strip()) in LETTERS]
    inside.sort(key=lambda number: (len(texts[number]), number))
    key = key_of(NEXT_SENTENCE, *texts)
    for rank in permute(np.arange(len(inside)), len(inside), key).tolist():
        number = inside[rank]
        others = _others(texts, number, inside[max(0, rank - NEAR) : rank + NEAR + 1])
        if others:
            wrong = others[key_of(key, number) % len(others)]
            before = tuple(texts[max(0, number - BEFORE) : number])
            yield Example(f"{book} {number}", before, (texts[number].strip(), texts[wrong].strip()), "0")


def _others(texts: Sequence[str], number: int, near: Sequence[int]) -> list[int]:
    """What of `near` may be the wrong candidate for sentence `number`."""
    true = texts[number].strip()
    return [
        other
        for other in near
        if abs(other - number) > BEFORE
        and texts[other].strip() != true
        and abs(len(texts[other].strip()) - len(true)) <= UNLIKE * len(true)
    ]


REPEAT = "repeat"
PASSAGE = 400  # letters at least, which are about 80 words


def read_repeats(path: Path, limit: int | None = None) -> Examples:
    """`texts` are passages of whole sentences, in the order of a hash of the book; the books' come in turn.

    `path` is one book or a folder of .txt files; `limit` takes the first passages. Raises DataError for what is not
    there or no text.
    """
    return _of_books(path, REPEAT, _passages, limit, f"of more than {PASSAGE} letters")


def _passages(book: str, texts: list[str]) -> Iterator[Example]:
    """Each sentence is in one passage at most."""
    passages, here = [], ""
    for text in texts:
        here += text
        if len(here.strip()) >= PASSAGE:
            passages.append(here.strip())
            here = ""
    key = key_of(REPEAT, *texts)
    for number in permute(np.arange(len(passages)), len(passages), key).tolist():
        yield Example(f"{book} {number}", (passages[number],), label="0")
