"""Importing papers: every record accounted for, resuming, inputs that change, and the same bytes however it is run."""

import json
import os
import shutil

import numpy as np
import pytest

from citeweave import Corpus, ImportOptions, import_papers
from citeweave.core.errors import ArtifactError, EmptyResultError, InputError
from citeweave.core.progress import MERGED, MergedEntry, rejected_entries
from citeweave.core.publish import work_folder
from citeweave.corpus import ingest, input_files

from .conftest import refused


def test_a_data_folder_becomes_a_corpus_and_every_record_is_accounted_for(library, tmp_path):
    corpus = import_papers([library], tmp_path / "corpus").corpus
    assert list(corpus.ids) == ["a", "b", "c"] and corpus.years.tolist() == [2020, 2018, 2019]
    paper = corpus.paper(1)
    assert (paper.title, paper.abstract, paper.authors) == ("Ice on the Moon", "", ("Ada One", "Ben Two"))
    assert corpus.paper(0).fields == ("moon",)
    pairs = zip(corpus.citing.tolist(), corpus.cited.tolist(), corpus.strengths.tolist(), strict=True)
    assert list(pairs) == [(0, 1, 3.0), (0, 2, 1.0)]
    context = corpus.context(0)
    assert (context.citing, context.cited, context.section) == ("a", ("b", "c"), "Intro")
    assert len(corpus.contexts) == 1 and np.diff(corpus.contexts.outside_offsets).tolist() == [1]
    records = corpus.manifest.facts["records"]
    assert records["papers"] == {"read": 3, "kept": 3, "rejected": {}}
    reasons = ("cited paper not in the corpus", "paper cites itself", "same citation given again (merged)")
    assert records["citations"] == {"read": 5, "kept": 2, "rejected": dict.fromkeys(reasons, 1)}
    assert records["contexts"]["read"] == 2 and records["contexts"]["kept"] == 1
    assert corpus.rows(["doi:10.1000/c", "c", "nothing"]).tolist() == [2, 2, -1], "any id leads to its row"
    assert corpus.row("title:maps of the lunar south pole|2020") == 0
    refused("'nothing' is not in", corpus.row, "nothing")


def test_an_unchanged_import_is_skipped_and_another_refused(library, tmp_path):
    assert [import_papers([library], tmp_path / "corpus").skipped for _ in range(2)] == [False, True]
    refused("made from other inputs", import_papers, [library / "papers.jsonl.gz"], tmp_path / "corpus")
    again = import_papers([library / "papers.jsonl.gz"], tmp_path / "corpus", overwrite=True)
    assert len(again.corpus.citing) == 0


def test_papers_outside_are_kept_on_request(library, tmp_path, write):
    keep = ImportOptions(outside="keep")
    corpus = import_papers([library], tmp_path / "corpus", keep).corpus
    assert (len(corpus), len(corpus.citing)) == (4, 3)
    paper = corpus.paper(corpus.row("nowhere"))
    assert paper.stub and paper.title == ""
    edges = write("citations.tsv", "1\t2\n2\t3\n")
    refused("--outside keep", import_papers, [edges], tmp_path / "graph", error=EmptyResultError)
    assert not (tmp_path / "graph").exists()
    graph = import_papers([edges], tmp_path / "graph", keep).corpus
    assert (len(graph), len(graph.citing)) == (3, 2)


