"""Sums of sentence vectors: an encoder of sentences becomes one of papers.

    SentenceSum(encoder).encode(["A title[SEP]One. Two."])     encoder reads "A title", "One.", "Two."

"The model is designed to encode sentences as opposed to paragraphs, so we embed the title and each sentence in the
abstract separately, sum the embeddings, and L2 normalize the result" (Cohan et al. 2020, appendix A, on Sentence-BERT).
Which encoder reads the sentences is the caller's choice; nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from citeweave.arguments import as_texts
from citeweave.baselines.material import Floats, split_fields
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.encoder import Encoder
from citeweave.files import hash_json
from citeweave.progress import QUIET, Reporter

_TEXTS = 4096
"""Texts whose sentences are encoded at a time."""


class SentenceSum:
    """The sum of the vectors of a paper's title and sentences, of length 1."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.name = f"sentence_sum({encoder.name})"
        self.revision = hash_json({"sentence_sum": 1, "of": [encoder.name, encoder.revision]})[:12]
        self.dimension = encoder.dimension

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        for start in range(0, len(texts), _TEXTS):
            part = [sentences_of(text) for text in texts[start : start + _TEXTS]]
            flat = [sentence for sentences in part for sentence in sentences]
            if flat:
                vectors = self._encoder.encode(flat, reporter=reporter)  # (sentences, dimension)
                owners = np.repeat(np.arange(len(part)), [len(sentences) for sentences in part])
                np.add.at(out[start : start + _TEXTS], owners, vectors)
        lengths = np.linalg.norm(out, axis=1, keepdims=True)
        return np.asarray(out / np.where(lengths > 0, lengths, 1), np.float32)


def sentences_of(text: str) -> list[str]:
    """The title and the sentences of the abstract; a text of one part may be an abstract, so it is split as well.

    >>> sentences_of("What is it? A title[SEP]One. Two."), sentences_of("One. Two."), sentences_of("")
    (['What is it? A title', 'One.', 'Two.'], ['One.', 'Two.'], [])
    """
    title, abstract = split_fields(text)
    return [title.strip(), *sentence_texts(abstract)] if abstract else sentence_texts(title)
