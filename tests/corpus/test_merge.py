"""Which records are one paper, and which of them wins, whatever the order of the inputs."""

import pytest

from citeweave import ImportOptions, import_papers


def test_records_of_one_paper_are_merged_by_the_rule(tmp_path, write):
    bib = write(
        "library.bib",
        "@article{smith, title={Attention to the details of maps}, year={2017}, doi={10.1000/XY}}\n"
        "@article{jones, title={A wholly different thing altogether}, year={2001}}\n",
    )
    title = "Attention to the Details of Maps!"
    lines = write(
        "papers.jsonl",
        {"id": "arxiv:1706.03762", "title": title, "abstract": "We attend.", "year": 2017},
        {"id": "x9", "title": "Other name, same DOI", "doi": "10.1000/xy", "venue": "Journal of Maps"},
    )
    corpus = import_papers([bib, lines], tmp_path / "corpus").corpus
    paper = corpus.paper(corpus.row("doi:10.1000/xy"))
    assert len(corpus) == 2 and paper.title == title
    assert paper.abstract == "We attend.", "the record with an abstract wins"
    assert paper.venue == "Journal of Maps", "what the winner leaves empty comes from the others"
    assert corpus.row("arxiv:1706.03762") == corpus.row("x9") == corpus.row("doi:10.1000/xy")
    rejected = corpus.manifest.facts["records"]["papers"]["rejected"]
    assert rejected == {"same paper as another record (merged)": 2}
    rows, _, ids = corpus.merges()
    assert sorted(ids) == ["arxiv:1706.03762", "smith", "x9"] and len(set(rows.tolist())) == 1


def test_the_newest_record_wins_among_those_with_abstract(tmp_path, write):
    path = write(
        "p.jsonl",
        {"id": "a", "title": "New", "abstract": "New text", "updated": "2024-05-01"},
        {"id": "a", "title": "Old", "abstract": "Old text", "updated": "2020-05-01"},
        {"id": "a", "title": "Newest without abstract", "updated": "2025-05-01"},
    )
    corpus = import_papers([path], tmp_path / "corpus").corpus
    assert len(corpus) == 1 and corpus.abstracts[0] == "New text"


def test_the_order_of_the_inputs_decides_nothing(tmp_path, write):
    """Two records disagree in every field: the file whose name comes last wins, in whichever order they are passed."""
    files = [
        write(f"{folder}/{name}.jsonl", {"id": f"x{name}", "doi": "10.1000/x", "title": f"From {name}", **more})
        for folder, name, more in (
            ("2", "a", {"abstract": "a", "year": 2000}),
            ("1", "b", {"abstract": "b", "year": 2001}),
            ("0", "c", {"abstract": "c", "year": 2002}),
        )
    ]
    orders = {"forth": files, "back": files[::-1], "other": [files[1], files[2], files[0]]}
    made = {name: import_papers(order, tmp_path / name).corpus for name, order in orders.items()}
    assert {corpus.hash for corpus in made.values()} == {made["forth"].hash}
    paper = made["back"].paper(0)
    assert len(made["back"]) == 1 and (paper.id, paper.title, paper.abstract, paper.year) == ("xa", "From c", "c", 2002)
    assert import_papers(files[::-1], tmp_path / "forth").skipped


def test_files_of_one_name_are_ordered_by_their_content(tmp_path, write):
    files = [write(f"{text}/p.jsonl", {"id": "x", "title": "A title", "abstract": text}) for text in ("one", "two")]
    forth = import_papers([path.parent for path in files], tmp_path / "forth").corpus
    back = import_papers([path.parent for path in files[::-1]], tmp_path / "back").corpus
    assert forth.hash == back.hash and forth.paper(0).abstract == back.paper(0).abstract