def test_workers_and_memory_never_change_a_byte(tmp_path, write, monkeypatch):
    rng = np.random.default_rng(5)
    for shard in range(3):
        titles = {shard * 2000 + n: f"A long enough title number {shard} {n}" for n in range(2000)}
        papers = [{"corpusid": id, "title": title, "year": 2000} for id, title in titles.items()]
        write(f"shards/papers{shard}.jsonl.gz", *papers)
        more = {"isinfluential": False, "intents": ["result"]}
        pairs = rng.integers(0, 6000, (40_000, 2)).tolist()
        edges = [{"citingcorpusid": a, "citedcorpusid": b, "contexts": [f"see {a} {b % 7}"], **more} for a, b in pairs]
        write(f"shards/citations{shard}.jsonl.gz", *edges)
    one = import_papers([tmp_path / "shards"], tmp_path / "one", ImportOptions(workers=1)).corpus
    monkeypatch.setattr(ingest, "_ONE_PROCESS_BELOW", 0)
    files = {path.relative_to(one.folder): path for path in one.folder.rglob("*") if path.is_file()}
    for memory in (2**20, 2**28):
        options = ImportOptions(workers=2, memory=memory)
        two = import_papers([tmp_path / "shards"], tmp_path / f"two {memory}", options).corpus
        assert one.hash == two.hash and len(one.citing) > 100_000
        assert len(list(two.folder.rglob("*"))) == len(list(one.folder.rglob("*")))
        for name, path in files.items():
            assert path.read_bytes() == (two.folder / name).read_bytes() or name.name == "manifest.json", name


