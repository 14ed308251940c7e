"""The text of a paper that an encoder reads (`paper_text`), and its split into sentences (`sentences`).

    >>> paper_text("A title", "An abstract.")
    'A title[SEP]An abstract.'
    >>> sentence_texts("Smith et al. (2010) used Fig. 2. We found p = 0.05. RESULTS: None.")
    ['Smith et al. (2010) used Fig. 2.', 'We found p = 0.05.', 'RESULTS: None.']

Does not tokenize and does not truncate texts: encoders do, with their own tokenizers. The sentence rules are for
English; for other languages the `sentencex` package alone decides.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from citeweave.core.errors import UserError, choose
from citeweave.corpus.plain_text import clean_text

SEPARATOR = "[SEP]"
"""Placeholder between the parts of a text; an encoder replaces it with its own tokenizer's separator token."""

PARTS = ("title", "abstract", "venue", "authors")

_RECIPE_VERSION = 1


@dataclass(frozen=True, slots=True)
class TextRecipe:
    """How the parts of a paper are joined into one text. Vectors of different recipes must never be compared.

    >>> TextRecipe().hash
    '92eb0cdf42e5'
    >>> TextRecipe(parts=("title", "venue")).hash == TextRecipe().hash
    False
    """

    parts: tuple[str, ...] = ("title", "abstract")
    """Parts of the text, in this order: `title`, `abstract`, `venue`, `authors` (the last two as in SPECTER's ablations).

    A part that the paper lacks is left out together with its separator: a paper without abstract is its title
    alone, one without title its abstract alone, one with neither is the empty text.
    """

    separator: str = SEPARATOR
    """Text between two parts; `[SEP]` is a placeholder for the tokenizer's own separator token."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))  # a recipe read from JSON has a list
        for part in self.parts:
            choose(part, PARTS, "text recipe part")
        if not self.parts or len(set(self.parts)) < len(self.parts):
            raise UserError(f"text recipe parts are {list(self.parts)}; name at least one, and each only once")

    @property
    def hash(self) -> str:
        """Hash of the text recipe, twelve hex digits, the same on every machine."""
        canonical = json.dumps({"version": _RECIPE_VERSION, **asdict(self)}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


_DEFAULT_RECIPE = TextRecipe()


def paper_text(
    title: str,
    abstract: str,
    recipe: TextRecipe = _DEFAULT_RECIPE,
    *,
    venue: str = "",
    authors: Sequence[str] = (),
) -> str:
    """Return the text of a paper that an encoder reads, joined from its title, abstract and other parts.

    >>> paper_text("A title", ""), paper_text("", "An abstract."), paper_text("", "")
    ('A title', 'An abstract.', '')
    >>> paper_text("T", "A", TextRecipe(parts=("title", "venue", "authors")), venue="ACL", authors=["Ada", "Bo"])
    'T[SEP]ACL[SEP]Ada, Bo'
    """
    values = {"title": title, "abstract": abstract, "venue": venue, "authors": ", ".join(authors)}
    texts = [clean_text(values[part]) for part in recipe.parts]
    # papers about BERT contain "[SEP]" themselves, which the tokenizer would take for a separator token
    texts = [text.replace(SEPARATOR, SEPARATOR.lower()) for text in texts]
    return recipe.separator.join(text for text in texts if text)


# --- sentences ---------------------------------------------------------------------------------------

_BLOCK = 2000
"""Characters passed to sentencex at once: it is quadratic in the number of quotation marks."""

_STOP = re.compile(r"""[.!?…‽。．！？｡।॥؟۔։።፧။។]+['"”’»)\]}*]*(?:\[[\d,;– -]{1,40}\]|\s+["”](?=\s|$))?""")
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
_BRACKETED = re.compile(r"\([^()]{0,400}\)|\[[^\[\]]{0,400}\]")
_SPACE = re.compile(r"\s*")
_LAST_WORD = re.compile(r"[^\s()\[\]{}\"“”,;:]*$")
_OPENERS = "\"'“‘«([{`*-–—"
_NEXT_WORD = re.compile(rf"[{re.escape(_OPENERS)}]*((?:[^\W_]|[-'’&.])+)")
_INITIAL = re.compile(r"[A-Z](?:[.-]+[A-Z])*")
_INITIAL_AHEAD = re.compile(r"[A-Z]\.")
_LIST_MARK = re.compile(r"\(?(?:\d{1,2}|[a-zA-Z]|[ivxIVX]{1,4})")
_NEVER_FIRST = frozenset(".!?,;:)]}")
_FULL_WIDTH = frozenset("。．！？｡")

_LABEL_WORDS = (
    "AIMS? BACKGROUND CONCLUSIONS? CONTEXT DESIGN DISCUSSION FINDINGS FUNDING IMPORTANCE INTERPRETATION INTRODUCTION "
    "LIMITATIONS METHODOLOGY METHODS? MOTIVATION OBJECTIVES? OUTCOMES? PARTICIPANTS PATIENTS PURPOSE RATIONALE RESULTS "
    "SETTINGS? SIGNIFICANCE SUMMARY"
).replace(" ", "|")
_LABEL = rf"(?:{_LABEL_WORDS})(?:(?: AND |[ /&-]{{1,3}})(?:{_LABEL_WORDS}|RELEVANCE|MATERIALS)){{0,3}}"
_LABEL_INSIDE = re.compile(rf"(?<=\s){_LABEL}(?::|\s+(?=[A-Z](?:[a-z]|\s+[a-z])))")
_LABEL_AHEAD = re.compile(rf"{_LABEL}\b")
_LABEL_ALONE = re.compile(rf"\s*(?:\d{{1,2}}\s+)?{_LABEL}[.:]?", re.IGNORECASE)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# abbreviations after which a sentence continues, whatever follows
_CONTINUES = _words(
    "e.g eg i.e ie cf vs viz dr mr mrs prof fig figs eq eqs eqn eqns ref refs sect ca approx resp wrt w.r.t incl esp thm "
    "ver trans proc"
)
_TITLES = _words("Ms St")  # "ms" is a millisecond
# abbreviations after which it continues before a number (or a bracket with one)
_BEFORE_NUMBER = _words(
    "sec secs no nos nr vol vols pp p ch chap tab rm ph art app suppl supp ed eds sp al def lem prop"
)
# abbreviations that may end a sentence: then the next one has to start with a word of _STARTERS
_MAY_END = _words(
    "sec al etc sp spp inc ltd co corp dept univ jr sr u.s u.k e.u u.s.a ph.d m.d a.m p.m i.i.d a.k.a var subsp cv "
    "acad am ann biol chem conf dev est exp gen inst int jan feb mar apr jun jul aug sep sept oct nov dec "
    "j nat phys res rev sci soc symp tech adv"
)
# words that start a sentence far more often than they follow an initial or an abbreviation
_STARTERS = _words(
    "a additionally after all also although among an and another as at based because besides both but by compared "
    "consequently currently despite due during each even experiments extensive finally first firstly following for "
    "from further furthermore given here hence how however if in indeed instead it its many more moreover most "
    "nevertheless next no none on one other others our overall people previous recent recently results second secondly "
    "several similarly since so some specifically such that the their then there therefore these they third this those "
    "through thus to two under unlike until using we what when where whereas whether which while why with within "
    "without you unfortunately motivated inspired aims background conclusion conclusions methods objective "
    "objectives purpose"
)
_LOWER_STARTERS = _words("we this these our it however furthermore moreover finally in the there they")
# words before a single letter that name a thing, not a person with an initial
_LETTERED = _words(
    "appendix case category class cluster condition domain dose experiment factor graph group grade hepatitis language "
    "level matrix model node parameter part phase point protein set size stage state step study table task type "
    "variable vertex virus vitamin word written"
)


def sentences(text: str) -> list[tuple[int, int]]:
    """Return start and end of every sentence of a text, in characters; together they cover the text without gaps.

    White space belongs to the sentence before it (at the start of the text, to the first).

    >>> sentences("One. Two et al. (2010).")
    [(0, 5), (5, 23)]
    >>> sentences("")
    []
    """
    if not text:
        return []
    cuts = [*_cuts(text), len(text)]
    return list(zip([0, *cuts[:-1]], cuts, strict=True))


def sentence_texts(text: str) -> list[str]:
    """Return the sentences of a text, without the white space around them."""
    return [piece for start, end in sentences(text) if (piece := text[start:end].strip())]


def _cuts(text: str) -> Iterator[int]:
    """Yield where each sentence after the first starts, ascending."""
    proposed = _proposed_by_sentencex(text)
    inside_brackets = _stops_inside_brackets(text)
    begin = _SPACE.match(text).end()  # type: ignore[union-attr]
    last = 0
    for kind, stop, end, following in _candidates(text):
        if following <= max(last, begin) or following >= len(text):
            continue
        if end - begin <= 60 and _LABEL_ALONE.fullmatch(text, begin, end):
            continue  # a heading belongs to the sentence it announces
        if kind == "stop":
            if stop in inside_brackets or (end - begin <= 6 and _LIST_MARK.fullmatch(text, begin, stop)):
                continue
            if text[end - 1] in ")]" and "[" not in text[stop:end] and text[begin] not in "([":
                continue  # "(Smith et al.) Next": only a bracket that is a complete sentence ends one
            if not _ends_sentence(text, stop, end, following, following in proposed or end in proposed):
                continue
        yield following
        last = begin = following


def _candidates(text: str) -> list[tuple[str, int, int, int]]:
    """Return candidate sentence boundaries: (kind, position of the stop, end of the sentence, start of the next one)."""
    candidates = []
    for match in _STOP.finditer(text):
        candidates.append(("stop", match.start(), match.end(), _SPACE.match(text, match.end()).end()))  # type: ignore[union-attr]
    for match in _PARAGRAPH.finditer(text):
        candidates.append(("paragraph", match.start(), match.start(), match.end()))
    for match in _LABEL_INSIDE.finditer(text):
        candidates.append(("label", match.start(), match.start(), match.start()))
    # a paragraph break cuts even where the stop before it would not
    return sorted(candidates, key=lambda candidate: (candidate[3], candidate[0] == "stop"))


def _proposed_by_sentencex(text: str) -> set[int]:
    """Return the sentence boundaries that the package sentencex proposes."""
    import sentencex  # only here: encoders run without it

    # sentencex takes no lone surrogates; replacing each by one character keeps the offsets
    text = re.sub(r"[\ud800-\udfff]", "\ufffd", text)
    proposed: set[int] = set()
    start = 0
    while start < len(text):
        end = _block_end(text, start)
        proposed.update(
            start + piece["end_index"] for piece in sentencex.get_sentence_boundaries("en", text[start:end])
        )
        if end < len(text):
            proposed.discard(end)  # the end of a block is not the end of a sentence
        start = end
    return proposed


def _block_end(text: str, start: int) -> int:
    """Return where the block of text passed to sentencex ends, at a blank if possible."""
    end = start + _BLOCK
    if end >= len(text):
        return len(text)
    for blank in ("\n", " "):
        at = text.rfind(blank, start + _BLOCK // 2, end)
        if at > 0:
            return at
    return end


def _stops_inside_brackets(text: str) -> set[int]:
    """Return the positions of full stops inside brackets, which end no sentence."""
    return {
        stop.start() + match.start()
        for match in _BRACKETED.finditer(text)
        for stop in _STOP.finditer(match.group())
        if stop.end() < len(match.group())
    }


def _ends_sentence(text: str, stop: int, end: int, following: int, proposed: bool) -> bool:
    """Return whether a sentence ends at the stop and another one starts at `following`."""
    if text[stop] in _FULL_WIDTH:
        return True
    if text[following] in _NEVER_FIRST or (following == end and not proposed):
        return False
    ahead = text[following : following + 40]
    match = _NEXT_WORD.match(ahead)
    next_word = match.group(1) if match else ""
    word = _LAST_WORD.search(text[max(0, stop - 40) : stop]).group()  # type: ignore[union-attr]
    if following == end:
        return end == stop + 1 and _glued_sentences(word, next_word)
    if text[stop:end] == "." and (decision := _after_abbreviation(text, stop, word, ahead, next_word)) is not None:
        return decision
    if not next_word:
        return proposed
    if next_word[0].islower():
        # mRNA, p53, iOS start sentences; ordinary lower-case words only in texts without capitals
        if any(c.isupper() or c.isdigit() for c in next_word):
            return proposed
        return proposed and len(word) > 1 and word.islower() and next_word in _LOWER_STARTERS
    return proposed or next_word[0].isupper()


def _after_abbreviation(text: str, stop: int, word: str, ahead: str, next_word: str) -> bool | None:
    """Return whether a sentence ends after an abbreviation or initial, None after an ordinary word."""
    plain = word.lower().lstrip("'‘`*-–—/").rsplit("/", 1)[-1]
    starts = next_word.lower() in _STARTERS or bool(_LABEL_AHEAD.match(ahead))
    if word.isupper() and len(word) > 1 and "." not in word:
        return None  # an acronym, such as CA or AI
    if plain in _CONTINUES or word in _TITLES:
        return False
    if plain in _BEFORE_NUMBER and (ahead[:1].isdigit() or ahead[:1] in "([" or plain in ("pp", "nos")):
        return False
    if plain in _MAY_END:
        return starts and next_word[:1].isupper()
    if _INITIAL.fullmatch(word):
        before = text[max(0, stop - len(word) - 30) : stop - len(word)].split()
        names_thing = bool(before) and before[-1].lower() in _LETTERED
        return next_word[:1].isupper() and not _INITIAL_AHEAD.match(ahead) and (starts or names_thing)
    return None


def _glued_sentences(word: str, next_word: str) -> bool:
    """Return whether two sentences lost the blank between them, as in PDF text: "of proteins.We show", not "Node.js"."""
    if not (len(word) > 2 and word.islower() and word.isalpha()):
        return False
    return next_word[:1].isupper() and (next_word[1:].islower() or next_word.lower() in _STARTERS)
