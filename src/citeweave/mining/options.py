"""Options of mining, aligning and converting samples.

    [alignment]
    by = "contexts"                      # through the sentences that cite both papers; or "abstracts"
    encoder = "recipe:aspire_context"    # a model, or a recipe whose model is trained first

>>> from citeweave.core.options import parse_table
>>> parse_table(AlignmentOptions, {"by": "abstracts"}, "alignment")
AlignmentOptions(by='abstracts', encoder='minilm')
>>> parse_table(AlignmentOptions, {"encodr": "minilm"}, "alignment")
Traceback (most recent call last):
citeweave.core.errors.UserError: alignment: key is 'encodr'; it must be one of by, encoder. Did you mean 'encoder'?

Declares and checks values; `rules.py` has the `[mining]` table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from citeweave.core.errors import UserError
from citeweave.core.options import INTERNAL, SIZE, Flag, Old, OneOf, Range, check
from citeweave.core.progress import SAVE_EVERY

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class MiningOptions:
    """Seed and resources of a mining run; only the seed changes the samples."""

    seed: int = 0
    """Random seed."""

    workers: Annotated[int, Range(0)] = 0
    """Number of threads; 0 = one per core."""

    memory: Annotated[int, SIZE, Range(2**20)] = 512 << 20
    """Memory limit for neighbor search and for counting related papers."""

    device: Annotated[str, OneOf(*DEVICES)] = "cpu"
    """Device: cpu, cuda or auto."""

    save_every: Annotated[float, INTERNAL] = SAVE_EVERY
    """Seconds of work that an interruption may cost; with an executor it costs a block of each worker."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ContextFilter:
    """Which citing sentences count: ASPIRE's filters of sentences that cite several papers (Mysore et al., NAACL 2022)."""

    min_papers: Annotated[int, Old("least_papers")] = 2
    """Minimum number of papers cited in the sentence, including those outside the corpus."""

    max_papers: Annotated[int, Old("most_papers")] = 3
    """Maximum number of papers cited in it."""

    min_words: Annotated[int, Old("least_words")] = 5
    """Minimum number of words of the sentence."""

    max_words: Annotated[int, Old("most_words")] = 60
    """Maximum number of words."""

    brackets: bool = True
    """Only sentences with ( ) or [ ]: others have lost their citation marks."""

    max_contexts: Annotated[int, Old("most_contexts")] = 10
    """Sentences per pair, at most one from each citing paper."""

    min_sentences: Annotated[int, Old("least_sentences")] = 3
    """Minimum number of sentences of either abstract."""

    max_sentences: Annotated[int, Old("most_sentences")] = 20
    """Maximum number of sentences."""

    max_sentence_words: Annotated[int, Old("longest_sentence")] = 80
    """Words of its longest sentence, which must have more than three."""

    def __post_init__(self) -> None:
        check(self, "mining.contexts")


CONTEXTS, ABSTRACTS = "contexts", "abstracts"


@dataclass(frozen=True, slots=True)
class AlignmentOptions:
    """How sentences of anchor and positive are aligned, and with which encoder: the `[alignment]` table of a recipe."""

    by: Annotated[str, OneOf(CONTEXTS, ABSTRACTS)] = CONTEXTS
    """How to align: contexts (through sentences that cite both papers, ASPIRE's ts) or abstracts (directly, its abs)."""

    encoder: Annotated[str, Flag("--model")] = "minilm"
    """Model: minilm, a folder, or a Hugging Face name; in a recipe also recipe:NAME."""

    def __post_init__(self) -> None:
        check(self, "alignment")
        if not self.encoder:
            raise UserError("alignment.encoder is empty; it must be the name of a model, such as minilm")


COLUMNS = ("triplet", "group")
FILE_TYPES = ("parquet", "jsonl")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of writing samples as triplet rows to another project's format; each belongs to some formats."""

    gzip: bool = False
    """scincl: compress the triples."""

    leave_out: tuple[str, ...] = ("easy",)
    """specter: rule whose negatives are left out, as SPECTER draws easy negatives itself; may be repeated."""

    val: Annotated[float, Range(0, below=1)] = 0.0
    """specter: fraction of the queries for val.txt."""

    test: Annotated[float, Range(0, below=1)] = 0.0
    """specter: fraction of the queries for test.txt."""

    columns: Annotated[str, OneOf(*COLUMNS)] = "triplet"
    """sentence_transformers: one negative per row (triplet), or all (group)."""

    negatives: Annotated[int, Range(0, 1000)] = 0
    """sentence_transformers, group: negatives per row; 0 = as many as most rows have."""

    file_type: Annotated[str, OneOf(*FILE_TYPES)] = "parquet"
    """sentence_transformers: parquet or jsonl."""

    ids: bool = False
    """sentence_transformers: also write columns of ids, so that the rows can be imported again. Its trainer uses every
    column as a text, so remove them before training."""

    def __post_init__(self) -> None:
        check(self)
        if self.val + self.test >= 1:
            raise UserError(f"--val {self.val} and --test {self.test} leave nothing to train on; make them smaller")
