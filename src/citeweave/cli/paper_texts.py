"""What the commands about sentences share: titles and sentences of papers by id, and the distance that was asked for.

    corpus/            a corpus
    abstracts.jsonl    {"paper_id": "1", "title": "T", "abstract": ["One.", "Two."]}, the abstract also as one text

Sentences of a corpus are split as `embed` splits them, so that their numbers are those of the vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from citeweave.errors import InputError, UserError
from citeweave.evaluation.reporting.document import one_line

if TYPE_CHECKING:
    from citeweave.similarity.transport import DocumentDistance


class PaperTexts:
    """Titles and sentences of some papers; empty where nothing is known."""

    def __init__(self, source: Path | None) -> None:
        self._source = source
        self._titles: dict[str, str] = {}
        self._sentences: dict[str, list[str]] = {}

    @classmethod
    def open(cls, source: Path | None) -> PaperTexts:
        if source is not None and not source.exists():
            raise InputError(f"{source} is not there; give the folder of a corpus, or a file of abstracts")
        return cls(source)

    def find(self, ids: Iterable[str]) -> None:
        """Read the texts of these papers."""
        wanted = list(dict.fromkeys(ids))
        if self._source is not None and self._source.is_dir():
            self._find_in_corpus(self._source, wanted)
        elif self._source is not None:
            from citeweave.evaluation.suites.aspire_files import read_abstracts

            texts = read_abstracts(self._source, wanted=wanted).texts
            for row, paper in enumerate(texts.ids):
                self._titles[paper], self._sentences[paper] = texts.titles[row], list(texts.sentences_of(row))

    def _find_in_corpus(self, folder: Path, wanted: list[str]) -> None:
        from citeweave.corpus.corpus import Corpus
        from citeweave.corpus.text import sentence_texts

        corpus = Corpus.open(folder)
        for paper, row in zip(wanted, corpus.rows(wanted).tolist(), strict=True):
            if row >= 0:
                title = corpus.titles[row]
                self._titles[paper] = title
                self._sentences[paper] = sentence_texts(corpus.abstracts[row]) or [each for each in [title] if each]

    def title(self, paper: str) -> str:
        return one_line(self._titles.get(paper, ""), 300)

    def sentences(self, paper: str) -> list[str]:
        return self._sentences.get(paper, [])

    def sentence(self, paper: str, at: int, most: int = 120) -> str:
        """One sentence on one line, cut where it is long."""
        known = self.sentences(paper)
        return one_line(known[at], most) if at < len(known) else ""


def parse_sentences(text: str) -> list[int] | None:
    """
    >>> parse_sentences("2, 3"), parse_sentences("")
    ([2, 3], None)
    """
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"--sentences is {text!r}; it must be numbers of sentences, from 0, such as 2,3")
    return [int(part) for part in parts]


def document_distance(name: str, metric: str, temperature: float | None, *, by_sentences: bool) -> DocumentDistance:
    """The distance of these options; its temperature is ASPIRE's for chosen sentences or for whole abstracts."""
    from citeweave.evaluation.judging.sentence_level import FACET_TEMPERATURE, PAPER_TEMPERATURE
    from citeweave.similarity.transport import DocumentDistance

    usual = FACET_TEMPERATURE if by_sentences else PAPER_TEMPERATURE
    return DocumentDistance(name, usual if temperature is None else temperature, metric or "l2")