def test_an_interrupted_import_resumes(library, tmp_path, monkeypatch):
    complete = import_papers([library], tmp_path / "complete").corpus
    staged: list[str] = []
    real = ingest.stage_file

    def stage(file, folder, *, keep_ids):
        if file.path.name.startswith("papers") and len(staged) == 2:
            raise KeyboardInterrupt
        staged.append(file.path.name)
        real(file, folder, keep_ids=keep_ids)

    monkeypatch.setattr(ingest, "stage_file", stage)
    with pytest.raises(KeyboardInterrupt):
        import_papers([library], tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
    refused("interrupted", Corpus.open, tmp_path / "broken", error=ArtifactError)
    staged.append("the crash is over")
    resumed = import_papers([library], tmp_path / "broken").corpus
    assert staged[3:] == ["papers.jsonl.gz"], "parts that were done are not read again"
    assert resumed.hash == complete.hash and not work_folder(tmp_path / "broken").exists()


@pytest.mark.parametrize("change", ["rewritten", "removed"])
@pytest.mark.parametrize("is_settled", [True, False])
def test_an_input_that_changes_while_it_is_read_is_refused(tmp_path, write, monkeypatch, change, is_settled):
    path = write("a.jsonl", {"id": "a", "title": "Before"})
    if is_settled:
        os.utime(path, (1e9, 1e9))
    complete = import_papers(path, tmp_path / "complete").corpus

    def read(place):
        shutil.copyfile(place, tmp_path / "copy")
        write("a.jsonl", {"id": "a", "title": "After!"})  # of the same size
        return real_source(place if change == "rewritten" else place.rename(tmp_path / "removed"))

    real_source = ingest.Source
    monkeypatch.setattr(ingest, "Source", read)
    with pytest.raises(InputError, match=r"a\.jsonl was changed or removed while it was read"):
        import_papers(path, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    monkeypatch.undo()
    shutil.copyfile(tmp_path / "copy", path)
    again = import_papers(path, tmp_path / "corpus").corpus
    assert again.hash == complete.hash and again.titles[0] == "Before"


def test_the_size_of_an_input_is_that_of_what_was_hashed(tmp_path, write, monkeypatch):
    path, real = write("a.jsonl", {"id": "a", "title": "T"}), input_files.file_state

    def late(place):
        state = real(place)
        monkeypatch.setattr(input_files, "file_state", real)
        write("a.jsonl", {"id": "a", "title": "A longer title"})
        return state

    monkeypatch.setattr(input_files, "file_state", late)
    made = import_papers(path, tmp_path / "corpus").corpus
    assert made.titles[0] == "A longer title" and made.manifest.facts["files"]["bytes_read"] == path.stat().st_size


def test_an_input_that_is_only_touched_is_not_refused(tmp_path, write, monkeypatch):
    real = ingest.Source
    monkeypatch.setattr(ingest, "Source", lambda place: os.utime(place, (1e9, 1e9)) or real(place))
    assert len(import_papers(write("a.jsonl", {"id": "a", "title": "T"}), tmp_path / "corpus").corpus) == 1


def test_a_refused_file_leaves_nothing_beside_the_output(tmp_path, write):
    good, bad = write("a.bib", "@article{a, title={The cell grows}}"), write("bad.bib", "nothing")
    refused("bad.bib holds no BibTeX entry", import_papers, bad, tmp_path / "corpus", error=InputError)
    assert {path.name for path in tmp_path.iterdir()} == {"a.bib", "bad.bib"}
    with pytest.raises(InputError, match="bad.bib"):
        import_papers([good, bad], tmp_path / "corpus")  # what was read of the good file is kept for the next run
    assert len(list(work_folder(tmp_path / "corpus").glob("kept/parts/*/part.json"))) == 1


WRONG_OPTIONS = [
    ({"outside": "kepe"}, "Did you mean 'keep'"),
    ({"same_title": "maybe"}, "same_title is 'maybe'"),
    ({"format": "bibtexx"}, "Did you mean 'bibtex'"),
    ({"memory": 12}, "memory is 12 bytes; it must be at least 1MB"),
    ({"workers": -1}, "workers is -1"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS)
def test_wrong_options_are_named(library, tmp_path, options, message):
    refused(message, lambda: import_papers([library], tmp_path / "corpus", ImportOptions(**options)))


def test_rejected_entries_are_named_by_file_key_and_line(tmp_path, write):
    bib = "@article{good, title={Rain on the Moon}, year=2020}\n\n@article{untitled, year=2021}\n@article{open, title={A\n"
    bib += "@article{last, title={Ice}, doi={10.1000/ice}}\n@misc{ice, title={Ice again}, doi={10.1000/ICE}}"
    write("a.bib", bib)
    write("b.ris", "TY  - JOUR\nTI  - Dust\nER  - \n\nTY  - JOUR\nID  - empty\nER  - \n")
    entries = [{"id": "c1", "type": "article", "title": "Wind", "author": []}, {"id": "c2", "type": "article"}]
    write("c.json", json.dumps([*entries, {"type": "article"}]))
    corpus = import_papers([tmp_path / name for name in ("a.bib", "b.ris", "c.json")], tmp_path / "corpus").corpus
    assert [str(entry) for entry in rejected_entries(corpus.manifest.facts)] == [
        "untitled, a.bib, line 3: no title",
        "open, a.bib, line 4: unbalanced braces",
        "empty, b.ris, line 5: no title and no abstract",
        "c2, c.json: no title and no abstract",
        "entry 3, c.json: no id",
    ]
    ice = {"key": "ice", "file": "a.bib", "same_as": "last", "same_file": "a.bib"}
    assert corpus.manifest.facts["merged_entries"] == [ice], "nothing of it is lost"
    assert str(MergedEntry(**ice)) == "ice, a.bib is the same paper as last"
    rejected = corpus.manifest.facts["records"]["papers"]["rejected"]
    assert sum(rejected.values()) == 6 and not any("untitled" in reason for reason in rejected)


def test_bulk_files_that_complete_each_other_lose_nothing(tmp_path, write):
    write("s2/papers.jsonl", *({"corpusid": n, "title": f"A title of paper {n}", "year": 2000} for n in range(3)))
    write("s2/abstracts.jsonl", *({"corpusid": n, "abstract": f"We study number {n}."} for n in range(3)))
    facts = import_papers([tmp_path / "s2"], tmp_path / "corpus").corpus.manifest.facts
    assert facts["records"]["papers"] == {"read": 6, "kept": 3, "rejected": {MERGED: 3}}
    assert not rejected_entries(facts) and "merged_entries" not in facts
    older = {"key": "c1", "line": 0, "reason": MERGED, "file": "a.jsonl"}
    assert not rejected_entries({"rejected_entries": [older]}), "corpora of older versions list merged entries here"
