"""The explorer in a real browser, over a real server and index: what a reader does, and what hostile papers cannot do."""

import base64
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
pytest.importorskip("fastapi", reason="pip install 'citeweave[serve]'")
pytest.importorskip("uvicorn", reason="pip install 'citeweave[serve]'")
pytest.importorskip("playwright", reason="pip install playwright")

from citeweave.corpus.ingest import import_papers
from citeweave.corpus.services.enrich import join_fetched
from citeweave.search.answer import answer
from citeweave.search.build import build_index
from citeweave.search.index import Index
from citeweave.search.options import IndexOptions
from citeweave.search.query import Query, SentenceQuery
from citeweave.serve import indexes
from citeweave.serve.app import create_app
from citeweave.serve.options import ServeOptions

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script> \"a\" 'b' {{7*7}} javascript:alert(3)"
STRANGE_ID = 'x:"><svg onload=alert(4)>/../../etc/passwd?a=1&b=2#c'
FIELDS = ("biology", "<b>computing</b>")
SENTENCES = (
    "We find how the cell grows in {}.",
    "Models learn from data of citations.",
    "The graphs of {} show that a paper grows.",
    "Citations learn how cells find data.",
)

STRANGER = {
    "id": "https://openalex.org/W900",
    "title": "A stranger that cites graphs of citations",
    "publication_year": 2020,
    "ids": {"openalex": "https://openalex.org/W900"},
    "abstract_inverted_index": {"Strangers": [0], "grow": [1]},
    "referenced_works": [],
}
"""A paper around the library, as `--enrich` fetches them."""

NEWER = {
    "id": "doi:10.1/newer",
    "title": "A newer paper",
    "year": 2024,
    "authors": ["Ada Newer"],
    "references": ["p:1", "p:2"],
}
"""A paper that cites two of the library."""


def papers() -> list[dict[str, Any]]:
    """Twenty papers; the first has an id and a title that would like to be markup, the last no abstract."""
    made: list[dict[str, Any]] = []
    for row in range(20):
        made.append({"id": f"p:{row}", "title": f"Paper {row} shows how graphs of citations grow", "year": 2001 + row})
        abstract = " ".join(line.format(f"graph {row}") for line in SENTENCES)
        made[-1] |= {"abstract": abstract, "fields": [FIELDS[row % 2]]}
        made[-1] |= {"venue": HOSTILE if row % 5 == 0 else "Annals of Tests", "authors": ["A. Reed", HOSTILE]}
    made[0] |= {"id": STRANGE_ID, "title": HOSTILE, "abstract": f"{HOSTILE}. {made[0]['abstract']}"}
    made[10]["abstract"] = f"<svg onload=alert(5)> grows. {made[10]['abstract']}"
    made[19]["abstract"] = ""
    return made


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> Path:
    place = tmp_path_factory.mktemp("explorer")
    source = place / "source"
    source.mkdir()
    (source / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers()))
    cited = [(2, 1), (3, 1), (2, 4), (3, 4), (1, 5), (1, 6)]
    lines = [f"p:{citing}\tp:{of}\n" for citing, of in cited] + [f"p:{row}\tdoi:10.1/missing\n" for row in (1, 2, 3)]
    (source / "citations.tsv").write_text("".join(lines))
    corpus = import_papers([source], place / "corpus").corpus
    (place / "fetched").mkdir()
    (place / "fetched" / "openalex_citing.jsonl").write_text(json.dumps(STRANGER) + "\n")
    (place / "fetched" / "plain_citing.jsonl").write_text(json.dumps(NEWER) + "\n")
    richer = join_fetched(corpus, place / "fetched", place / "richer")
    build_index(richer, save_bert(place / "model"), place / "index", IndexOptions(device="cpu", sentences=True))
    return place / "index"


def wait_for_the_model(address: str) -> None:
    """Until then a text is searched by words, which have no matching sentence."""
    for _ in range(6000):
        with urllib.request.urlopen(f"{address}health", timeout=300) as found:
            if json.load(found)["reads_texts"]:
                return
        time.sleep(0.1)
    raise AssertionError("the model was not loaded")


