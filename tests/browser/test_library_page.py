"""The page of an explored BibTeX file: what was left out, a paper with all that its source says, drafts, reasons, filters."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
pytest.importorskip("fastapi", reason="pip install 'citeweave[serve]'")
pytest.importorskip("uvicorn", reason="pip install 'citeweave[serve]'")
pytest.importorskip("playwright", reason="pip install playwright")

from citeweave.serve.app import create_app
from citeweave.serve.library import open_library
from citeweave.serve.options import LibraryOptions, ServeOptions

from .test_explorer import wait_for_the_model

AUTHORS = [f"Person {letter} Long-Name" for letter in "ABCDEFGHIJKLMN"]
FILE = "/home/ada/papers/rain.pdf"


def entry(row: int, **fields: str) -> str:
    venue = ("ICML", "ACL", "Nature")[row % 3]
    values = {
        "title": f"Paper {row} shows how graphs of citations grow",
        "year": str(2001 + row),
        "journal": venue,
        **fields,
    }
    return f"@article{{key{row},\n" + "".join(f"  {name} = {{{value}}},\n" for name, value in values.items()) + "}\n"


def bibliography() -> str:
    abstracts = [
        "We find how the cell grows. Models learn from data.",
        "Graphs of a paper grow. We find how the cell grows.",
    ]
    entries = [entry(row, author="Ada Lovelace and Alan Turing", abstract=abstracts[row % 2]) for row in range(12)]
    details = {
        "keywords": "rain, moon dust",
        "file": f":{FILE}:PDF",
        "url": "https://example.org/rain.pdf",
        "doi": "10.1000/rain",
    }
    entries[0] = entry(0, author=" and ".join(AUTHORS), abstract=abstracts[0], **details)
    entries[11] = entry(11)  # a title alone
    return "\n".join([*entries, "@article{untitled, year = {2020}}", "@article{open, title = {A"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path], site_of: type[Any]) -> Iterator[Any]:
    place = tmp_path_factory.mktemp("library")
    (place / "mine.bib").write_text(bibliography())
    options = LibraryOptions(model=str(save_bert(place / "model")), runtime="torch", device="cpu")
    with open_library(str(place / "mine.bib"), place / "library", options) as library:
        library.finish()
        app = create_app(library, ServeOptions(device="cpu", time_limit=600))
        site = site_of(lambda: app).start()
        wait_for_the_model(site.address)
        yield site
        site.stop()


def test_entries_left_out_are_named(reader):
    reader.open()
    reader.see(".left-out summary").click()
    line = bibliography().splitlines().index("@article{untitled, year = {2020}}") + 1
    assert reader.see(".left-out li").text_content() == f"untitledno titlemine.bib, line {line}"
    assert "open" in reader.page.locator(".left-out li").last.text_content()


def test_a_paper_shows_what_its_source_says(reader):
    page = reader.open("?paper=key0")
    source = reader.see(".source")
    assert source.locator("a").evaluate_all("links => links.map(one => one.href)") == [
        "https://doi.org/10.1000/rain",
        "https://example.org/rain.pdf",
    ]
    copy = source.locator(".copy").last
    assert "key0" in source.text_content() and (copy.text_content(), copy.get_attribute("title")) == (
        "Copy key",
        "key0",
    )
    assert source.locator(".copy").first.get_attribute("title") == FILE
    copy.click()
    page.locator('.copy:has-text("Copied")').wait_for()
    authors = page.locator(".paper .author")
    assert authors.nth(11).is_visible() and not authors.last.is_visible()
    page.locator(".inline-more").first.click()
    assert authors.last.is_visible() and authors.count() == len(AUTHORS)
    assert authors.first.get_attribute("href") == "?q=author%3A%22Person+A+Long-Name%22"
    page.locator('.tag.keyword:has-text("moon dust")').click()
    reader.see('.chips button:has-text("moon dust")')
    assert reader.see(".card").get_attribute("data-id") == "key0" and page.locator(".card").count() == 1


def test_an_author_leads_to_the_papers_of_that_person(reader):
    page = reader.open("?paper=key2")
    reader.see('.paper .author:has-text("Ada Lovelace")').click()
    chip = reader.see('.reading button:has-text("Ada Lovelace")')
    reader.see(".card")
    assert page.locator(".card").count() == 10 and reader.see("#q").input_value() == 'author:"Ada Lovelace"'
    assert "10 papers" in reader.see(".head small").text_content()
    assert chip.get_attribute("aria-label") == "Search without author Ada Lovelace"
    page.locator("#q").fill("author:Lovelace year:2003-2004 cell")
    page.keyboard.press("Enter")
    reader.see('.reading button:has-text("2003-2004")').click()
    page.wait_for_url(re.compile("q=author%3A%22Lovelace%22\\+cell"))


def test_a_phrase_is_marked_in_its_sentence(reader):
    page = reader.open('?q="of a paper"')
    reader.see(".card mark b")
    assert set(page.locator(".card mark").all_text_contents()) == {"Graphs of a paper grow."}
    assert set(page.locator(".card mark b").all_text_contents()) == {"of a paper"}
    page.locator("#q").fill('"graphs of citations"')
    page.keyboard.press("Enter")
    assert reader.see(".card h3 mark").text_content() == "graphs of citations"
    alone = page.locator('.card[data-id="key11"]')
    alone.wait_for()
    assert alone.locator(".snippet").count() == 0  # its title is all that the library has


def test_liked_papers_are_exported(reader):
    page = reader.open("?q=author:Lovelace")
    card = reader.see('.card[data-id="key2"]')
    assert card.locator(".copy").get_attribute("title") == "key2"
    card.locator('[data-kind="like"]').click()
    page.locator('.card[data-id="key4"] [data-kind="dislike"]').click()
    reader.see("#tray .export").click()
    with page.expect_download() as download:
        page.locator('#tray [role="menuitem"]:has-text("BibTeX")').click()
    text = Path(download.value.path()).read_text("utf-8")
    assert "{key2," in text and "key4" not in text
    page.locator('#tray a:has-text("More like these")').click()
    reader.see('main .export:has-text("Export liked")')
    page.locator("#tray").wait_for(state="hidden")


def test_several_venues_and_an_order_can_be_chosen(reader):
    page = reader.open("?q=graphs&by=words")
    reader.see('[data-filter="venue"] label:has-text("ICML")').click()
    reader.see('.chips button:has-text("ICML")')
    reader.see('[data-filter="venue"] label:has-text("ACL")').click()  # offered although the filter excludes it
    reader.see('.chips button:has-text("ACL")')
    page.locator('label:has-text("Sort by") select').select_option("oldest")
    page.wait_for_url(re.compile("order=oldest"))
    reader.see(".card")
    assert page.locator(".card").evaluate_all("cards => cards.map(card => card.dataset.id)") == [
        f"key{row}" for row in range(12) if row % 3 < 2
    ]


def test_a_draft_is_read_sentence_by_sentence(reader):
    page = reader.open("?view=draft")
    reader.see("#draft").fill("Cells grow. Models learn from data.")
    page.keyboard.press("Control+Enter")
    reader.see(".passage [data-id]")
    assert page.locator(".passage h2").all_text_contents() == ["Cells grow.", "Models learn from data."]
    assert page.locator('[data-passage="1"] .card').count() == 3 and page.locator(".passage .copy").count() == 6
    page.locator("#more").click()
    page.locator('[data-passage="1"] .card').nth(5).wait_for()
    page.locator("#draft").fill("Cells grow. Models learn from data [CIT].")
    page.keyboard.press("Control+Enter")
    page.locator(".passage .unasked").wait_for()
    assert page.locator('[data-passage="0"] .card').count() == page.locator(".unasked h2").count() == 0
    assert "no citation mark" in page.locator('[data-passage="0"]').text_content()
    asked = {"cite": {"text": "Cells grow. Models learn from data [CIT].", "each": True}, "count": 3}
    hits = page.request.post(f"{reader.site.address}search", data=asked).json()["hits"]
    is_unsure = page.locator('[data-passage="1"] .unsure').count() == 1
    assert len(hits) == 3 and is_unsure == all(hit["confidence"] in ("low", "none") for hit in hits)


def test_an_unknown_id_is_met_with_advice_that_fits(reader):
    page = reader.open("?q=doi:10.1000/nothing")
    told = reader.see('[data-state="empty"]').text_content()
    assert "Check the id" in told and "author" not in told
    assert page.locator(".filters").count() == 0 and not page.locator(".order").is_visible()


def test_results_lead_to_the_map_and_views_are_found_by_their_names(reader):
    page = reader.open("?q=author:Lovelace")
    reader.see('a:has-text("Show on the map")').click()
    page.wait_for_url(re.compile(r"view=map&q=author%3ALovelace$"))
    reader.open("?view=missing")
    reader.see('[data-state="empty"]:has-text("No missing papers known"), .counted')


def test_only_sentences_that_match_are_shown_as_matching(reader):
    page = reader.open("?paper=key2")
    reader.see('.card[data-id="key4"] .why-button').click()  # of the same abstract
    assert reader.see(".pairs li b").text_content() == "strong match"
    page.locator('.card[data-id="key11"] .why-button').click()  # which has only a title
    assert "Words in both" in reader.see('.card[data-id="key11"] .why h4').text_content()
    answer = page.request.get(f"{reader.site.address}explain?left=key2&right=key11").json()
    assert answer["matches"] == [] and json.dumps(answer["right"]["sentences"]).count("Paper 11") == 1
    assert [one["vector"] for one in page.request.get(f"{reader.site.address}papers/key2").json()["sentences"]] == [
        True
    ] * 2
