"""What an export can be told; every option belongs to some formats, and `convert.py` refuses it for others."""

from __future__ import annotations

from dataclasses import dataclass

from citeweave.errors import UserError, choose

COLUMNS = ("triplet", "group")
FILE_TYPES = ("parquet", "jsonl")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of `export_samples`."""

    gzip: bool = False
    """scincl: write `train_triples.csv.gz`."""

    leave_out: tuple[str, ...] = ("easy",)
    """specter: rules whose negatives stay out of data.json, because SPECTER draws easy negatives itself."""

    val: float = 0.0
    """specter: share of the queries that goes to val.txt."""

    test: float = 0.0
    """specter: share of the queries that goes to test.txt."""

    columns: str = "triplet"
    """sentence_transformers: one negative a row (`triplet`), or all negatives of the sample (`group`)."""

    negatives: int = 0
    """sentence_transformers, group: how many negatives a row has; 0 = as many as most rows can have."""

    file_type: str = "parquet"
    """sentence_transformers: `parquet` or `jsonl`."""

    ids: bool = False
    """sentence_transformers: also write the papers' ids, by which rows are read back quickly. Its trainer takes every
    column for a text, so they are to be removed before training."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "leave_out", tuple(self.leave_out))
        choose(self.columns, COLUMNS, "--columns")
        choose(self.file_type, FILE_TYPES, "--file-type")
        for name, share in (("--val", self.val), ("--test", self.test)):
            if not 0 <= share < 1:
                raise UserError(f"{name} is {share}; it must be a share of the queries from 0 to less than 1")
        if self.val + self.test >= 1:
            raise UserError(f"--val {self.val} and --test {self.test} leave nothing to train on; make them smaller")
        if not 0 <= self.negatives <= 1000:
            raise UserError(f"--negatives is {self.negatives}; it must be 1 to 1000, or 0 for what most rows have")
