"""Importing: every record accounted for, identity, updates, resuming, and the same bytes however it is run."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus, ImportOptions, exclude_papers, import_papers
from citeweave.core.errors import ArtifactError, EmptyResultError, InputError, UserError
from citeweave.core.publish import work_folder
from citeweave.corpus.corpus import Changes


def write_lines(path: Path, records: list[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A data folder: three papers, four citations (one to itself, one outside, one twice), two contexts."""
    folder = tmp_path / "library"
    write_lines(
        folder / "papers.jsonl.gz",
        [
            {
                "id": "a",
                "title": "Maps of the lunar south pole",
                "abstract": "We map ice.",
                "year": 2020,
                "field": "moon",
            },
            {"id": "b", "title": "Ice on the Moon", "year": 2018.0, "authors": ["Ada One", "Ben Two"]},
            {
                "id": "c",
                "title": "Craters",
                "abstract": "Deep ones.",
                "year": "2019",
                "doi": "https://doi.org/10.1000/C",
            },
        ],
    )
    (folder / "citations.tsv").write_text("a\tb\t3\na\tc\t1\na\tb\t2\nb\tb\na\tnowhere\n")
    write_lines(
        folder / "contexts.jsonl",
        [
            {"citing": "a", "text": "Ice was seen [1].", "cited": ["b", "outside"], "section": "Intro"},
            {"citing": "a", "text": "Ice was seen [1].", "cited": ["doi:10.1000/c"]},
        ],
    )
    return folder


def records_of(corpus: Corpus) -> dict[str, dict[str, object]]:
    records = corpus.manifest.facts["records"]
    assert isinstance(records, dict)
    return records


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != "manifest.json"
    }


def test_a_data_folder_becomes_a_corpus(library: Path, tmp_path: Path) -> None:
    corpus = import_papers([library], tmp_path / "corpus").corpus
    assert list(corpus.ids) == ["a", "b", "c"]
    assert corpus.years.tolist() == [2020, 2018, 2019]
    paper = corpus.paper(1)
    assert (paper.title, paper.abstract, paper.authors) == ("Ice on the Moon", "", ("Ada One", "Ben Two"))
    assert corpus.paper(0).fields == ("moon",)
    pairs = list(zip(corpus.citing.tolist(), corpus.cited.tolist(), corpus.strengths.tolist(), strict=True))
    assert pairs == [(0, 1, 3.0), (0, 2, 1.0)]
    context = corpus.context(0)
    assert (context.citing, context.cited, context.section) == ("a", ("b", "c"), "Intro")
    assert len(corpus.contexts) == 1 and np.diff(corpus.contexts.outside_offsets).tolist() == [1]


def test_every_record_is_accounted_for(library: Path, tmp_path: Path) -> None:
    records = records_of(import_papers([library], tmp_path / "corpus").corpus)
    assert records["papers"] == {"read": 3, "kept": 3, "rejected": {}}
    assert records["citations"] == {
        "read": 5,
        "kept": 2,
        "rejected": {
            "cited paper not in the corpus": 1,
            "paper cites itself": 1,
            "same citation given again (merged)": 1,
        },
    }
    assert records["contexts"]["read"] == 2 and records["contexts"]["kept"] == 1


def test_any_id_of_a_paper_leads_to_its_row(library: Path, tmp_path: Path) -> None:
    corpus = import_papers([library], tmp_path / "corpus").corpus
    assert corpus.rows(["doi:10.1000/c", "c", "nothing"]).tolist() == [2, 2, -1]
    assert corpus.row("title:maps of the lunar south pole|2020") == 0
    with pytest.raises(UserError, match="'nothing' is not in"):
        corpus.row("nothing")


def test_an_unchanged_import_is_skipped_and_another_refused(library: Path, tmp_path: Path) -> None:
    first = import_papers([library], tmp_path / "corpus")
    second = import_papers([library], tmp_path / "corpus")
    assert not first.skipped and second.skipped
    with pytest.raises(UserError, match="made from other inputs"):
        import_papers([library / "papers.jsonl.gz"], tmp_path / "corpus")
    again = import_papers([library / "papers.jsonl.gz"], tmp_path / "corpus", overwrite=True)
    assert len(again.corpus.citing) == 0


