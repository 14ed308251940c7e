"""Labels for groups of papers: the phrases of one to three words that set each group apart from the rest of the library.

    >>> papers = [("Malaria parasites in mosquitoes", ""), ("Drugs against malaria parasites", "")]
    >>> papers += [("Parsing with BERT", "We study BERT."), ("Is BERT enough for Parsing?", "")]
    >>> label_groups(papers, np.array([0, 0, 1, 1]), 2)
    ['malaria parasites', 'parsing, BERT']

A candidate is a phrase of a group's titles without words such as "using" or "approach". It counts once for each paper whose
title or abstract has it, and titles count twice. Its score is the group's term of the Kullback-Leibler divergence from the
library, share in the group times log2(share in the group / share in the library), times how often it stands alone: a phrase
that is mostly followed by a further word, such as "neural" or "generative adversarial", is a fragment of another one. The best phrase names
the group; a second one is added where it describes papers that lack the first. No phrase names two groups. Words are
written as running text has them, because many titles capitalize every word. Does not stem beyond plurals.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_WORDS = 3
MAX_PHRASES = 2
WORD = 0.6
"""Weight of a single word, which says less than a phrase."""

COMMON = 0.01
"""Smallest contrast of a group with the library, in bits, that counts."""

MANY_PAPERS = 20
"""Papers from which on a phrase must be in two titles."""

MIN_SECOND = 0.4
"""Share of the first phrase's score that a second one needs."""

_TOKEN = re.compile(r"[^\W_]+(?:[-'’/.+][^\W_]+)*\+*|[^\w\s]")
_PLURAL = re.compile(r"(?<=[a-z]{2})ies$|(?<=ss|ch|sh)es$|(?<=[a-z]{3})(?<![sui])s$", re.IGNORECASE)
_HYPHENED = re.compile(
    r".*-(?:based|driven|aware|level|specific|dependent|free|like|induced|mediated|art|the)$", re.IGNORECASE
)

_UNINFORMATIVE = frozenset(
    re.findall(
        r"\w+",
        "a about across after algorithm algorithms all also among an analysis and application applications approach "
        "approaches are as associated at based be been being better between beyond both but by can case change changes "
        "control could data dataset datasets de der des determine determines different direct do does drive drives driven "
        "du during effect effects efficient el en enable enables evidence et exploring fast feature features findings "
        "first for framework from function functions further good has have high how however identifies identify "
        "identifying important improve improved improves improving impact in increase increased increases insight "
        "insights into investigating involved is it its key la las le learned les los low make many may mechanism "
        "mechanisms mediate mediates method methods model modeling modelling models more most much multiple need new non "
        "not novel of on one only or other our out over paper part performance problem problems process promote promotes "
        "properties proposed provide provides regulate regulates regulating regulation required requires research result "
        "results reveal revealed revealing reveals robust role roles same several show shows simple single some state "
        "studies study such system systems task tasks than that the their them theories theory there these they this "
        "those three through to toward towards two under understanding und une until upon use used useful user uses using "
        "various via von was we well were what when where whether which while who whole why will with within without work "
        "y ",
    )
)
"""Words that say little about a group of papers: no phrase begins or ends with one, or contains one."""


def label_groups(papers: Sequence[tuple[str, str]], owners: NDArray[Any], groups: int) -> list[str]:
    """Label each group by one or two phrases, from the title and abstract of papers and their groups; "" without titles."""
    phrases = _count_phrases(papers, owners)
    sizes = np.bincount(owners, minlength=groups)
    scored: list[tuple[float, str, int]] = []
    for key, phrase in phrases.items():
        for group, score in phrase.scores(sizes):
            scored.append((-score, key, group))
    chosen = _choose(sorted(scored), phrases, groups)
    case = _Case(papers)
    return [", ".join(case.spell(phrases[key]) for key in keys) for keys in chosen]


# --- phrases ---------------------------------------------------------------------------------------------


