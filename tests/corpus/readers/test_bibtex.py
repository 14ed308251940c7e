"""BibTeX: entries as the format wants them, as people write them, and as nobody should."""

from __future__ import annotations

import pytest

from citeweave.core.errors import InputError
from citeweave.corpus.paper import Paper
from citeweave.corpus.readers import bibtex


def test_every_field_of_an_entry_is_read(read_all):
    found = read_all(
        bibtex,
        r"""% Encoding: UTF-8
        @String(jml = "Journal of Made Letters")
        @Article{berg2019,
          Title    = {On {B}ergs and $x_{i}$ --- a {\em short} study},
          AUTHOR   = "Berg, J{\"o}rn and {\'A}lvarez, Ana and {The Ice Group} and others",
          journal  = jml # { (New Series)}, year = 2019, month = "1~" # jan,
          abstract = {Ice melts by 50\% & more.
                      We show why.},
          doi = {https://doi.org/10.1000/ICE\_1}, eprint = {1901.00001v2}, archivePrefix = {arXiv},
          pmid = {123}, pmcid = {PMC77}, keywords = {ice, {sea level}; ice},
          timestamp = {2020-02-03 10:00:00 +0100}, file = {C:\\papers\\berg.pdf:PDF},
        }""",
    )
    written = found.papers[0].extra.pop("bibtex")
    assert (written["type"], written["key"]) == ("article", "berg2019")
    assert written["fields"]["title"] == r"On {B}ergs and $x_{i}$ --- a {\em short} study"
    assert written["fields"]["file"] == r"C:\\papers\\berg.pdf:PDF"
    title, abstract = "On Bergs and $x_{i}$ — a short study", "Ice melts by 50% & more. We show why."
    venue, authors = "Journal of Made Letters (New Series)", ("Jörn Berg", "Ana Álvarez", "The Ice Group")
    ids = ("doi:10.1000/ice_1", "arxiv:1901.00001", "pmid:123", "pmcid:77")
    extra = {"type": "article", "keywords": ["ice", "sea level"]}
    assert found.papers == [
        Paper("berg2019", title, abstract, 2019, venue, authors, (), ids, None, 20200203, extra, local_id=True)
    ]
    assert found.rejected("papers") == {} and found.notes == {}


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ("url={http://arxiv.org/abs/1702.04615}", ("arxiv:1702.04615",)),
        ("journal={arXiv preprint arXiv:1803.00002}", ("arxiv:1803.00002",)),
        ("url={https://doi.org/10.1000/c}", ("doi:10.1000/c",)),
        ("url={https://aclanthology.org/N18-3011}", ("acl:N18-3011",)),
        ("eprint={31415}, eprinttype={pubmed}", ("pmid:31415",)),
        ("eprint={20099996}, eprinttype={jstor}, doi={n/a}", ()),
        ("eprint={2101.00003}, eprintclass={cs.CL}", ("arxiv:2101.00003",)),
    ],
)
def test_ids_are_found_in_other_fields(read_all, fields, ids):
    assert read_all(bibtex, f"@misc{{a, title={{A}}, {fields}}}").papers[0].ids == ids


def test_delimiters_keys_and_commas_are_read_as_people_write_them(read_all):
    found = read_all(
        bibtex,
        """@article(round, title = "In (round) brackets", year = "1990")@book{same_line, title = {Second}}
        @misc{,
          title = {No key}, }
        @misc{ title = {No key at all} }
        @misc{no_comma
          title = {The comma is missing}
          year = 2001
        }
        @web_page{odd/type:1, title = "Strange {"}quotes{"}", year = {in press, 2003}}
        @misc{umlaut, title = "G\\"odel"}
        @misc{twice, title = {First}, title = {Second}}
        @misc{macro, title = {M}, journal = UNKNOWN-MACRO}
        @misc{field, title = {F}, % year = {1999},
          year = 2005}
        @misc{sub, title = {Main}, subtitle = {Sub}, date = {2011-05}}""",
    )
    assert [(p.id, p.title, p.year) for p in found.papers] == [
        ("round", "In (round) brackets", 1990),
        ("same_line", "Second", None),
        ("bibtex-d532c3cc06", "No key", None),
        ("bibtex-79fd350067", "No key at all", None),
        ("no_comma", "The comma is missing", 2001),
        ("odd/type:1", 'Strange "quotes"', 2003),
        ("umlaut", "Gödel", None),
        ("twice", "First", None),
        ("macro", "M", None),
        ("field", "F", 2005),
        ("sub", "Main: Sub", 2011),
    ]
    assert found.papers[8].venue == "UNKNOWN-MACRO" and found.notes == {"entry without key": 2}


def test_an_unbalanced_entry_costs_only_itself(read_all):
    found = read_all(
        bibtex,
        r"""@article{one, title = {Fine}}
@article{two, title = {Thi\{'ebaux is broken}, year = 1993}
@article{three, title = "Never closed, year = 1994}
@article{four, title = {Fine again}}
@article{five, title = {Cut off""",
    )
    assert [paper.id for paper in found.papers] == ["one", "four"]
    assert found.rejected("papers") == {"unbalanced braces": 3}


