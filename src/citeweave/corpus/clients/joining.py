"""A library together with what `enrich_library` fetched for it: a new generation of its corpus.

    richer = join_fetched(corpus, Path("fetched"), Path("richer"))

The library's papers keep their ids and rows and gain abstracts, references and further ids. Papers around the library, which
cite it or which it cites, become stubs: rows that are known and can be shown, but are not of the library. References to
papers of which no record was fetched stay references to papers outside. Does not ask anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from citeweave.artefacts.writing import ArtefactWriter, matches, new_artefact
from citeweave.corpus.clients.enriching import AROUND, PAPERS
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.identity import title_key
from citeweave.corpus.importing import READERS_VERSION
from citeweave.corpus.intake.building import build_corpus
from citeweave.corpus.intake.merging import MergeOptions
from citeweave.corpus.intake.staging import Part, PartWriter, is_complete
from citeweave.corpus.layout import KIND, VERSION
from citeweave.corpus.paper import Paper, StagedRecord
from citeweave.corpus.readers import guess_format, reader_of
from citeweave.files import hash_file
from citeweave.opening import Source
from citeweave.progress import QUIET, Reporter


def join_fetched(corpus: Corpus, folder: Path, output: Path, *, reporter: Reporter = QUIET) -> Corpus:
    """The corpus with the records of a folder; the corpus itself where there are none."""
    files = fetched_files(folder)
    if not files:
        return corpus
    recipe = {
        "update": corpus.hash,
        "fetched": {path.name: hash_file(path) for path in files},
        "readers": READERS_VERSION,
    }
    if not matches(output, KIND, VERSION, recipe):
        with new_artefact(output, KIND, VERSION, recipe, overwrite=True) as writer:
            parts = [_stage(path, writer, corpus) for path in files]
            build_corpus(writer, parts, MergeOptions(outside="keep"), base=corpus, reporter=reporter)
            writer.facts["skipped_files"] = {}
            writer.finish()
    return Corpus.open(output)


def fetched_files(folder: Path) -> list[Path]:
    """The files that an enrichment wrote, in a fixed order."""
    return sorted(path for kind in (PAPERS, *AROUND) for path in folder.glob(f"*_{kind}.jsonl"))


def _stage(path: Path, writer: ArtefactWriter, corpus: Corpus) -> Part:
    folder = writer.work("parts") / path.stem
    if not is_complete(folder):
        part = PartWriter(folder, keep_ids=True)
        source = Source(path)
        format = guess_format(source) or "openalex"
        part.add(_told_apart(reader_of(format).read(source, part.tally), corpus))
        part.finish({"name": path.name, "format": format})
    return Part(folder)


def _told_apart(records: Iterable[StagedRecord], corpus: Corpus) -> Iterator[StagedRecord]:
    """Papers that the corpus does not have, or no longer, become stubs; stubs of a reader, known by title alone, go."""
    for record in records:
        if not isinstance(record, Paper):
            yield record
        elif not record.stub:
            names = [record.id, *record.ids, title_key(record.title, record.year) or record.id]
            yield replace(record, stub=bool((corpus.rows(names) < 0).all()))