@pytest.fixture(scope="module")
def site(index: Path, site_of: type[Any]) -> Iterator[Any]:
    # compiled for the first time, the search by sentences takes longer than the page waits
    answer(Index.open(index), None, Query(sentences=SentenceQuery(paper="p:3", numbers=(1, 2))))
    app = create_app({"main": index, "other": index}, ServeOptions(device="cpu", time_limit=600))
    site = site_of(lambda: app).start()
    wait_for_the_model(site.address)
    yield site
    site.stop()


def test_a_question_is_answered_with_cards_and_the_sentence_that_matches(reader):
    page = reader.open()
    reader.see("#q").fill("how graphs of citations grow")
    page.keyboard.press("Enter")
    reader.see(".card")
    assert "q=how+graphs" in page.url
    assert page.locator(".card").count() == 20 and page.locator(".card mark").count() > 0
    assert "20 papers found" in reader.page.locator("#live").text_content()
    page.go_back()
    reader.see(".doors")
    page.go_forward()
    assert reader.see("#q").input_value() == "how graphs of citations grow"
    reader.see(".card")


@pytest.fixture
def loading(
    index: Path, site_of: type[Any], reader_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, threading.Event]]:
    """A tab on a server whose model is loaded once the event is set."""
    may_load, load = threading.Event(), indexes.load_query_encoder

    def late(*arguments: Any, **options: Any) -> Any:
        assert may_load.wait(600)
        return load(*arguments, **options)

    monkeypatch.setattr(indexes, "load_query_encoder", late)
    app = create_app({"main": index}, ServeOptions(device="cpu", time_limit=600))
    site = site_of(lambda: app).start()
    reader = reader_of(site)
    yield reader, may_load
    may_load.set()
    reader.close()
    site.stop()


@pytest.mark.parametrize(
    ("query", "words"),
    [("?q=zebras", "The model is being loaded."), ("?q=zebras&by=vectors", "The model is still being loaded.")],
)
def test_a_question_asked_while_the_model_loads_is_asked_again(loading, query, words):
    reader, may_load = loading
    page = reader.open(query)  # a word of no paper
    shown = reader.see('[data-state="loading"]').text_content()
    assert words in shown and "This page updates automatically." in shown
    assert "No paper in the library matches" not in page.locator("main").text_content()
    may_load.set()
    # by vectors, the nearest papers are listed; by default, nothing is close to it
    reader.see(".card") if "by=" in query else page.get_by_text("Nothing in this library is close").first.wait_for()
    assert page.locator('[data-state="loading"]').count() == 0


def test_chosen_sentences_have_one_color_on_both_sides(reader):
    page = reader.open("?paper=p:3")
    reader.see('.sentences button[data-sentence="1"]').click()
    page.locator('.sentences button[data-sentence="2"]').click()
    reader.see(".matched li[data-query='1'] mark")
    assert page.url.endswith("s=1%2C2")
    tone = "element => getComputedStyle(element).getPropertyValue('--tone')"
    for query, number in enumerate((1, 2)):
        left = page.locator(f'.sentences button[data-sentence="{number}"]')
        right = page.locator(f".matched li[data-query='{query}'] mark").first
        assert left.get_attribute("aria-pressed") == "true"
        assert left.evaluate(tone) == right.evaluate(tone) != ""
        assert page.locator(f".matched li[data-query='{query}'] .number").first.text_content() == str(number + 1)
        assert 0 < float(right.evaluate("element => element.style.getPropertyValue('--strength')")) <= 50
    page.reload()
    reader.see(".matched mark")
    assert page.locator('.sentences [aria-pressed="true"]').count() == 2
    page.locator(".clear").click()
    assert reader.see(".side h1").text_content() == "Similar papers"


