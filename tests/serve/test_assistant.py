"""An assistant's client, in a process of its own, searches a library by every tool; nonsense is refused in one sentence."""

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from citeweave import Index
from citeweave.core.options import keys_of
from citeweave.search.query import Filter
from citeweave.serve.assistant import describe_tool
from citeweave.serve.assistant_tools import MAX_LISTED, MAX_NEIGHBORS, TOOLS, AssistantLibrary

SOURCE = Path(__file__).resolve().parent.parent.parent / "src"
NAMES = ["search", "similar", "by_aspect", "by_sentences", "explain", "cite", "paper"]

CALLS: list[tuple[str, dict[str, Any], bool]] = [
    ("search", {"text": "models learn from data", "count": 3, "where": {"years": [2005, None], "venues": None}}, False),
    ("search", {"text": "models learn", "by": "words", "offset": None}, False),
    ("similar", {"paper": "doi:10.1/seven", "count": 2}, False),
    ("by_aspect", {"paper": "p:7", "aspect": "method", "count": 2}, False),
    ("by_sentences", {"paper": "p:7", "numbers": [1], "count": 2}, False),
    ("by_sentences", {"texts": ["Models learn from data."], "count": 2}, False),
    ("explain", {"left": "p:0", "right": "p:1"}, False),
    ("cite", {"text": "Models learn from data [CIT].", "count": 2}, False),
    ("paper", {"id": "p:7", "sentences": True, "bibtex": True}, False),
    ("search", {}, True),
    ("search", {"text": "rain", "cuont": 3}, True),
    ("paper", {"id": "p:007"}, True),
    ("drop_table", {"text": "rain"}, True),
]


needs_mcp = pytest.mark.skipif(find_spec("mcp") is None, reason="pip install 'citeweave[assistant]'")


async def _call_all(place: SimpleNamespace, errors: Path) -> tuple[str, list[Any], list[Any]]:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    environment = {"PYTHONPATH": str(SOURCE), "CITEWEAVE_CACHE": os.environ.get("CITEWEAVE_CACHE", "")}
    command = ["-m", "citeweave", "mcp", str(place.index), "--device", "cpu"]
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)
    with errors.open("w") as stderr:
        async with Client(stdio_client(server, errlog=stderr)) as client:
            tools = (await client.list_tools()).tools
            answers = [await client.call_tool(name, arguments) for name, arguments, _ in CALLS]
            return client.instructions or "", tools, answers


@needs_mcp
def test_a_client_uses_every_tool_over_standard_input_and_output(place: SimpleNamespace, tmp_path: Path) -> None:
    import anyio

    introduction, tools, answers = anyio.run(_call_all, place, tmp_path / "errors.txt")
    assert "20 scientific papers from 2000 to 2019" in introduction and "method" in introduction
    assert [tool.name for tool in tools] == NAMES
    assert all(tool.annotations.read_only_hint and "Example: {" in tool.description for tool in tools)
    texts = []
    for (name, _, fails), result in zip(CALLS, answers, strict=True):
        (content,) = result.content
        assert result.is_error == fails, (name, content.text)
        assert "\n" not in content.text and len(content.text) < 20_000 and str(place.index) not in content.text
        texts.append(content.text if fails else json.loads(content.text))
    found, words, similar, aspect, one, own, why, cite, paper, *refused = texts
    assert found["by"] == "hybrid" and len(found["hits"]) == 3 and found["hits"][0]["sentences"]
    assert all(
        hit["year"] >= 2005 and {"id", "title", "authors", "venue", "score"} <= hit.keys() for hit in found["hits"]
    )
    assert words["by"] == "words" and len(similar["hits"]) == len(aspect["hits"]) == len(cite["hits"]) == 2
    assert one["by"] == own["by"] == "sentences" and one["hits"][0]["sentences"]
    assert why["counts"]["shared_references"] == 3 and why["words"] and why["sentences"]
    assert {each["id"] for each in why["shared_references"]} >= {"p:3", "p:7"}
    assert paper["doi"] == "10.1/seven" and paper["cited_by"]["count"] == 2 and len(paper["sentences"]) == 3
    assert paper["bibtex"].startswith("@") and paper["authors"][0] == "Ada Lovelace"
    assert "search needs text" in refused[0] and "Did you mean 'count'?" in refused[1]
    assert "'p:007' is not in the library" in refused[2] and "'drop_table'" in refused[3]
    assert "Traceback" not in (tmp_path / "errors.txt").read_text()


