"""ACL Anthology XML: ids old and new, marked-up titles, retractions, front matter."""

from __future__ import annotations

import pytest

from citeweave.corpus.paper import Paper
from citeweave.corpus.readers import acl_anthology

COLLECTION = r"""<?xml version='1.0' encoding='UTF-8'?>
<collection id="2024.demo"><volume id="long" ingest-date="2024-05-01" type="proceedings"><meta>
<booktitle>Proceedings of <fixed-case>D</fixed-case>emo</booktitle><year>2024</year><venue>demo</venue><venue>ws</venue></meta>
<frontmatter><url>2024.demo-long.0</url><bibkey>demo-2024</bibkey></frontmatter>
<paper id="7"><title>Parsing <fixed-case>E</fixed-case>nglish in <tex-math>\textbf{O}(n)</tex-math></title>
<author><first>Ada</first><last>Lee</last><affiliation>X</affiliation></author><author><first/><last>Madonna</last></author>
<abstract>We <i>parse</i>.</abstract><bibkey>lee-2024</bibkey><doi>10.18653/v1/2024.DEMO-long.7</doi>
<award>Best Paper</award><revision id="2" date="2024-07-09">Fixed.</revision></paper>
<paper id="8"><title>Wrong</title><retracted date="2025-01-02">Bug.</retracted></paper>
<paper id="9"><url>http://elsewhere</url></paper><paper><title>No id</title></paper></volume></collection>"""


def test_a_collection_is_read(read_all):
    found = read_all(acl_anthology, COLLECTION)
    venue, venues, ids = "Proceedings of Demo", {"venues": ["demo", "ws"]}, ("doi:10.18653/v1/2024.demo-long.7",)
    front = ("Parsing English in O(n)", "We parse.", 2024, venue, ("Ada Lee", "Madonna"), ())
    extra = {**venues, "bibkey": "lee-2024", "awards": ["Best Paper"]}
    wrong = {**venues, "retracted": True, "retracted_reason": "Bug."}
    assert found.papers == [
        Paper("acl:2024.demo-long.7", *front, ids, updated=20240709, extra=extra),
        Paper("acl:2024.demo-long.8", "Wrong", year=2024, venue=venue, updated=20250102, extra=wrong),
    ]
    assert found.rejected("papers") == {"front matter, no paper": 1, "no title and no abstract": 1, "no id": 1}


@pytest.mark.parametrize(
    ("collection", "volume", "paper", "expected"),
    [
        ("P18", "1", "7", "acl:P18-1007"),
        ("W04", "12", "3", "acl:W04-1203"),
        ("D19", "1", "44", "acl:D19-1044"),
        ("D19", "50", "4", "acl:D19-5004"),
        ("P18", "one", "7", None),
        ("2020.acl", "main", "447", "acl:2020.acl-main.447"),
    ],
)
def test_ids_of_both_schemes_are_built(read_all, collection, volume, paper, expected):
    inner = f'<volume id="{volume}"><paper id="{paper}"><title>T</title></paper></volume>'
    papers = read_all(acl_anthology, f'<collection id="{collection}">{inner}</collection>').papers
    assert [p.id for p in papers] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("name", "papers", "volumes"), [("2024.mrl.xml", 30, 1), ("2024.nejlt.xml", 6, 1), ("F14.xml", 95, 4)]
)
def test_real_collections_are_counted(read_all, shared, name, papers, volumes):
    found = read_all(acl_anthology, shared / "samples/acl_anthology" / name)
    assert len(found.papers) == papers
    assert found.rejected("papers") == {"front matter, no paper": volumes}
    assert len({paper.id for paper in found.papers}) == papers


def test_real_values_are_read(read_all, shared):
    papers = {p.id: p for p in read_all(acl_anthology, shared / "samples/acl_anthology" / "2024.mrl.xml").papers}
    assert papers["acl:2024.mrl-1.1"].title == "SambaLingo: Teaching Large Language Models New Languages"
    assert [i for i, p in papers.items() if p.extra.get("retracted")] == ["acl:2024.mrl-1.15"]
    assert any("composes language and task PEFT adapters" in p.abstract for p in papers.values())
    french = read_all(acl_anthology, shared / "samples/acl_anthology" / "F14.xml").papers
    assert (french[0].id, french[0].year, french[0].authors[1]) == ("acl:F14-1001", 2014, "Romaric Besançon")
    assert not any(p.abstract for p in french)
