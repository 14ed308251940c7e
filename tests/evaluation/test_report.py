"""The page of a report: every number is there, the markup is whole, nothing is loaded, and hostile text stays text."""

import math
import re
from typing import Any

import numpy as np
import pytest

from citeweave.core.randomness import stream
from citeweave.evaluation import html
from citeweave.evaluation.compare import Comparison, Difference, comparison_as_page, intervals_of
from citeweave.evaluation.html import BarRow, bar_table, render_report
from citeweave.evaluation.match_page import MATCHING, PairTexts, explanation_as_page
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.paper_map import MapData, preview
from citeweave.evaluation.report import report_as_page
from citeweave.vectors.document_distance import DocumentDistance, SentenceAlignment

from .conftest import HOSTILE, Page


def check(page: str) -> Page:
    """Well-formed, alone in the world, and closed to what is not in it."""
    found = Page(page)
    for tag, name, value in found.attributes:
        assert not name.startswith("on") and name != "style", f"{tag} {name}"
        if name in ("src", "href", "action", "data", "xlink:href"):
            assert re.fullmatch(r"#[\w-]+|[\w.-]+\.html", value), f"{tag} {name}={value}"
    assert not re.search(r"url\(|@import", page)
    ids = [value for _, name, value in found.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    policy = next(value for tag, name, value in found.attributes if tag == "meta" and value.startswith("default-src"))
    assert "default-src 'none'" in policy and "unsafe" not in policy
    return found


def report_value(names: list[str] | None = None, queries: int = 60) -> dict[str, Any]:
    """A report in the form in which `evaluate` writes it."""
    rng = stream(0, "test of pages")
    names = names or [f"query {number}" for number in range(queries)]
    fields = ["Computer Science", "Biology", "Art"]
    ranking = {
        name: {"map": float(rng.beta(2, 1)), "ndcg": float(rng.beta(3, 1)), "field": fields[at % 3]}
        for at, name in enumerate(names)
    }
    other = {name: {"map": float(rng.random()), "ndcg": float(rng.random())} for name in names}
    probe = {name: {"label": float(at), "predicted": float(-at)} for at, name in enumerate(names)}
    means = {"map": "mean", "ndcg": "mean"}
    outcomes = [
        Outcome("cite", "ranking", means, ranking, {"queries": len(names), "papers": 0}),
        Outcome("co-cite", "ranking", means, other, {"candidates without vector": 7}),
        Outcome("co-read", "ranking", {"map": "mean"}, other, {}, ("values move with the seed",)),
        Outcome("year", "numbers", {"kendalltau": "kendalltau"}, probe, chosen={"C": 0.1, "folds": [1, 2]}),
    ]
    metrics = {f"{each.task}.{name}": value for each in outcomes for name, value in each.metrics.items()}
    tasks = {
        each.task: {"kind": each.kind, "how": dict(each.how), "notes": list(each.notes), "chosen": dict(each.chosen)}
        for each in outcomes
    }
    return {
        **{"suite": "scidocs", "model": {"name": "specter", "dimension": 768}},
        **{"metrics": {**metrics, "average": 71.25}, "intervals": intervals_of(outcomes, resamples=20)},
        "headline": ["cite.map", "cite.ndcg", "year.kendalltau"],
        "averages": {"average": "mean of three numbers"},
        "coverage": {each.task: dict(each.coverage) for each in outcomes},
        **{"not_evaluated": {"mag": "mag/train.csv is missing"}, "notes": ["a careful remark"]},
        "options": {"distance": "", "missing": "wrong", "intercept": True, "seed": 0},
        "data": {"folder": "data", "files": {"test.qrel": "12ab"}, "papers": 123456},
        **{"tasks": tasks, "per_query": {each.task: each.rows for each in outcomes}},
        "versions": {"citeweave": "0.1.0"},
    }


def comparison(systems: tuple[str, ...] = ("minilm", "specter")) -> Comparison:
    metrics = ("overall", "cite.map")
    overall = Difference(*systems[:2], "overall", -1.0, -2.5, 0.5, 0.2, 0.2)
    differences = (overall, Difference(*systems[:2], "cite.map", -1.0, -1.75, -0.25, 0.0004, 0.0008))
    values = {system: dict.fromkeys(metrics, 61.5 + at) for at, system in enumerate(systems)}
    intervals = {system: dict.fromkeys(metrics, (58.25, 64.75)) for system in systems}
    return Comparison(systems, metrics, values, intervals, differences, {"cite.map": 1000}, ("One report of minilm.",))


def small_map(points: int = 200) -> MapData:
    rng = stream(0, "test of maps")
    labels = [("physics", "biology", "")[at % 3] for at in range(points)]
    xy = rng.normal(size=(points, 2)).astype(np.float32)
    return MapData(xy, labels, [f"paper {at}" for at in range(points)], 0.41, 0.72, "A sample.")


def test_every_number_of_the_report_is_on_the_page():
    value = report_value()
    found = check(report_as_page(value, map_data=small_map())).texts
    texts = " ".join(found)
    for name, number in value["metrics"].items():
        assert f"{number:.2f}".replace("-", "−") in texts, name
    for low, high in value["intervals"].values():
        assert f"{low:.2f} to {high:.2f}".replace("-", "−") in texts
    parts = "mag/train.csv is missing", "a careful remark", "values move with the seed", "123456", "12ab", "0.1.0"
    assert all(part in texts for part in parts)
    assert "candidates without vector" in texts and "homogeneity 0.41" in texts
    rows = value["per_query"]["cite"]
    art = [row["map"] for row in rows.values() if row["field"] == "Art"]  # fields are means of their queries
    place = found.index("Art")
    assert found[place + 1 : place + 3] == [str(len(art)), f"{100 * np.mean(art):.2f}"]
    order = sorted(rows, key=lambda name: rows[name]["map"])
    assert order[0] in found[found.index("lowest") :][:8] and order[-1] in found[found.index("highest") :][:8]
    queries = {query for task in ("cite", "co-cite", "co-read") for query in value["per_query"][task]}
    assert f"{len(queries):,} queries" in texts and "1 test papers" not in texts
    titled = check(report_as_page({**value, "titles": {"cite": {order[0]: "Rain & telephones"}}})).texts
    assert titled[titled.index(order[0], titled.index("lowest")) + 1] == "Rain & telephones"


def drawn(*blocks: html.Block) -> str:
    """The body of a page of these blocks."""
    return render_report(("a", "b", "c"), {"Blocks": blocks}).partition("<main>")[2]


def test_pictures_stand_where_their_numbers_say():
    bars = drawn(bar_table({"": [BarRow("map", 50.0, 40.0, 60.0)]}, "metric"))
    assert "M0.00 1.5H50.00v9H0.00z" in bars and "M40.00 6H60.00" in bars and bars.count("40.00 to 60.00") == 1
    bars = drawn(bar_table({"": [BarRow("tau", -25.0), BarRow("map", math.nan, 1.0, 2.0)]}, "metric"))
    assert "M20.00 1.5H0.00v9H20.00z" in bars and bars.count('class="bar"') == 1
    assert preview(MapData(np.zeros((3, 2), np.float32), [*"aab"], [*"tuv"], 0.1, 0.2))["paths"].keys() == {0, 1}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_stays_text(hostile):
    plain = check(report_as_page(report_value(), map_data=small_map()))
    value = report_value([f"{hostile} {at}" for at in range(60)])
    value |= {"suite": hostile, "model": {"name": hostile, hostile: hostile}, "notes": [hostile]}
    value["not_evaluated"] = {hostile: hostile}
    value["per_query"]["cite"] = {name: {**row, "field": hostile} for name, row in value["per_query"]["cite"].items()}
    labels = [hostile, "b"] * 100
    drawn = MapData(small_map().xy, labels, labels, 0.1, 0.2, hostile)
    found = check(report_as_page(value, map_data=drawn))
    assert set(found.tags) == set(plain.tags) and "script" not in found.tags
    assert html.one_line(hostile, 30).rstrip("…")[:20] in " ".join(found.texts)
    check(comparison_as_page(comparison((hostile, "b"))))


def test_odd_reports_are_pages():
    assert len(report_as_page(report_value(queries=5_000)).encode()) < 100_000
    value = report_value()  # missing numbers leave gaps and no error
    value["metrics"]["cite.map"] = math.nan
    value["intervals"] |= {"cite.map": [math.nan, math.nan], "cite.ndcg": None}
    value["per_query"]["cite"]["query 0"]["map"] = None
    page = report_as_page(value)
    check(page)
    assert "nan" not in page.lower().replace("covariance", "")
    about = {"kind": "ranking", "how": {"map": "mean"}, "notes": [], "chosen": {}}
    value = {
        **report_value(),
        **{"metrics": {"a.map": 1.0}, "intervals": {}, "headline": [], "averages": {}, "not_evaluated": {}},
        **{"tasks": {"a": about}, "per_query": {"a": {}}, "coverage": {"a": {}}, "notes": []},
    }
    found = check(report_as_page(value))
    assert "Queries" not in found.texts and "Coverage" not in found.texts


def test_a_comparison_names_systems_differences_and_verdicts():
    texts = " ".join(check(comparison_as_page(comparison())).texts)
    for part in ("minilm", "specter", "61.50", "58.25 to 64.75", "−1.00", "−1.75 to −0.25", "✓ 0.0008", "1,000"):
        assert part in texts
    assert "is better than" in texts and "no difference" in texts
    assert texts.count("✓ 0.") == 1
    assert "minilm − specter: specter better" in texts and "specter ahead, not certain" in texts
    assert "cite.map, 1,000 queries" in texts


def test_text_cannot_end_a_script_or_an_attribute():
    assert not re.search("[<>&']", html.as_json(HOSTILE))
    escaped = "&#34;quotes&#34; and &#39;single&#39; &amp; &lt;b onmouseover=alert(1)&gt;"
    assert escaped in drawn(("lead", HOSTILE[1])) and HOSTILE[1] not in drawn(("lead", HOSTILE[1]))


@pytest.mark.parametrize(("left", "right"), [(1, 1), (60, 2), (3, 60)])
def test_sentences_of_others_stay_text(left, right):
    plan = stream(left, "plan").random((left, right))
    explained = SentenceAlignment(np.arange(left), np.arange(right), plan / plan.sum(), plan, 1.0)
    texts = PairTexts(HOSTILE[0], HOSTILE[1], (HOSTILE * 20)[:left], (HOSTILE * 20)[:right])
    for name in MATCHING:
        found = check(explanation_as_page(explained, texts, DocumentDistance(name), model="<img src=x>"))
        assert not {"script", "img"} & set(found.tags)
        assert found.tags.count("foreignobject") == left + right + 2
        assert any("alert(1)" in words for words in found.texts)
        assert found.tags.count("td") == left * right + 3 * min(12, left * right)
    nothing = SentenceAlignment(np.arange(2), np.arange(1), np.zeros((2, 1)), np.zeros((2, 1)), 0.0)  # no mass
    check(explanation_as_page(nothing, PairTexts("", "", [], []), DocumentDistance("single")))