def test_similar_papers_say_why(reader):
    page = reader.open("?paper=p:2")
    card = reader.see('.card[data-id="p:3"]')
    assert "shares 3 references" in card.text_content()  # p:1, p:4 and one outside
    card.locator(".why-button").click()
    reader.see(".why .pairs li")
    assert "They share 3 references" in page.locator(".why").text_content()
    assert page.locator(".why .links a").first.get_attribute("href").startswith("?paper=p")


def test_filters_are_chips_that_go_away(reader):
    page = reader.open("?q=citations")
    reader.see('[data-filter="field"] label:has-text("<b>computing</b>")').click()
    reader.see(".chips button:has-text('computing')")
    reader.see(".card")
    assert page.locator(".card").count() == 10
    page.locator('input[name="year_from"]').fill("2012")
    page.keyboard.press("Enter")
    reader.see(".chips button:has-text('since 2012')")
    reader.see(".card")
    assert page.locator(".card").count() == 5
    page.locator(".chips button:has-text('computing')").click()
    page.locator(".chips button:has-text('computing')").wait_for(state="detached")
    reader.see(".card")
    assert page.locator(".card").count() == 9 and "year_from=2012" in page.url


def test_papers_around_the_library_are_found_on_request(reader):
    page = reader.open("?q=stranger+that+cites+graphs&by=words")
    reader.see(".card")
    stranger = '.card[data-id="openalex:W900"]'
    assert page.locator(stranger).count() == 0
    reader.see('input[name="outside"]').check()
    assert "around the library" in reader.see(stranger).text_content()
    assert "outside=1" in page.url and page.locator(".card .tag").count() == 1
    reader.see(stranger + " h3 a").click()
    assert "around the library" in reader.see(".paper .meta").text_content()
    reader.see('.side input[name="outside"]')


def test_suggestions_are_titles_and_words(reader):
    page = reader.open("?q=citations&index=other")
    reader.see(".card")
    page.locator("#q").fill("grap")
    reader.see("#suggestions li")
    told = page.locator("#suggestions li").all_text_contents()
    assert told and not any("untitled" in line for line in told)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("graph"))
    assert "index=other" in page.url


def test_a_paper_is_found_on_the_map(reader):
    page = reader.open("?paper=p:3")
    address = reader.see('.paper a:has-text("On the map")').get_attribute("href")
    row = page.request.get(reader.site.address + "papers/p:3").json()["row"]
    assert f"focus={row}" in address


def test_thumbs_build_a_query(reader):
    page = reader.open("?q=citations")
    reader.see('.card[data-id="p:3"] [data-kind="like"]').click()
    page.locator('.card[data-id="p:4"] [data-kind="dislike"]').click()
    reader.see("#tray a").click()
    reader.see(".card")
    assert "like=p%3A3&dislike=p%3A4" in page.url
    assert page.locator('.card[data-id="p:3"]').count() == 0
    assert page.locator("#main .chips button").count() == 2


def test_a_pasted_abstract_finds_papers(reader):
    page = reader.open("?view=draft&kind=paper")
    reader.see("#draft").fill("How cells grow\n\nWe find how the cell grows.")
    page.keyboard.press("Control+Enter")
    reader.see(".card")
    assert "text=How+cells" in page.url


def loneliest(answer: dict[str, Any], width: float, height: float) -> tuple[int, float, float]:
    """The row of the point that is farthest from all others, and where it is on the canvas of a whole map."""
    xy = np.frombuffer(base64.b64decode(answer["xy"]), "<u2").reshape(-1, 2).astype(float)  # (points, 2)
    low, high = xy.min(axis=0), xy.max(axis=0)
    scale = 0.92 * min(width / max(1, high[0] - low[0]), height / max(1, high[1] - low[1]))
    middle = (low + high) / 2
    far = np.linalg.norm(xy[:, None] - xy[None], axis=2) + 1e9 * np.eye(len(xy))  # (points, points)
    point = int(far.min(axis=1).argmax())
    row = int(np.frombuffer(base64.b64decode(answer["row"]), "<i4")[point])
    right, up = (xy[point] - middle) * scale
    return row, width / 2 + right, height / 2 - up


