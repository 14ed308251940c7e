"""Updates: the next generation of a corpus, with papers added, changed and deleted."""

import numpy as np
import pytest

from citeweave import ImportOptions, exclude_papers, import_papers, synthesize
from citeweave.core.errors import ArtifactError, EmptyResultError
from citeweave.corpus import ingest
from citeweave.corpus.corpus import Changes
from citeweave.corpus.options import SyntheticOptions

from .conftest import refused

WITH_ABSTRACT = {"id": "b", "title": "Ice on the Moon", "abstract": "Now with abstract.", "year": 2018}


def test_an_update_equals_importing_everything_at_once(library, tmp_path, write):
    found = {"title": "Now we know this one too", "abstract": "Found.", "year": 2017, "references": ["c"]}
    new = write("new/papers2.jsonl.gz", {"id": "nowhere", **found}, WITH_ABSTRACT)  # its name comes last, as an update
    base = import_papers([library], tmp_path / "base").corpus
    updated = import_papers([new], tmp_path / "next", update=tmp_path / "base").corpus
    at_once = import_papers([library, new], tmp_path / "both").corpus
    assert list(updated.ids) == ["a", "b", "c", "nowhere"]
    for name in ("titles", "abstracts", "ids", "other_ids"):
        assert list(getattr(updated, name)) == list(getattr(at_once, name)), name
    assert updated.citing.tolist() == at_once.citing.tolist() == [0, 0, 0, 3]
    assert updated.cited.tolist() == at_once.cited.tolist() == [1, 2, 3, 2], "the reference led outside before"
    assert list(updated.contexts.texts) == list(at_once.contexts.texts)
    assert len(base) == 3, "the old generation is untouched"


def test_an_update_records_what_changed_and_shares_the_rest(library, tmp_path, write):
    import_papers([library], tmp_path / "base")
    corpus = import_papers([write("new.jsonl", WITH_ABSTRACT)], tmp_path / "next", update=tmp_path / "base").corpus
    assert corpus.changes is not None
    assert corpus.changes.change.tolist() == [0, Changes.TEXT, 0] and corpus.changes.previous.tolist() == [0, 1, 2]
    assert corpus.manifest.facts["generation"] == 2
    for name in ("citations/citing.npy", "contexts/text.utf8", "papers/title.utf8", "papers/abstract.utf8"):
        shared = len({(tmp_path / folder / name).stat().st_ino for folder in ("base", "next")}) == 1
        assert shared == ("abstract" not in name), name


def test_a_newer_bib_updates_entries_by_their_key(tmp_path, write):
    old = "@article{k1, title={Frist title with a typo in it}, year={2000}}\n"
    new = "@article{k1, title={First title with no typo in it}, year={2000}}\n"
    second = "@article{k2, title={The second of two papers}, year={2001}}\n"
    third = "@article{k3, title={A third paper comes along}, year={2002}}\n"
    import_papers([write("library.bib", old, second)], tmp_path / "base")
    corpus = import_papers([write("library.bib", new, third)], tmp_path / "next", update=tmp_path / "base").corpus
    assert list(corpus.ids) == ["k1", "k2", "k3"] and corpus.titles[0] == "First title with no typo in it"
    changed = Changes.TEXT | Changes.OTHER  # `extra` holds the entry as it is written, which is another one now
    assert corpus.changes is not None and corpus.changes.change.tolist() == [changed, 0, Changes.NEW]


def test_a_base_that_is_replaced_meanwhile_is_not_mixed(library, tmp_path, write, monkeypatch):
    import_papers(library, tmp_path / "base")
    real = ingest.check_files

    def late(*arguments, **options):
        real(*arguments, **options)
        monkeypatch.undo()
        import_papers(library, tmp_path / "base", ImportOptions(outside="keep"), overwrite=True)

    monkeypatch.setattr(ingest, "check_files", late)
    new, replaced = write("new.jsonl", {"id": "new", "title": "A new paper"}), "base/.* was replaced while it was read"
    refused(replaced, import_papers, new, tmp_path / "c", update=tmp_path / "base", error=ArtifactError)
    assert not (tmp_path / "c").exists()