@dataclass
class _Phrase:
    """A phrase of titles: its spellings, the papers of each group that have it, and how often it stands alone."""

    words: tuple[str, ...]
    spellings: Counter[str] = field(default_factory=Counter)
    by_group: Counter[int] = field(default_factory=Counter)
    in_titles: Counter[int] = field(default_factory=Counter)
    uses: int = 0
    closed: int = 0
    """Uses that no other word of a phrase follows."""

    opened: int = 0
    """Uses that no other word of a phrase precedes."""

    def count(self, run: list[str], start: int, end: int) -> None:
        """Count a use of this phrase, from one word of a run to another."""
        self.spellings[" ".join(run[start:end])] += 1
        self.uses += 1
        self.closed += end == len(run)
        self.opened += start == 0

    def scores(self, sizes: NDArray[np.int64]) -> Iterator[tuple[int, float]]:
        """Yield each group that this phrase may name, with a score above 0."""
        overall = self.by_group.total() / sizes.sum()
        alone = WORD if len(self.words) == 1 else 1.0
        alone *= (self.closed + 0.5) / (self.uses + 1) * ((self.opened + 0.5) / (self.uses + 1)) ** 0.5
        for group, titles in self.in_titles.items():
            share = self.by_group[group] / sizes[group]
            if titles >= min(2, sizes[group] // 3):
                # what is as common elsewhere names only a group that has nothing of its own
                distinct = max(np.log2(share / overall), COMMON)
                yield group, float((share + titles / sizes[group]) / 2 * distinct * alone)


def _key(word: str) -> str:
    """Return what a word of a phrase is compared by: lower case, singular.

    >>> [_key(word) for word in ["Networks", "studies", "BERT", "virus", "analyses", "classes", "GANs"]]
    ['network', 'study', 'bert', 'virus', 'analyse', 'class', 'gan']
    """
    return _PLURAL.sub(lambda found: "y" if found[0].lower() == "ies" else "", word).lower()


def _runs(text: str) -> Iterator[list[str]]:
    """Yield the runs of words of a text that uninformative words and punctuation separate.

    >>> list(_runs("Machine translation: a survey of low-resource languages"))
    [['Machine', 'translation'], ['survey'], ['low-resource', 'languages']]
    """
    run: list[str] = []
    for token in _TOKEN.findall(text):
        if _is_informative(token):
            run.append(token)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _is_informative(word: str) -> bool:
    return len(word) > 1 and word[0].isalpha() and word.lower() not in _UNINFORMATIVE


def _spans(run: list[str]) -> Iterator[tuple[int, int]]:
    for start in range(len(run)):
        for end in range(start + 1, min(start + MAX_WORDS, len(run)) + 1):
            yield start, end


def _count_phrases(papers: Sequence[tuple[str, str]], owners: NDArray[Any]) -> dict[str, _Phrase]:
    """Count the phrases of all titles in titles and abstracts, by what they are compared by."""
    found: dict[str, _Phrase] = {}
    for (title, _), owner in zip(papers, owners.tolist(), strict=True):
        for key in _title_phrases(title):
            found.setdefault(key, _Phrase(tuple(key.split()))).in_titles[owner] += 1
    if len(papers) >= MANY_PAPERS:
        found = {key: phrase for key, phrase in found.items() if phrase.in_titles.total() > 1}
    for paper, owner in zip(papers, owners.tolist(), strict=True):
        own: set[str] = set()
        for run in (run for text in paper for run in _runs(text)):
            keys = [_key(word) for word in run]
            for start, end in _spans(run):
                key = " ".join(keys[start:end])
                if key in found:
                    own.add(key)
                    found[key].count(run, start, end)
        for key in own:
            found[key].by_group[owner] += 1
    return found


def _title_phrases(title: str) -> set[str]:
    """Return the phrases of a title that may name a group, as they are compared."""
    phrases = set()
    for run in _runs(title):
        keys = [_key(word) for word in run]
        for start, end in _spans(run):
            whole = len(run[end - 1]) > 2 and not _HYPHENED.match(run[end - 1])
            if whole and len(set(keys[start:end])) == end - start:
                phrases.add(" ".join(keys[start:end]))
    return phrases


def _choose(scored: list[tuple[float, str, int]], phrases: dict[str, _Phrase], groups: int) -> list[list[str]]:
    """Choose the phrases of every group, best scores first, so that none names two groups."""
    chosen: list[list[str]] = [[] for _ in range(groups)]
    best = [0.0] * groups
    taken: set[tuple[str, ...]] = set()
    for wanted in range(MAX_PHRASES):
        for score, key, group in scored:
            phrase = phrases[key]
            if len(chosen[group]) != wanted or any(_alike(phrase, phrases[one]) for one in chosen[group]):
                continue
            if (wanted and -score < MIN_SECOND * best[group]) or phrase.words in taken:
                continue
            chosen[group].append(key)
            taken.add(phrase.words)
            best[group] = max(best[group], -score)
    return chosen


def _alike(left: _Phrase, right: _Phrase) -> bool:
    """Return whether two phrases have a word, or forms of one word, in common."""
    return any(_same_stem(one, other) for one in left.words for other in right.words)


def _same_stem(left: str, right: str) -> bool:
    """Return whether two title words are likely forms of one.

    >>> _same_stem("network", "networking"), _same_stem("learning", "learned"), _same_stem("cell", "cellular")
    (True, True, True)
    >>> _same_stem("protein", "process")
    False
    """
    stem = max(4, min(len(left), len(right)) - 3)
    return left[:stem] == right[:stem]


# --- upper and lower case --------------------------------------------------------------------------------


class _Case:
    """How running text writes words: in lower case, unless it capitalizes them itself."""

    def __init__(self, papers: Sequence[tuple[str, str]]) -> None:
        self._forms: dict[str, Counter[str]] = defaultdict(Counter)
        for title, abstract in papers:
            for text in (abstract, title if _is_running_text(title) else ""):
                words = _TOKEN.findall(text)
                for before, word in pairwise([".", *words]):
                    if before not in ".:?!–—“\"'(":  # the first word of a sentence has a capital anyway
                        self._forms[word.lower()][word] += 1

    def spell(self, phrase: _Phrase) -> str:
        """Return a phrase in its most frequent number and the letter case of running text."""
        lower: Counter[str] = Counter()
        for spelling, count in phrase.spellings.items():
            lower[spelling.lower()] += count
        words = max(lower, key=lambda one: (lower[one], one)).split()
        shown = {
            word: form for spelling in phrase.spellings for word, form in zip(words, spelling.split(), strict=False)
        }
        return " ".join(self._form(word, shown.get(word, word)) for word in words)

    def _form(self, word: str, title_form: str) -> str:
        if forms := self._forms.get(word):
            return max(forms, key=lambda form: (forms[form], form))
        return title_form if any(letter.isupper() for letter in title_form[1:]) else word


def _is_running_text(title: str) -> bool:
    """Return whether a title is written as a sentence is, not with a capital on each word.

    >>> _is_running_text("Attention is all you need"), _is_running_text("Attention Is All You Need")
    (True, False)
    """
    words = [word for word in title.split()[1:] if len(word) > 3]
    return bool(words) and 2 * sum(word[0].isupper() for word in words) < len(words)
