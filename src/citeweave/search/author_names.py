"""Names of authors: which of the known names a written name may mean, whatever its order, initials, accents and case.

    >>> names = AuthorNames(["Jacob Devlin", "J. Devlin", "John Devlin", "Laurens van der Maaten", "Anders Søgaard", "王伟"])
    >>> names.matching("Devlin, Jacob"), names.matching("devlin"), names.matching("devlin j")
    ([0, 1], [0, 1, 2], [0, 1, 2])
    >>> names.matching("van der Maaten"), names.matching("L. Maaten"), names.matching("SOGAARD"), names.matching("王伟")
    ([3], [3], [4], [5])
    >>> names.matching("Chris Devlin"), names.closest("Jacob Devlen")
    ([], 'Jacob Devlin')

A written name fits a known one if both have the same last name and the given names of the shorter are among those of the
longer, which has no more than initials besides; an initial stands for any name that begins with it. One word is a last name; only where nobody has it, it
may be any word of a name. Two people of one name are not told apart.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from citeweave.corpus.plain_text import fold

PARTICLES = {"van", "von", "der", "den", "de", "del", "della", "di", "da", "do", "dos", "das", "du", "la", "le", "el", "al",
             "bin", "ibn", "ben", "ter", "ten", "te", "zu", "zur", "af", "av"}  # fmt: skip
"""Words between given names and last name that belong to the last name."""

_SUFFIXES = frozenset(("jr", "sr", "ii", "iii", "iv", "phd", "md"))
_PLAIN = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "æ": "ae",
     "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ı": "i", "'": "", "’": "", "‘": "", "ʼ": "", "`": ""}
)  # fmt: skip
_TRANSCRIBED = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"})
_AROUND = 200
"""Last names before and behind the place of an unknown one that are compared with it."""

_MAX_INITIALS = 3


def name_words(name: str) -> list[str]:
    """Return the words of a name, folded, the given names first and the last name at the end.

    >>> name_words("van der Maaten, L.J.P."), name_words("Turing AM"), name_words("Martin L. King, Jr.")
    (['l', 'j', 'p', 'van', 'der', 'maaten'], ['am', 'turing'], ['martin', 'l', 'king'])
    >>> name_words("Prateek Jain 0002")  # numbered by DBLP
    ['prateek', 'jain']
    """
    if "," in name:
        family, *given = name.split(",")
        name = " ".join([*(part for part in given if fold(part) not in _SUFFIXES), family])
    plain = name.replace("'", "") if name.isascii() else name.translate(_PLAIN)
    words = [word for word in fold(plain).split() if not word.isdigit()]
    while len(words) > 1 and words[-1] in _SUFFIXES:
        words.pop()
    last = name.rpartition(" ")[2]
    if len(words) > 1 and last.isalpha() and last.isupper() and len(last) <= _MAX_INITIALS and not name.isupper():
        words = [words[-1], *words[:-1]]
    return words


def short_names(names: Sequence[str]) -> str:
    """Return the authors of a paper in short: last names of one or two, else that of the first and "et al.".

    >>> short_names(["Laurens van der Maaten", "Geoffrey Hinton"]), short_names(["J. Devlin", "M. Chang", "K. Lee"])
    ('van der Maaten and Hinton', 'Devlin et al.')
    """
    families = [_family(name) for name in names[:2]]
    return f"{families[0]} et al." if len(names) > 2 else " and ".join(families)


def _family(name: str) -> str:
    """Return the last name of an author as it is written, with the particles before it."""
    family, comma, _ = name.partition(",")
    words = family.split()
    while not comma and len(words) > 2 and words[-1].rstrip(".").casefold() in _SUFFIXES:
        words.pop()
    start = len(words) - 1
    while start > 1 and words[start - 1].casefold() in PARTICLES:
        start -= 1
    return family if comma else " ".join(words[start:])


class AuthorNames:
    """The names of an index's authors by their numbers, to be found however they are written."""

    def __init__(self, names: Sequence[str], folded: Iterable[str] = ()) -> None:
        """Take the names and, where they are known, the words of each, joined by blanks."""
        self.names = names
        joined = folded or map(" ".join, map(name_words, names))
        self._families: defaultdict[str, list[int]] = defaultdict(list)
        """Numbers of the names with each last name, without its particles."""
        for number, (name, words) in enumerate(zip(names, joined, strict=True)):
            family = words.rpartition(" ")[2]
            for spelled in {family, family if name.isascii() else _transcribed_family(name)}:
                self._families[spelled].append(number)

    @cached_property
    def _words(self) -> dict[str, list[int]]:
        """Numbers of the names that have each word, last names and all others."""
        words: defaultdict[str, list[int]] = defaultdict(list)
        for number, name in enumerate(self.names):
            for word in dict.fromkeys(name_words(name)):
                words[word].append(number)
        return dict(words)

    @cached_property
    def _ordered(self) -> list[str]:
        return sorted(self._families)

    def matching(self, name: str) -> list[int]:
        """Return the numbers of the known names that a written name may mean, ascending."""
        words = name_words(name)
        found = self.with_family(words)
        if not found and len(words) == 1:
            return list(self._words.get(words[0], ()))
        return found

    def with_family(self, words: Sequence[str]) -> list[int]:
        """Return the numbers of the names that folded words may mean, one of which is their last name; ascending."""
        found = set[int]()
        for place, family in enumerate(words):
            others = [*words[:place], *words[place + 1 :]]
            numbers = self._families.get(family, ())
            found.update(number for number in numbers if not others or self._fits(others, number, family))
        return sorted(found)

    def closest(self, name: str) -> str:
        """Return a known name whose last name is spelled most like the one of an unknown name, empty where none is close."""
        words = name_words(name)
        family = words[-1][:100] if words else ""
        place = bisect_left(self._ordered, family)
        near = self._ordered[max(0, place - _AROUND) : place + _AROUND]
        return next(
            (self.names[self._families[one][0]] for one in difflib.get_close_matches(family, near, 1, 0.75)), ""
        )

    def _fits(self, others: list[str], number: int, family: str) -> bool:
        """Return whether words beside a last name can be given names (or particles) of a known name."""
        words = name_words(self.names[number])
        if family in words:
            words.remove(family)
        else:
            words = words[:-1]  # the last name in another transcription
        if len(others) <= len(words):
            return _are_among(others, words)
        more = [word for word in others if len(word) > 1 and word not in PARTICLES]
        return bool(words) and len(more) <= len(words) and _are_alike(others[0], words[0]) and _are_among(words, others)


def _transcribed_family(name: str) -> str:
    """Return the last name in a name with letters such as ü or ø, transcribed as ue or oe."""
    return next(reversed(name_words(name.translate(_TRANSCRIBED))), "")


def _are_among(few: list[str], many: list[str]) -> bool:
    """Return whether every one of a few given names is one of many, each of which counts once.

    >>> _are_among(["m", "van"], ["maria", "van"]), _are_among(["jm"], ["jean", "marie"]), _are_among(["a", "a"], ["ann"])
    (True, True, False)
    """
    free = list(many)
    for word in few:
        same = word if word in free else next((each for each in free if _are_alike(word, each)), None)
        if same is not None:
            free.remove(same)
        elif len(word) > _MAX_INITIALS or not "".join(each[0] for each in free).startswith(word):
            return False
    return True


def _are_alike(one: str, other: str) -> bool:
    """Return whether two given names are the same, or one is the initial of the other."""
    return one == other or (1 in (len(one), len(other)) and one[0] == other[0])
