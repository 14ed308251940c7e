"""Real files of every format: who recognizes them, how many records of which kind they hold, and a hash of those.

Where a hash changes on purpose, `READERS_VERSION` goes up with it.
"""

import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict, replace

import pytest

from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, CitationBlock, Context, ContextBlock, Paper
from citeweave.corpus.readers import FORMATS, reader_of

COLUMNS = "files papers stubs title abstract year venue authors doi citations mentions contexts notes"
"""After a hash of all records: files, papers that are no stubs, stubs, how many of both have which field, ..."""

SAMPLES = """
acl_anthology f1786d49 3 131 0 131 36 131 131 131 36 0 0 0 0; papers: front matter, no paper 6
arxiv 79c695f9 6 212 0 212 212 212 0 212 123 0 0 0 0; papers: error message of the arXiv API 1
bibtex 235c5fec 10 1066 0 1066 34 960 632 1064 29 0 0 0 2; papers: no title 2; papers: unbalanced braces 1
crossref 0900584d 9 76 126 202 28 199 111 187 123 377 377 0 1; citations: reference without a usable id 205
csl_json 31bf6f6b 3 196 0 196 33 194 170 188 100 0 0 0 3
grobid_tei 3bae08b6 3 3 55 58 3 55 43 56 0 55 75 49 51; citations: reference without a usable id 19; contexts: no cited paper 27
jats 422c7111 2 2 53 55 2 55 52 55 39 53 95 51 3; citations: reference without a usable id 1; contexts: no cited paper 1
openalex 15eba0ff 4 12 0 12 4 12 5 4 12 276 276 0 0; papers: no title and no abstract 12
pubmed 7c6e6cd0 11 15 0 15 14 15 15 15 11 193 193 0 3
ris 7feedb1a 8 111 0 111 110 111 111 111 109 127 127 0 8; citations: reference without a usable id 18
s2_graph_api 8e414b6d 12 125 74 199 115 154 131 152 76 58 58 0 0; citations: reference without a usable id 28; citations: the file does not name the cited paper 1; citations: the file does not name the citing paper 114; contexts: the file does not name the cited paper 4; contexts: the file does not name the citing paper 73; papers: id not found at the source 1; papers: no id 28
s2ag 38f9ac40 3 200 0 100 100 97 10 100 20 77 77 44 0; citations: no cited paper 23; contexts: citation without both papers 35
s2orc 848fb30b 1 2 46 48 1 46 44 42 1 46 75 37 0; citations: reference without a usable id 1; contexts: no cited paper 3
s2orc_2020 038102bd 5 91 126 214 35 211 193 213 29 757 842 117 0; citations: reference without a usable id 4; contexts: no cited paper 1
scirepeval ed6f9c81 5 231 0 231 220 40 26 39 0 20 20 0 14
specter f82aa408 3 72 0 72 72 0 0 0 0 85 85 0 0; citations: citation of a citation (count 1), not a citation 337
unarxive 6cddcec6 1 6 0 6 6 6 0 6 0 37 57 36 21; citations: reference without a usable id 13; contexts: no cited paper 6
"""
FOLDERS = {"s2ag": "s2ag_bulk", "s2orc": "s2ag_bulk", "s2orc_2020": "s2orc_20200705"}
"""Folders that are not named for their format."""
FULL_TEXTS = ("grobid_tei", "jats", "s2orc", "s2orc_2020", "unarxive")
OTHERS = "fos_labels.txt mesh_descriptors.txt tasks_config.json sample.ids train.txt val.txt test.txt"


def as_json(value):
    """Arrays of a block as lists; its function that returns ids, called."""
    return value.tolist() if hasattr(value, "tolist") else value()


def count_records(format, path, digest, count):
    tally, cited, in_contexts = Tally(), set(), set()
    for record in reader_of(format).read(Source(path), tally):
        # where a sentence ends is sentencex's choice, which changes
        is_split = isinstance(record, Context) and format in FULL_TEXTS
        fields = asdict(replace(record, text="") if is_split else record)
        digest.update(json.dumps(fields, sort_keys=True, default=as_json).encode())
        match record:
            case Paper():
                count["stubs" if record.stub else "papers"] += 1
                count["doi"] += any(id.startswith("doi:") for id in (record.id, *record.ids))
                for field in ("title", "abstract", "year", "venue", "authors"):
                    count[field] += bool(getattr(record, field))
                assert format != "crossref" or not re.search("<jats|</", record.title + record.abstract)
            case Citation():
                count.update(citations=1, mentions=int(record.strength))
                cited.add(record.cited)
            case Context():
                count["contexts"] += 1
                in_contexts |= set(record.cited)
            case CitationBlock():
                count.update(citations=len(record.citing), mentions=int(record.strength.sum()))
            case ContextBlock():
                count["contexts"] += len(record.citing)
    assert in_contexts <= cited
    count.update(files=1, notes=sum(tally.notes.values()))
    for kind, counts in tally.counts.items():
        count.update({f"{kind}: {reason}": number for reason, number in counts.rejected.items()})


@pytest.mark.parametrize("line", SAMPLES.strip().splitlines(), ids=lambda line: line.split()[0])
def test_real_files_are_recognized_by_their_reader_alone_and_every_record_counted(shared, line):
    format = line.split()[0]
    digest, count = hashlib.blake2b(digest_size=4), Counter()
    for path in sorted((shared / "samples" / FOLDERS.get(format, format)).rglob("*.*")):
        head = Source(path).head()
        formats = [one for one in FORMATS if one != "plain" and reader_of(one).recognizes(head)]
        assert formats == [format] or (
            FOLDERS.get(formats[0]) == FOLDERS[format] if formats else path.name in OTHERS.split()
        )
        if formats == [format]:
            count_records(format, path, digest, count)
    reasons = (f"; {reason} {number}" for reason, number in sorted(count.items()) if ":" in reason)
    counts = " ".join(str(count[one]) for one in COLUMNS.split())
    assert f"{format} {digest.hexdigest()} {counts}{''.join(reasons)}" == line


CITING = [
    ("s2ag_bulk/s2orc-sample.jsonl", "These axioms have been crucial", 5),
    ("s2orc_20200705/pdf_parse_94551546.json", "immunogenicity and low capability for scaling up. 2", 1),
    ("jats/elife-12916-v2.xml", "The midbrain and cerebral association cortex (Stein and Stanford, 2008)", 5),
    ("jats/pmc_1472-6831-8-11.nxml", "[7-12]", 6),
    ("grobid_tei/N18-3011.tei.xml", "(e.g., Wu et al., 2014), researchers remain unable", 1),
    ("unarxive/arXiv_src_2212_086.sel6.jsonl", "Thirty years ago it was pointed out in our paper [CIT] that", 1),
]


@pytest.mark.parametrize(("path", "words", "cited"), CITING)
def test_real_citing_sentences_have_their_marks(shared, path, words, cited):
    source = Source(shared / "samples" / path)
    (format,) = (one for one in FORMATS if one != "plain" and reader_of(one).recognizes(source.head()))
    contexts = [record for record in reader_of(format).read(source, Tally()) if isinstance(record, Context)]
    assert len(next(one for one in contexts if words in one.text).cited) == cited
    assert not any("{{" in one.text or "decision letter" in one.text.lower() for one in contexts)
