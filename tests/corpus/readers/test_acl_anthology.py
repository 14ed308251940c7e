"""ACL Anthology XML: ids old and new, marked-up titles, retractions, front matter."""

import pytest

from citeweave.corpus.paper import Paper

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
    found = read_all("acl_anthology", COLLECTION)
    venue, venues, ids = "Proceedings of Demo", {"venues": ["demo", "ws"]}, ("doi:10.18653/v1/2024.demo-long.7",)
    front = ("Parsing English in O(n)", "We parse.", 2024, venue, ("Ada Lee", "Madonna"), ())
    extra = {**venues, "bibkey": "lee-2024", "awards": ["Best Paper"]}
    wrong = {**venues, "retracted": True, "retracted_reason": "Bug."}
    assert found.papers == [
        Paper("acl:2024.demo-long.7", *front, ids, updated=20240709, extra=extra),
        Paper("acl:2024.demo-long.8", "Wrong", year=2024, venue=venue, updated=20250102, extra=wrong),
    ]
    assert found.rejected("papers") == {"front matter, no paper": 1, "no title and no abstract": 1, "no id": 1}


IDS = [("P18 1 7", "P18-1007"), ("W04 12 3", "W04-1203"), ("D19 1 44", "D19-1044"), ("D19 50 4", "D19-5004")]
IDS += [("P18 one 7", None), ("2020.acl main 447", "2020.acl-main.447")]


@pytest.mark.parametrize(("name", "expected"), IDS)
def test_ids_of_both_schemes_are_built(read_all, name, expected):
    collection, volume, paper = name.split()
    inner = f'<volume id="{volume}"><paper id="{paper}"><title>T</title></paper></volume>'
    papers = read_all("acl_anthology", f'<collection id="{collection}">{inner}</collection>').papers
    assert [p.id for p in papers] == ([f"acl:{expected}"] if expected else [])