def test_damage_of_a_large_corpus_is_not_passed_on(library, tmp_path, write, as_large):
    corpus = import_papers([library], tmp_path / "corpus").corpus
    path = tmp_path / "corpus/papers/title.utf8"
    path.write_bytes(b"#" + path.read_bytes()[1:])
    with pytest.raises(ArtifactError, match="title.utf8 is damaged"):
        import_papers([write("new.jsonl", {"id": "n", "title": "New"})], tmp_path / "updated", update=corpus.folder)
    with pytest.raises(ArtifactError, match="title.utf8 is damaged"):
        exclude_papers(corpus, np.array([0]), tmp_path / "without", why="a test")


def test_deletions_leave_papers_and_their_citations_out(library, tmp_path, write):
    import_papers([library], tmp_path / "base")
    deleted = write("deleted.jsonl", {"id": "c", "title": "Craters"})
    new = write("new.jsonl", {"id": "d", "title": "Dust", "references": ["b"]})
    corpus = import_papers([new], tmp_path / "next", update=tmp_path / "base", delete=[deleted]).corpus
    assert list(corpus.ids) == ["a", "b", "d"] and corpus.manifest.facts["changes"]["gone"] == 1
    assert corpus.citing.tolist() == [0, 2] and corpus.cited.tolist() == [1, 1]
    refused("--update", import_papers, [new], tmp_path / "other", delete=[deleted])


def test_citations_are_deleted_by_any_id_of_their_papers(library, tmp_path, write):
    import_papers([library], tmp_path / "base")
    deleted = write("deleted.tsv", "a\tdoi:10.1000/c\na\tnowhere\nb\tc\n")
    new = write("new.jsonl", {"id": "nowhere", "title": "Now we know it"})
    corpus = import_papers([new], tmp_path / "next", update=tmp_path / "base", delete=[deleted]).corpus
    assert corpus.citing.tolist() == [0] and corpus.cited.tolist() == [1]
    assert corpus.manifest.facts["records"]["citations"]["rejected"] == {"deleted on request": 2}
    assert corpus.manifest.facts["deletions_not_found"] == 1, "b never cited c"


def test_a_bib_entry_deletes_by_title_or_key_and_misses_are_counted(tmp_path, write):
    short = "@article{k2, title={Short}, year={2001}}\n"
    first = "@article{k1, title={The first of all these papers}, year={2000}}\n"
    third = "@article{k3, title={The third of all these papers}, year={2001}}\n"
    import_papers([write("library.bib", first, short, third)], tmp_path / "base")
    same = "@article{other, title={The First of all These Papers}, year={2000}}\n"
    unknown = "@article{none, title={Nobody knows this paper at all}, year={2001}}\n"
    deleted, new = write("deleted.bib", same, short, unknown), write("new.jsonl", {"id": "d", "title": "Dust"})
    corpus = import_papers([new], tmp_path / "next", update=tmp_path / "base", delete=[deleted]).corpus
    assert list(corpus.ids) == ["k3", "d"] and corpus.manifest.facts["deletions_not_found"] == 1


def test_excluding_papers_makes_a_new_generation(library, tmp_path):
    corpus = import_papers([library], tmp_path / "base").corpus
    without = exclude_papers(corpus, np.array([1]), tmp_path / "without", why="a test")
    assert list(without.ids) == ["a", "c"] and without.cited.tolist() == [1]
    with pytest.raises(EmptyResultError, match="no paper of the corpus would be left"):
        exclude_papers(corpus, np.arange(3), tmp_path / "none", why="a test")
    assert not (tmp_path / "none").exists()


def test_a_synthetic_literature_stays_marked_as_synthetic(tmp_path):
    corpus = synthesize(tmp_path / "synthetic", SyntheticOptions(papers=50))
    without = exclude_papers(corpus, np.array([1]), tmp_path / "without", why="a test")
    assert without.manifest.facts["made_up"] is True