@pytest.mark.parametrize(("policy", "papers"), [("across", 2), ("always", 1), ("never", 2)])
def test_equal_titles_within_one_file_follow_the_policy(tmp_path, write, policy, papers):
    twins = [{"id": f"t{i}", "title": "A title that is long enough", "year": 2020} for i in range(2)]
    options = ImportOptions(same_title=policy)
    assert len(import_papers(write("p.jsonl", *twins), tmp_path / "corpus", options).corpus) == papers


def test_different_dois_keep_equal_titles_apart(tmp_path, write):
    twin = {"title": "A title that is long enough", "year": 2020}
    files = [write(f"in/{i}.jsonl", {"id": f"t{i}", **twin, "doi": f"10.1000/{i}"}) for i in range(2)]
    corpus = import_papers(files, tmp_path / "corpus").corpus
    assert len(corpus) == 2 and corpus.manifest.facts["titles_left_apart"] == 1


def test_equal_keys_of_different_entries_are_numbered(tmp_path, write):
    one, two, three = (f"@article{{key, title={{{n} of all papers}}, year=2000}}\n" for n in ("1st", "2nd", "3rd"))
    corpus = import_papers([write("one.bib", one, two), write("two.bib", three)], tmp_path / "corpus").corpus
    assert list(corpus.ids) == ["key", "key~2", "key~3"]
    assert corpus.titles[corpus.row("key~3")] == "3rd of all papers"


def test_entries_that_share_a_key_stay_apart_where_their_ids_differ(tmp_path, write):
    cats = write("a.bib", "@article{key, title={Cats and what they do all day}, year={2020}, doi={10.1000/cats}}\n")
    lava = write("b.bib", "@article{key, title={Volcanoes of the outer planets}, year={2020}, doi={10.1000/lava}}\n")
    import_papers(cats, tmp_path / "base")
    corpus = import_papers(lava, tmp_path / "next", update=tmp_path / "base").corpus
    assert list(corpus.ids) == ["key", "key~2"]


def test_records_without_a_name_are_not_identified_by_their_place(tmp_path, write):
    records = [f"TY  - JOUR\nTI  - Paper number {n} about something\nPY  - 2001\nER  - \n" for n in range(5)]
    first = import_papers(write("library.ris", *records), tmp_path / "base").corpus
    corpus = import_papers(write("library.ris", *records[1:]), tmp_path / "next", update=tmp_path / "base").corpus
    assert list(corpus.titles) == list(first.titles) and list(corpus.ids) == list(first.ids)
    other = write("other.ris", records[0].replace("Paper number 0", "Another paper"))
    assert len(import_papers(other, tmp_path / "more", update=tmp_path / "base").corpus) == 6


TEI = """<?xml version="1.0"?><TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader><fileDesc><titleStmt>
<title level="a" type="main">{title}</title></titleStmt><sourceDesc><biblStruct><analytic/></biblStruct></sourceDesc>
</fileDesc></teiHeader><text><body/><back><div type="references"><listBibl><biblStruct xml:id="b0"><analytic>
<title level="a" type="main">Some reference of ours here</title><idno type="DOI">{cited}</idno></analytic><monogr>
<imprint><date when="2001"/></imprint></monogr></biblStruct></listBibl></div></back></text></TEI>"""


def test_papers_named_by_their_file_keep_their_own_citations(tmp_path, write):
    """Two files that call different papers by the same name: each one's references stay with it."""
    titles = {"one": "On the first thing we looked at", "two": "On the second thing we looked at"}
    for name, title in titles.items():
        write(f"in/{name}/paper.tei.xml", TEI.format(title=title, cited=f"10.1000/{name}"))
    write("in/cited.jsonl", *({"id": f"doi:10.1000/{name}", "title": f"Cited {name}"} for name in titles))
    corpus = import_papers([tmp_path / "in"], tmp_path / "corpus").corpus
    pairs = {(corpus.titles[int(a)], corpus.titles[int(b)]) for a, b in zip(corpus.citing, corpus.cited, strict=True)}
    assert pairs == {(title, f"Cited {name}") for name, title in titles.items()}
