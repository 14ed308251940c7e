"""BibTeX: entries as the format wants them, as people write them, and as nobody should."""

import pytest

from citeweave.corpus.paper import Paper


def test_every_field_of_an_entry_is_read(read_all):
    found = read_all(
        "bibtex",
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
    front = (title, abstract, 2019, venue, authors, ())
    assert found.papers == [Paper("berg2019", *front, ids, None, 20200203, extra, local_id=True)]
    assert found.rejected("papers") == {} and found.notes == {}


OTHER_FIELDS = [
    ("url={http://arxiv.org/abs/1702.04615}", ("arxiv:1702.04615",)),
    ("journal={arXiv preprint arXiv:1803.00002}", ("arxiv:1803.00002",)),
    ("url={https://doi.org/10.1000/c}", ("doi:10.1000/c",)),
    ("url={https://aclanthology.org/N18-3011}", ("acl:N18-3011",)),
    ("eprint={31415}, eprinttype={pubmed}", ("pmid:31415",)),
    ("eprint={20099996}, eprinttype={jstor}, doi={n/a}", ()),
    ("eprint={2101.00003}, eprintclass={cs.CL}", ("arxiv:2101.00003",)),
]


@pytest.mark.parametrize(("fields", "ids"), OTHER_FIELDS)
def test_ids_are_found_in_other_fields(read_all, fields, ids):
    assert read_all("bibtex", f"@misc{{a, title={{A}}, {fields}}}").papers[0].ids == ids


ENTRIES = [
    (  # delimiters, keys and commas as people write them
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
        """round|In (round) brackets|1990| same_line|Second|None| bibtex-d532c3cc06|No key|None|
            bibtex-79fd350067|No key at all|None| no_comma|The comma is missing|2001| odd/type:1|Strange "quotes"|2003|
            umlaut|Gödel|None| twice|First|None| macro|M|None|UNKNOWN-MACRO field|F|2005| sub|Main: Sub|2011|""",
        {},
        {"entry without key": 2},
    ),
    (  # an unbalanced entry costs only itself
        r"""@article{one, title = {Fine}}
@article{two, title = {Thi\{'ebaux is broken}, year = 1993}
@article{three, title = "Never closed, year = 1994}
@article{four, title = {Fine again}}
@article{five, title = {Cut off""",
        "one|Fine|None| four|Fine again|None|",
        {"unbalanced braces": 3},
        {},
    ),
    (  # what is no paper is neither kept nor counted
        """This is free text by me@example.org (hello).
            @preamble{ "\\newcommand{\\noop}[1]{} \\@ifundefined{x}{}" }
            @comment{jabref-meta: grouping:{a}{b};}
            @comment This is one too.
            %@article{off, title = {Commented out}}
            @string{x = {y}}
            @article{on, title = {Kept}} @article{bare, year = 1999} @article{empty}
            @article(round)""",
        "on|Kept|None|",
        {"no title": 3},
        {"entry behind a percent sign left out": 1},
    ),
    (  # children inherit venue and year of their volume
        """@inproceedings{child, title = {C}, crossref = {VOL}}
            @inproceedings{own, title = {O}, crossref = "vol", year = 1984, booktitle = {Own}}
            @proceedings{Vol, title = {Proceedings of Things}, year = 1985}""",
        "child|C|1985|Proceedings of Things own|O|1984|Own Vol|Proceedings of Things|1985|",
        {},
        {},
    ),
]


@pytest.mark.parametrize(("entries", "expected", "rejected", "notes"), ENTRIES)
def test_entries_are_read_as_people_write_them(read_all, entries, expected, rejected, notes):
    found = read_all("bibtex", entries)
    papers = " ".join(f"{paper.id}|{paper.title}|{paper.year}|{paper.venue}" for paper in found.papers)
    assert papers.split() == expected.split()
    assert (found.rejected("papers"), found.notes) == (rejected, notes)


def test_first_names_come_first(read_all):
    names = r"van der Berg, Jan and King, Jr., Martin L. AND {Agency, Space} and \'Etienne  Roux and {{A and B}}"
    authors = ("Jan van der Berg", "Martin L. King Jr.", "Agency, Space", "Étienne Roux", "A and B")
    assert read_all("bibtex", "@misc{a, title={T}, author={" + names + "}}").papers[0].authors == authors


def test_macros_of_macros_do_not_fill_the_memory(read_all):
    doubling = "".join(f"@string{{m{i + 1} = m{i} # m{i}}}\n" for i in range(60))
    found = read_all("bibtex", f"@string{{m0 = {{ab}}}}\n{doubling}@misc{{k, title = {' # '.join(['m60'] * 1000)}}}")
    assert 0 < len(found.papers[0].title) <= 10_000