@pytest.mark.parametrize("memory", [2**20, 2**28])
def test_workers_and_memory_never_change_a_byte(tmp_path: Path, memory: int) -> None:
    rng = np.random.default_rng(5)
    shards = tmp_path / "shards"
    for shard in range(3):
        rows = [
            {"corpusid": shard * 2000 + i, "title": f"A long enough title number {shard} {i}", "year": 2000}
            for i in range(2000)
        ]
        write_lines(shards / f"papers{shard}.jsonl.gz", rows)  # type: ignore[arg-type]
        edges = [
            {
                "citingcorpusid": int(a),
                "citedcorpusid": int(b),
                "isinfluential": False,
                "contexts": [f"see {a} {b % 7}"],
                "intents": ["result"],
            }
            for a, b in rng.integers(0, 6000, (40_000, 2))
        ]
        write_lines(shards / f"citations{shard}.jsonl.gz", edges)  # type: ignore[arg-type]
    import citeweave.corpus.ingest as ingest

    limit = ingest._ONE_PROCESS_BELOW
    one = import_papers([shards], tmp_path / "one", ImportOptions(workers=1))
    try:
        ingest._ONE_PROCESS_BELOW = 0
        two = import_papers([shards], tmp_path / "two", ImportOptions(workers=2, memory=memory))
    finally:
        ingest._ONE_PROCESS_BELOW = limit
    assert one.corpus.hash == two.corpus.hash
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert len(one.corpus.citing) > 100_000