def test_the_map_opens_and_a_click_opens_a_paper(reader):
    page = reader.open("?view=map")
    plot = reader.see("#plot[data-frame]")
    answer = page.request.get(reader.site.address + "map").json()
    box = plot.bounding_box()
    row, x, y = loneliest(answer, box["width"], box["height"])
    page.mouse.move(box["x"] + x, box["y"] + y)
    reader.see("#tip small")
    told = page.request.get(f"{reader.site.address}map/titles?rows={row}").json()["titles"][str(row)]
    assert reader.see("#tip").text_content().startswith(told["title"][:60])
    before = plot.evaluate("canvas => canvas.toDataURL()")
    page.locator(".legend input").first.click()
    page.mouse.move(5, 5)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert plot.evaluate("canvas => canvas.toDataURL()") != before
    page.locator(".legend input").first.click()
    page.mouse.click(box["x"] + x, box["y"] + y)
    reader.see(".paper h1")
    assert "paper=" + quote(told["id"], safe="*-._").replace("%20", "+") in page.url


def test_the_map_is_moved_by_keys_and_keeps_its_place_in_the_address(reader):
    page = reader.open("?view=map")
    reader.see("#plot[data-frame]").focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile(r"at=\d+%2C\d+%2C1\.40"))


def test_the_map_writes_titles_and_lights_what_a_search_finds(reader):
    page = reader.open("?view=map&q=Paper+7+shows")
    reader.see("#plot[data-frame]")
    note = reader.see(".map-side .note").text_content()
    count = int(re.match(r"(\d+) papers? of \d+ match", note)[1])
    hits = page.request.post(reader.site.address + "search", data={"text": "Paper 7 shows", "count": 1000}).json()[
        "hits"
    ]
    assert 1 <= count <= len(hits)
    reader.see("#plot[data-titles]:not([data-titles='0'])")
    page.locator(".legend .tools button:has-text('None')").click()
    reader.see("#plot[data-titles='0']")


def test_papers_to_add_are_chosen_and_exported(reader):
    page = reader.open("?view=lacking")
    reader.see('h2:has-text("Missing papers")')
    newer = reader.see('.counted li:has-text("A newer paper")')
    assert "Ada Newer" in newer.text_content() and "cites 2 papers of yours" in newer.text_content()
    newer.locator("input").check()
    assert reader.see("#to-add [role=status]").text_content() == "1 paper chosen"
    page.locator("#to-add .export").click()
    with page.expect_download() as download:
        page.locator('#to-add [role="menuitem"]:has-text("RIS")').click()
    assert "TI  - A newer paper" in Path(download.value.path()).read_text("utf-8")
    page.locator('#to-add button:has-text("Clear")').click()
    assert not newer.locator("input").is_checked()


def test_results_are_exported(reader):
    page = reader.open("?q=citations&index=other")
    reader.see(".card")
    for name, ending, says in (("BibTeX", "bib", "@"), ("CSV", "csv", "id"), ("JSON", "json", "[")):
        reader.see(".export").click()
        with page.expect_download() as download, page.expect_request("**/export") as asked:
            page.locator(f'[role="menuitem"]:has-text("{name}")').click()
        assert asked.value.post_data_json["index"] == "other"
        assert download.value.suggested_filename == f"papers.{ending}"
        text = Path(download.value.path()).read_text("utf-8")
        assert says in text and "Paper 7 shows" in text


def test_keys(reader):
    page = reader.open()
    reader.see(".doors")
    page.keyboard.press("/")
    page.keyboard.type("citations")
    page.keyboard.press("Enter")
    reader.see(".card")
    current = "document.activeElement.dataset.id"
    ids = page.locator(".card").evaluate_all("cards => cards.map(card => card.dataset.id)")
    for key, place in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        assert page.evaluate(current) == ids[place]
    page.keyboard.press("Enter")
    reader.see(".sentences button")
    for number in range(2):  # each press takes the next sentence
        page.keyboard.press("s")
        reader.see(f'.sentences [data-sentence="{number}"][aria-pressed="true"]')
    assert page.locator('.sentences [aria-pressed="true"]').count() == 2
    page.keyboard.press("?")
    reader.see("#help[open]")
    page.keyboard.press("Escape")
    page.locator("#help").wait_for(state="hidden")
    page.keyboard.press("m")
    reader.see("#plot[data-frame]")