@pytest.fixture(scope="module")
def library(place: SimpleNamespace) -> AssistantLibrary:
    return AssistantLibrary(Index.open(place.index), device="cpu")


NONSENSE: list[tuple[str, dict[str, Any], str]] = [
    ("search", {"text": "x" * 100_001}, "at most 100,000"),
    ("search", {"text": "   "}, "a query has one of"),
    ("search", {"text": ["rain"]}, "it must be a text"),
    ("search", {"text": "rain", "count": 0}, "from 1 to 50"),
    ("search", {"text": "rain", "count": 10**30}, "from 1 to 50"),
    ("search", {"text": "rain", "count": "ten"}, "a whole number"),
    ("search", {"text": "rain", "count": True}, "a whole number"),
    ("search", {"text": "rain", "where": "2015"}, "a table of keys and values"),
    ("search", {"text": "rain", "where": {"years": "2015-2020"}}, "the first and the last year"),
    ("search", {"text": "rain", "where": {"year": 2015}}, "Did you mean 'years'?"),
    ("search", {"text": "rain", "by": "magic"}, "hybrid, vectors, words"),
    ("search", {"text": "rain", "x" * 10_000: 1}, "it must be one of"),
    ("by_aspect", {"text": "rain", "aspect": "colour"}, "method"),
    ("by_aspect", {"text": "rain"}, "by_aspect needs aspect"),
    ("by_sentences", {"texts": ["a"] * 51}, "at most 50"),
    ("by_sentences", {"paper": "p:7", "numbers": [99]}, "99"),
    ("explain", {"left": "p:0"}, "explain needs right"),
    ("explain", {"left": "p:0", "right": {"id": "p:1"}}, "it must be a text"),
    ("paper", {"id": "\n\x00"}, "not be empty|not in the library"),
    ("paper", {"id": "p" * 2000}, "at most 1,000"),
    ("", {}, "it must be one of"),
    ("x" * 10_000, {}, "it must be one of"),
]


@pytest.mark.parametrize(("name", "arguments", "says"), NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_refused_in_one_sentence(library: AssistantLibrary, name: str, arguments: Any, says: str) -> None:
    text, failed = library.respond(name, arguments)
    assert failed and re.search(says, text), text
    assert "\n" not in text and len(text) <= 600 and "internal error" not in text


def test_answers_are_bounded(library: AssistantLibrary) -> None:
    text, failed = library.respond("search", {"text": "cell " * 10_000, "by": "words", "count": MAX_LISTED})
    assert not failed and len(text) < 1500 * MAX_LISTED
    record = json.loads(library.respond("paper", {"id": "p:3"}).text)
    assert len(record["cited_by"]["papers"]) == record["cited_by"]["count"] == 3 <= MAX_NEIGHBORS


def test_without_its_model_a_library_is_searched_by_words_and_says_why(place: SimpleNamespace) -> None:
    library = AssistantLibrary(Index.open(place.index), model=str(place.folder / "nowhere"), device="cpu")
    found = json.loads(library.respond("search", {"text": "models learn"}).text)
    assert found["by"] == "words" and found["hits"] and "nowhere" in found["note"]
    text, failed = library.respond("cite", {"text": "Models learn [CIT]."})
    assert failed and "nowhere" in text and str(place.folder) not in text + found["note"]


def test_schemas_have_the_bounds_of_the_options() -> None:
    tools = {tool.name: describe_tool(tool)["input_schema"] for tool in TOOLS}
    assert list(tools) == NAMES
    search = tools["search"]["properties"]
    assert search["count"]["maximum"] == MAX_LISTED and search["text"]["maxLength"] == 100_000
    assert search["by"]["enum"] == ["hybrid", "vectors", "words"]
    where = search["where"]["properties"]
    assert where.keys() == {*keys_of(Filter)} - {"ids", "not_ids", "local"} and where["years"]["maxItems"] == 2
    assert tools["explain"]["required"] == ["left", "right"] and tools["cite"]["required"] == ["text"]
    assert all(schema["additionalProperties"] is False for schema in tools.values())
    assert all(each["description"] for schema in tools.values() for each in schema["properties"].values())