def test_an_interrupted_import_goes_on(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import citeweave.corpus.ingest as ingest

    whole = import_papers([library], tmp_path / "whole").corpus
    staged: list[str] = []
    real = ingest.stage_file

    def stage(file: ingest.InputFile, folder: Path, *, keep_ids: bool) -> None:
        if file.path.name.startswith("papers") and len(staged) == 2:
            raise KeyboardInterrupt
        staged.append(file.path.name)
        real(file, folder, keep_ids=keep_ids)

    monkeypatch.setattr(ingest, "stage_file", stage)
    with pytest.raises(KeyboardInterrupt):
        import_papers([library], tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
    with pytest.raises(ArtifactError, match="interrupted"):
        Corpus.open(tmp_path / "broken")
    staged.append("the crash is over")
    resumed = import_papers([library], tmp_path / "broken").corpus
    assert staged[3:] == ["papers.jsonl.gz"], "parts that were done are not read again"
    assert resumed.hash == whole.hash
    assert not work_folder(tmp_path / "broken").exists()


@pytest.mark.parametrize("change", ["rewritten", "removed"])
@pytest.mark.parametrize("is_settled", [True, False])
def test_an_input_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, is_settled: bool
) -> None:
    import citeweave.corpus.ingest as ingest

    path, before = tmp_path / "a.jsonl", {"id": "a", "title": "Before"}
    write_lines(path, [before])
    if is_settled:
        os.utime(path, (1e9, 1e9))
    whole = import_papers(path, tmp_path / "whole").corpus

    def read(place: Path) -> ingest.Source:
        shutil.copyfile(place, tmp_path / "kept")
        write_lines(place, [{"id": "a", "title": "After!"}])  # of the same size
        if change == "removed":
            place.rename(tmp_path / "gone")
            return real_source(tmp_path / "gone")
        return real_source(place)

    real_source = ingest.Source
    monkeypatch.setattr(ingest, "Source", read)
    with pytest.raises(InputError, match=r"a\.jsonl was changed or removed while it was read"):
        import_papers(path, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    monkeypatch.undo()
    shutil.copyfile(tmp_path / "kept", path)
    again = import_papers(path, tmp_path / "corpus").corpus
    assert again.hash == whole.hash and again.titles[0] == "Before"


def test_the_size_of_an_input_is_that_of_what_was_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import citeweave.corpus.input_files as input_files

    path, real = write_lines(tmp_path / "a.jsonl", [{"id": "a", "title": "T"}]), input_files.file_state

    def late(place: Path) -> tuple[int, int, int, int]:
        state = real(place)
        monkeypatch.setattr(input_files, "file_state", real)
        write_lines(place, [{"id": "a", "title": "A longer title"}])
        return state

    monkeypatch.setattr(input_files, "file_state", late)
    made = import_papers(path, tmp_path / "corpus").corpus
    assert made.titles[0] == "A longer title" and made.manifest.facts["files"]["bytes_read"] == path.stat().st_size


def test_a_base_that_is_replaced_meanwhile_is_not_mixed(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import citeweave.corpus.ingest as ingest

    import_papers(library, tmp_path / "base")
    new = write_lines(tmp_path / "new.jsonl", [{"id": "new", "title": "A new paper"}])
    real = ingest.check_files

    def late(*given: object, **options: bool) -> None:
        real(*given, **options)  # type: ignore[arg-type]
        monkeypatch.undo()
        import_papers(library, tmp_path / "base", ImportOptions(outside="keep"), overwrite=True)

    monkeypatch.setattr(ingest, "check_files", late)
    with pytest.raises(ArtifactError, match="base/.* was replaced while it was read"):
        import_papers(new, tmp_path / "corpus", update=tmp_path / "base")
    assert not (tmp_path / "corpus").exists()


def test_an_input_that_is_only_touched_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import citeweave.corpus.ingest as ingest

    path = write_lines(tmp_path / "a.jsonl", [{"id": "a", "title": "T"}])
    real = ingest.Source
    monkeypatch.setattr(ingest, "Source", lambda place: os.utime(place, (1e9, 1e9)) or real(place))
    assert len(import_papers(path, tmp_path / "corpus").corpus) == 1


@pytest.mark.parametrize("column", ["titles", "years", "citing", "contexts", "index", "flags"])
def test_a_corpus_that_was_replaced_since_it_was_opened_is_not_mixed(
    library: Path, tmp_path: Path, column: str
) -> None:
    import_papers(library, tmp_path / "corpus")
    opened = Corpus.open(tmp_path / "corpus")
    assert opened.abstracts
    import_papers(library, tmp_path / "corpus", ImportOptions(outside="keep"), overwrite=True)
    with pytest.raises(ArtifactError, match="was replaced while it was read"):
        getattr(opened, column)
    assert getattr(Corpus.open(tmp_path / "corpus"), column) is not None


def test_records_of_one_paper_are_merged_by_the_rule(tmp_path: Path) -> None:
    bib = tmp_path / "library.bib"
    bib.write_text(
        "@article{smith, title={Attention to the details of maps}, year={2017}, doi={10.1000/XY}}\n"
        "@article{jones, title={A wholly different thing altogether}, year={2001}}\n"
    )
    lines = write_lines(
        tmp_path / "papers.jsonl",
        [
            {
                "id": "arxiv:1706.03762",
                "title": "Attention to the Details of Maps!",
                "abstract": "We attend.",
                "year": 2017,
            },
            {"id": "x9", "title": "Other name, same DOI", "doi": "10.1000/xy", "venue": "Journal of Maps"},
        ],
    )
    corpus = import_papers([bib, lines], tmp_path / "corpus").corpus
    assert len(corpus) == 2
    paper = corpus.paper(corpus.row("doi:10.1000/xy"))
    assert paper.abstract == "We attend.", "the record with an abstract wins"
    assert paper.title == "Attention to the Details of Maps!"
    assert paper.venue == "Journal of Maps", "what the winner leaves empty comes from the others"
    assert corpus.row("arxiv:1706.03762") == corpus.row("x9") == corpus.row("doi:10.1000/xy")
    assert records_of(corpus)["papers"]["rejected"] == {"same paper as another record (merged)": 2}
    rows, _, ids = corpus.merges()
    assert sorted(ids) == ["arxiv:1706.03762", "smith", "x9"] and len(set(rows.tolist())) == 1


def test_the_newest_record_wins_among_those_with_abstract(tmp_path: Path) -> None:
    records = [
        {"id": "a", "title": "New", "abstract": "New text", "updated": "2024-05-01"},
        {"id": "a", "title": "Old", "abstract": "Old text", "updated": "2020-05-01"},
        {"id": "a", "title": "Newest without abstract", "updated": "2025-05-01"},
    ]
    corpus = import_papers([write_lines(tmp_path / "p.jsonl", records)], tmp_path / "corpus").corpus
    assert len(corpus) == 1 and corpus.abstracts[0] == "New text"


def test_the_order_of_the_inputs_decides_nothing(tmp_path: Path) -> None:
    """Two records disagree in all they say: the file whose name comes last wins, whichever way they are given."""
    files = [
        write_lines(
            tmp_path / folder / f"{name}.jsonl",
            [{"id": f"x{name}", "doi": "10.1000/x", "title": f"From {name}", "abstract": name, "year": 2000 + number}],
        )
        for number, (folder, name) in enumerate([("2", "a"), ("1", "b"), ("0", "c")])
    ]
    orders = {"forth": files, "back": files[::-1], "other": [files[1], files[2], files[0]]}
    made = {name: import_papers(given, tmp_path / name).corpus for name, given in orders.items()}
    assert {corpus.hash for corpus in made.values()} == {made["forth"].hash}
    paper = made["back"].paper(0)
    assert len(made["back"]) == 1 and (paper.id, paper.title, paper.abstract, paper.year) == ("xa", "From c", "c", 2002)
    assert import_papers(files[::-1], tmp_path / "forth").skipped


def test_files_of_one_name_are_ordered_by_what_they_hold(tmp_path: Path) -> None:
    folders = []
    for text in ("one", "two"):
        write_lines(tmp_path / text / "p.jsonl", [{"id": "x", "title": "The same title", "abstract": text}])
        folders.append(tmp_path / text)
    forth, back = (
        import_papers(given, tmp_path / f"out{n}").corpus for n, given in enumerate((folders, folders[::-1]))
    )
    assert forth.hash == back.hash and forth.paper(0).abstract == back.paper(0).abstract


@pytest.mark.parametrize(("policy", "papers"), [("across", 2), ("always", 1), ("never", 2)])
def test_same_title_within_one_file(tmp_path: Path, policy: str, papers: int) -> None:
    twins = [{"id": f"t{i}", "title": "A title that is long enough", "year": 2020} for i in range(2)]
    path = write_lines(tmp_path / "p.jsonl", twins)  # type: ignore[arg-type]
    assert len(import_papers([path], tmp_path / "corpus", ImportOptions(same_title=policy)).corpus) == papers


def test_different_dois_keep_equal_titles_apart(tmp_path: Path) -> None:
    for i in range(2):
        write_lines(
            tmp_path / "in" / f"{i}.jsonl",
            [{"id": f"t{i}", "title": "A title that is long enough", "year": 2020, "doi": f"10.1000/{i}"}],
        )
    corpus = import_papers([tmp_path / "in"], tmp_path / "corpus").corpus
    assert len(corpus) == 2 and corpus.manifest.facts["titles_left_apart"] == 1


def test_equal_keys_of_different_entries_are_numbered(tmp_path: Path) -> None:
    for name, titles in (("one", ["First of all papers", "Second of all papers"]), ("two", ["Third of all papers"])):
        entries = "".join(f"@article{{key, title={{{title}}}, year={{2000}}}}\n" for title in titles)
        (tmp_path / f"{name}.bib").write_text(entries)
    corpus = import_papers([tmp_path / "one.bib", tmp_path / "two.bib"], tmp_path / "corpus").corpus
    assert list(corpus.ids) == ["key", "key~2", "key~3"]
    assert corpus.titles[corpus.row("key~3")] == "Third of all papers"


def test_papers_outside_are_kept_on_request(library: Path, tmp_path: Path) -> None:
    corpus = import_papers([library], tmp_path / "corpus", ImportOptions(outside="keep")).corpus
    assert len(corpus) == 4
    paper = corpus.paper(corpus.row("nowhere"))
    assert paper.stub and paper.title == ""
    assert len(corpus.citing) == 3


def test_citations_alone_need_papers_or_outside_keep(tmp_path: Path) -> None:
    edges = tmp_path / "citations.tsv"
    edges.write_text("1\t2\n2\t3\n")
    with pytest.raises(EmptyResultError, match="--outside keep"):
        import_papers([edges], tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    corpus = import_papers([edges], tmp_path / "graph", ImportOptions(outside="keep")).corpus
    assert len(corpus) == 3 and len(corpus.citing) == 2


def test_an_update_equals_importing_everything_at_once(library: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    write_lines(
        new / "papers2.jsonl.gz",  # its name comes last, as an update does
        [
            {
                "id": "nowhere",
                "title": "Now we know this one too",
                "abstract": "Found.",
                "year": 2017,
                "references": ["c"],
            },
            {"id": "b", "title": "Ice on the Moon", "abstract": "Now with abstract.", "year": 2018},
        ],
    )
    base = import_papers([library], tmp_path / "base").corpus
    updated = import_papers([new], tmp_path / "next", update=tmp_path / "base").corpus
    at_once = import_papers([library, new], tmp_path / "both").corpus
    assert list(updated.ids) == ["a", "b", "c", "nowhere"]
    for name in ("titles", "abstracts", "ids", "other_ids"):
        assert list(getattr(updated, name)) == list(getattr(at_once, name)), name
    assert updated.citing.tolist() == at_once.citing.tolist() == [0, 0, 0, 3]
    assert updated.cited.tolist() == at_once.cited.tolist() == [1, 2, 3, 2], (
        "the reference that led outside leads in now"
    )
    assert list(updated.contexts.texts) == list(at_once.contexts.texts)
    assert len(base) == 3, "the old generation is untouched"


def test_an_update_tells_what_changed_and_shares_the_rest(library: Path, tmp_path: Path) -> None:
    import_papers([library], tmp_path / "base")
    path = write_lines(
        tmp_path / "new.jsonl",
        [{"id": "b", "title": "Ice on the Moon", "abstract": "Now with abstract.", "year": 2018}],
    )
    corpus = import_papers([path], tmp_path / "next", update=tmp_path / "base").corpus
    changes = corpus.changes
    assert changes is not None
    assert changes.change.tolist() == [0, changes.TEXT, 0]
    assert changes.previous.tolist() == [0, 1, 2]
    assert corpus.manifest.facts["generation"] == 2
    for name in ("citations/citing.npy", "contexts/text.utf8", "papers/title.utf8"):
        old, new = tmp_path / "base" / name, tmp_path / "next" / name
        assert old.stat().st_ino == new.stat().st_ino, f"{name} did not change and is shared"
    assert (tmp_path / "base/papers/abstract.utf8").stat().st_ino != (
        tmp_path / "next/papers/abstract.utf8"
    ).stat().st_ino


def test_a_newer_bib_updates_entries_by_their_key(tmp_path: Path) -> None:
    bib = tmp_path / "library.bib"
    bib.write_text(
        "@article{k1, title={Frist title with a typo in it}, year={2000}}\n@article{k2, title={The second of two papers}, year={2001}}\n"
    )
    import_papers([bib], tmp_path / "base")
    bib.write_text(
        "@article{k1, title={First title with no typo in it}, year={2000}}\n@article{k3, title={A third paper comes along}, year={2002}}\n"
    )
    corpus = import_papers([bib], tmp_path / "next", update=tmp_path / "base").corpus
    assert list(corpus.ids) == ["k1", "k2", "k3"]
    assert corpus.titles[0] == "First title with no typo in it"
    changed = Changes.TEXT | Changes.OTHER  # `extra` holds the entry as it is written, which is another one now
    assert corpus.changes is not None and corpus.changes.change.tolist() == [changed, 0, Changes.NEW]


def test_entries_that_share_a_key_stay_apart_where_their_ids_differ(tmp_path: Path) -> None:
    (tmp_path / "a.bib").write_text(
        "@article{smith2020, title={Cats and what they do all day}, year={2020}, doi={10.1000/cats}}\n"
    )
    (tmp_path / "b.bib").write_text(
        "@article{smith2020, title={Volcanoes of the outer planets}, year={2020}, doi={10.1000/lava}}\n"
    )
    import_papers(tmp_path / "a.bib", tmp_path / "base")
    corpus = import_papers(tmp_path / "b.bib", tmp_path / "next", update=tmp_path / "base").corpus
    assert list(corpus.ids) == ["smith2020", "smith2020~2"]


def test_records_without_name_are_not_told_by_their_place(tmp_path: Path) -> None:
    records = [f"TY  - JOUR\nTI  - Paper number {n} about something\nPY  - 2001\nER  - \n" for n in range(5)]
    (tmp_path / "library.ris").write_text("".join(records))
    first = import_papers(tmp_path / "library.ris", tmp_path / "base").corpus
    (tmp_path / "library.ris").write_text("".join(records[1:]))
    corpus = import_papers(tmp_path / "library.ris", tmp_path / "next", update=tmp_path / "base").corpus
    assert list(corpus.titles) == list(first.titles) and list(corpus.ids) == list(first.ids)
    (tmp_path / "other.ris").write_text(records[0].replace("Paper number 0", "Another paper"))
    assert len(import_papers(tmp_path / "other.ris", tmp_path / "more", update=tmp_path / "base").corpus) == 6


def test_damage_of_a_large_corpus_is_not_handed_on(library: Path, tmp_path: Path, as_large: None) -> None:
    corpus = import_papers([library], tmp_path / "corpus").corpus
    path = tmp_path / "corpus" / "papers" / "title.utf8"
    path.write_bytes(b"#" + path.read_bytes()[1:])
    more = write_lines(tmp_path / "more.jsonl", [{"id": "new:1", "title": "Another paper"}])
    with pytest.raises(ArtifactError, match="title.utf8 is damaged"):
        import_papers([more], tmp_path / "updated", update=corpus.folder)
    with pytest.raises(ArtifactError, match="title.utf8 is damaged"):
        exclude_papers(corpus, np.array([0]), tmp_path / "without", why="a test")


@pytest.mark.parametrize(("name", "value"), [("cited_offsets", 9), ("outside_offsets", -1), ("cited", 1000)])
def test_damaged_contexts_of_a_large_corpus_are_refused(
    library: Path, tmp_path: Path, as_large: None, name: str, value: int
) -> None:
    import_papers([library], tmp_path / "corpus", ImportOptions(outside="keep"))
    path = tmp_path / "corpus" / "contexts" / f"{name}.npy"
    numbers = np.load(path)
    numbers[0] = value
    np.save(path, numbers)
    with pytest.raises(ArtifactError, match="is damaged"):
        _ = Corpus.open(tmp_path / "corpus").contexts


def test_an_update_that_leaves_no_paper_is_refused(library: Path, tmp_path: Path) -> None:
    corpus = import_papers([library], tmp_path / "base").corpus
    with pytest.raises(EmptyResultError, match="no paper of the corpus would be left"):
        exclude_papers(corpus, np.arange(3), tmp_path / "without", why="a test")
    assert not (tmp_path / "without").exists()


def test_deletions_leave_papers_and_their_citations_out(library: Path, tmp_path: Path) -> None:
    import_papers([library], tmp_path / "base")
    gone = write_lines(tmp_path / "gone.jsonl", [{"id": "c", "title": "Craters"}])
    new = write_lines(tmp_path / "new.jsonl", [{"id": "d", "title": "Dust", "references": ["b"]}])
    corpus = import_papers([new], tmp_path / "next", update=tmp_path / "base", delete=[gone]).corpus
    assert list(corpus.ids) == ["a", "b", "d"]
    assert corpus.citing.tolist() == [0, 2] and corpus.cited.tolist() == [1, 1]
    assert corpus.manifest.facts["changes"]["gone"] == 1
    with pytest.raises(UserError, match="--update"):
        import_papers([new], tmp_path / "other", delete=[gone])


def test_citations_are_deleted_by_any_id_of_their_papers(library: Path, tmp_path: Path) -> None:
    import_papers([library], tmp_path / "base")
    gone = tmp_path / "gone.tsv"
    gone.write_text("a\tdoi:10.1000/c\na\tnowhere\nb\tc\n")
    new = write_lines(tmp_path / "new.jsonl", [{"id": "nowhere", "title": "Now we know it"}])
    corpus = import_papers([new], tmp_path / "next", update=tmp_path / "base", delete=[gone]).corpus
    assert corpus.citing.tolist() == [0] and corpus.cited.tolist() == [1]
    assert records_of(corpus)["citations"]["rejected"] == {"deleted on request": 2}
    assert corpus.manifest.facts["deletions_not_found"] == 1, "b never cited c"


def test_a_bib_entry_deletes_by_title_or_key_and_misses_are_counted(tmp_path: Path) -> None:
    bib = tmp_path / "library.bib"
    bib.write_text(
        "@article{k1, title={The first of all these papers}, year={2000}}\n@article{k2, title={Short}, year={2001}}\n"
        "@article{k3, title={The third of all these papers}, year={2001}}\n"
    )
    import_papers([bib], tmp_path / "base")
    gone = tmp_path / "gone.bib"
    gone.write_text(
        "@article{other, title={The First of all These Papers}, year={2000}}\n@article{k2, title={Short}, year={2001}}\n"
        "@article{none, title={Nobody knows this paper at all}, year={2001}}\n"
    )
    new = write_lines(tmp_path / "new.jsonl", [{"id": "d", "title": "Dust"}])
    corpus = import_papers([new], tmp_path / "next", update=tmp_path / "base", delete=[gone]).corpus
    assert list(corpus.ids) == ["k3", "d"]
    assert corpus.manifest.facts["deletions_not_found"] == 1


def test_papers_named_by_their_file_keep_their_own_citations(tmp_path: Path) -> None:
    """Two files that call different papers by the same name: each one's references stay with it."""
    for folder, title, cited in (
        ("a", "On the first thing we looked at", "10.1000/one"),
        ("b", "On the second thing we looked at", "10.1000/two"),
    ):
        path = tmp_path / "in" / folder / "paper.tei.xml"
        path.parent.mkdir(parents=True)
        path.write_text(TEI.format(title=title, cited=cited))
    write_lines(
        tmp_path / "in" / "cited.jsonl", [{"id": f"doi:10.1000/{n}", "title": f"Cited {n}"} for n in ("one", "two")]
    )
    corpus = import_papers([tmp_path / "in"], tmp_path / "corpus").corpus
    pairs = {(corpus.titles[int(a)], corpus.titles[int(b)]) for a, b in zip(corpus.citing, corpus.cited, strict=True)}
    assert pairs == {
        ("On the first thing we looked at", "Cited one"),
        ("On the second thing we looked at", "Cited two"),
    }


TEI = """<?xml version="1.0"?><TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader><fileDesc><titleStmt><title level="a" type="main">{title}</title></titleStmt>
<sourceDesc><biblStruct><analytic/></biblStruct></sourceDesc></fileDesc></teiHeader><text><body/><back><div type="references"><listBibl>
<biblStruct xml:id="b0"><analytic><title level="a" type="main">Some reference of ours here</title><idno type="DOI">{cited}</idno></analytic><monogr><imprint><date when="2001"/></imprint></monogr></biblStruct>
</listBibl></div></back></text></TEI>"""


def test_made_up_stays_made_up(tmp_path: Path) -> None:
    from citeweave import synthesize
    from citeweave.corpus.synthetic.literature import SyntheticOptions

    corpus = synthesize(tmp_path / "made", SyntheticOptions(papers=50))
    without = exclude_papers(corpus, np.array([1]), tmp_path / "without", why="a test")
    assert without.manifest.facts["made_up"] is True


def test_excluding_papers_makes_a_new_generation(library: Path, tmp_path: Path) -> None:
    corpus = import_papers([library], tmp_path / "base").corpus
    without = exclude_papers(corpus, np.array([1]), tmp_path / "without", why="a test")
    assert list(without.ids) == ["a", "c"] and without.cited.tolist() == [1]


def test_a_file_that_cannot_be_read_leaves_no_corpus(library: Path, tmp_path: Path) -> None:
    whole = (library / "papers.jsonl.gz").read_bytes()
    (library / "papers.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"papers\.jsonl\.gz is damaged or truncated"):
        import_papers([library], tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    (library / "papers.jsonl.gz").write_bytes(whole)
    assert len(import_papers([library], tmp_path / "corpus").corpus) == 3


def test_damaged_corpora_are_refused(library: Path, tmp_path: Path) -> None:
    import_papers([library], tmp_path / "corpus")
    for name in ("papers/title.utf8", "papers/year.npy", "index/key.npy"):
        broken = tmp_path / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(tmp_path / "corpus", broken)
        (broken / name).write_bytes((broken / name).read_bytes()[:-1])
        with pytest.raises(ArtifactError, match="make .* again"):
            Corpus.open(broken)
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    manifest["version"] = 99
    (tmp_path / "corpus" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="version 99"):
        Corpus.open(tmp_path / "corpus")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outside": "kepe"}, "Did you mean 'keep'"),
        ({"same_title": "maybe"}, "--same-title"),
        ({"format": "bibtexx"}, "Did you mean 'bibtex'"),
        ({"memory": 12}, "--memory"),
        ({"workers": -1}, "--workers"),
    ],
)
def test_wrong_options_are_named(library: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        import_papers([library], tmp_path / "corpus", ImportOptions(**options))  # type: ignore[arg-type]


def test_a_refused_file_leaves_nothing_beside_the_output(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.bib", tmp_path / "bad.bib"
    bad.write_text("nothing")
    good.write_text("@article{a, title={The cell grows}}")
    with pytest.raises(InputError, match="bad.bib holds no BibTeX entry"):
        import_papers(bad, tmp_path / "corpus")
    assert {path.name for path in tmp_path.iterdir()} == {"a.bib", "bad.bib"}
    with pytest.raises(InputError, match="bad.bib"):
        import_papers([good, bad], tmp_path / "corpus")  # what was read of the good file is kept for the next run
    assert len(list(work_folder(tmp_path / "corpus").glob("kept/parts/*/part.json"))) == 1