def test_sentences_without_vectors_can_be_searched_by_their_words(reader):
    page = reader.open("?s=2&paper=" + quote(STRANGE_ID, safe=""))  # its title fills all that the model reads
    reader.see('[data-state="error"] a:has-text("Search by words")').click()
    reader.see(".card")
    assert "q=Models+learn" in page.url


def test_an_unknown_paper_is_said_in_the_servers_words(reader):
    reader.open("?paper=nobody:1")
    told = reader.see('[data-state="error"]').text_content()
    assert "nobody:1" in told and "Not in this library" in told
    for nowhere in ("?view=elsewhere", "?view=paper"):
        reader.open(nowhere)
        assert "No such page" in reader.see('[data-state="empty"]').text_content()


def test_a_server_that_stops_and_comes_back(reader_of, index, site_of):
    site = site_of(lambda: create_app({"main": index}, ServeOptions(device="cpu", time_limit=600))).start()
    reader = reader_of(site)
    page = reader.open("?q=citations")
    reader.see(".card")
    site.stop()
    page.locator(".card h3 a").first.click()
    assert "did not respond" in reader.see('[data-state="offline"]').text_content()
    reader.see("#health.bad")
    site.start()
    reader.see(".paper h1")  # by itself, without a reload
    reader.close()
    site.stop()


EVERY_VIEW = {
    "home": ("", ".doors a"),
    "search": ("?q=onerror", ".card"),
    "paper": ("?paper=" + quote(STRANGE_ID, safe=""), ".side .card"),
    "sentences": ("?s=0&paper=p:10", ".matched mark"),
    "liked": ("?like=" + quote(STRANGE_ID, safe=""), ".card"),
    "draft": ("?view=draft&kind=paper&text=" + quote(HOSTILE, safe=""), ".card"),
    "citations": ("?view=draft&text=Models+learn.+Cells+grow.", ".passage .card"),
    "graph": ("?view=graph&paper=p:1", ".graph a"),
    "compare": ("?view=compare&q=citations", ".columns .card"),
    "lacking": ("?view=lacking", ".counted .what"),
    "map": ("?view=map", "#plot[data-frame]"),
    "attack": ("?q=" + quote(HOSTILE, safe="") + "&field=" + quote(HOSTILE, safe=""), "[data-state]"),
}


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_view_fits_and_hostile_papers_stay_text(reader_of, site, width, dark):
    reader = reader_of(site, width=width, dark=dark)
    for name, (query, sign) in EVERY_VIEW.items():
        page = reader.open(query)
        reader.see(sign)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate("document.images.length + document.querySelectorAll('main svg[onload]').length") == 0, name
        assert page.evaluate(SMALL_TARGETS) == [], name
        failed = page.locator('[data-state="error"], [data-state="offline"]')
        assert failed.count() == 0 and reader.complaints == [], name
    reader.open("?paper=" + quote(STRANGE_ID, safe=""))
    assert reader.see(".paper h1").text_content() == HOSTILE
    reader.close()


SMALL_TARGETS = """() => [...document.querySelectorAll("button, a.button, select, summary, input:not([type=checkbox], [type=radio])")]
  .filter((one) => one.offsetParent).map((one) => [one.outerHTML.slice(0, 80), one.getBoundingClientRect()])
  .filter(([, box]) => box.height < 39.5 || box.width < 39.5).map(([html]) => html)"""


def test_the_theme_is_kept(reader):
    page = reader.open()
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    reader.see('[aria-label="Light or dark"]').click()
    dark = page.evaluate(ground)
    page.reload()
    assert page.evaluate(ground) == dark != light