def test_what_is_no_paper_is_neither_kept_nor_counted(read_all):
    found = read_all(
        bibtex,
        """This is free text by me@example.org (hello).
        @preamble{ "\\newcommand{\\noop}[1]{} \\@ifundefined{x}{}" }
        @comment{jabref-meta: grouping:{a}{b};}
        @comment This is one too.
        %@article{off, title = {Commented out}}
        @string{x = {y}}
        @article{on, title = {Kept}}
        @article{bare, year = 1999}
        @article{empty}""",
    )
    assert [paper.id for paper in found.papers] == ["on"] and found.rejected("papers") == {"no title": 2}
    assert found.notes == {"entry behind a percent sign left out": 1}


def test_children_inherit_venue_and_year_of_their_volume(read_all):
    found = read_all(
        bibtex,
        """@inproceedings{child, title = {C}, crossref = {VOL}}
        @inproceedings{own, title = {O}, crossref = "vol", year = 1984, booktitle = {Own}}
        @proceedings{Vol, title = {Proceedings of Things}, year = 1985}""",
    )
    assert [(p.venue, p.year) for p in found.papers] == [("Proceedings of Things", 1985), ("Own", 1984), ("", 1985)]


def test_first_names_come_first(read_all):
    names = r"van der Berg, Jan and King, Jr., Martin L. AND {Agency, Space} and \'Etienne  Roux and {{A and B}}"
    authors = ("Jan van der Berg", "Martin L. King Jr.", "Agency, Space", "Étienne Roux", "A and B")
    assert read_all(bibtex, "@misc{a, title={T}, author={" + names + "}}").papers[0].authors == authors


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings_are_recognized(read_all, encoding):
    found = read_all(bibtex, "@misc{ü, title = {Über Bäume}}\r\n".encode(encoding))
    assert [(p.id, p.title) for p in found.papers] == [("ü", "Über Bäume")]


def test_another_format_is_refused(read_all):
    with pytest.raises(InputError, match=r"made\.bib holds no BibTeX entry"):
        read_all(bibtex, '{"title": "JSON"}', "made.bib")


def test_macros_of_macros_do_not_fill_the_memory(read_all):
    doubling = "".join(f"@string{{m{i + 1} = m{i} # m{i}}}\n" for i in range(60))
    found = read_all(bibtex, f"@string{{m0 = {{ab}}}}\n{doubling}@misc{{k, title = {' # '.join(['m60'] * 1000)}}}")
    assert 0 < len(found.papers[0].title) <= 10_000


@pytest.mark.parametrize(
    ("name", "papers", "rejected", "abstracts"),
    [
        ("acl_style_clean_mteb.bib", 7, {}, 0),
        ("better_bibtex_export_901.bib", 36, {}, 9),
        ("clean_joss_paper.bib", 11, {}, 0),
        ("endnote_export_no_key.bib", 1, {}, 1),
        ("jabref_encoding_header.bib", 1, {"no title": 1}, 0),
        ("mendeley_export.first15.bib", 15, {}, 8),
        ("messy_duplicate_keys_unbalanced_873.bib", 986, {"unbalanced braces": 1, "no title": 1}, 14),
        ("percent_and_preamble_95_96.bib", 1, {}, 1),
        ("string_macros_664.bib", 1, {}, 1),
        ("string_macros_scisumm.bib", 7, {}, 0),
    ],
)
def test_real_files_are_counted(shared, read_all, name, papers, rejected, abstracts):
    found = read_all(bibtex, shared / "samples/bibtex" / name)
    assert (len(found.papers), found.rejected("papers")) == (papers, rejected)
    assert sum(bool(paper.abstract) for paper in found.papers) == abstracts
    assert all(paper.local_id and paper.title for paper in found.papers)


def test_real_values_are_read(shared, read_all):
    folder = shared / "samples/bibtex"
    joss = {p.id: p for p in read_all(bibtex, folder / "clean_joss_paper.bib").papers}["vseva2019vist"]
    assert joss.authors[:3] == ("Jurica Ševa", "David Luis Wiegandt", "Julian Götze")
    assert joss.ids == ("doi:10.1186/s12859-019-2958-3",)
    jabref = read_all(bibtex, folder / "jabref_encoding_header.bib").papers[0].title
    assert jabref == "Pi Calculus Versus Petri Nets: Let Us Eat Humble Pie Rather Than Further Inflate the Pi Hype"
    percent = read_all(bibtex, folder / "percent_and_preamble_95_96.bib").papers[0]
    assert "about 50% in a narrow" in percent.abstract and percent.ids == ("doi:10.1016/j.tsf.2009.05.016",)
    keys = [paper.id for paper in read_all(bibtex, folder / "messy_duplicate_keys_unbalanced_873.bib").papers]
    assert len(keys) - len(set(keys)) >= 13 and "Thiebaux:93" not in keys and "Wellman:WALRAS" in keys
