"""The front door takes what its names suggest, or refuses it by name."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import citeweave
from citeweave import IndexOptions, load_encoder
from citeweave.core.arguments import ARGUMENT_TYPES, Argument, as_texts, parts_of
from citeweave.core.errors import CiteweaveError, UserError
from citeweave.corpus.options import SyntheticOptions

from .conftest import refused

FUNCTIONS = [name for name in dir(citeweave) if inspect.isfunction(getattr(citeweave, name))]
STUB = ast.parse(Path(citeweave.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
NOT_MEANT = (7, 2.5, b"bytes", object())
"""What no argument of ours is, unless it is a number."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> citeweave.Corpus:
    return citeweave.synthesize(tmp_path_factory.mktemp("front") / "corpus", SyntheticOptions(papers=40), workers=1)


@pytest.fixture(scope="module")
def index(corpus: citeweave.Corpus, bert: Path) -> citeweave.Index:
    folder = corpus.folder.parent / "index"
    return citeweave.build_index(str(corpus.folder), bert, folder, IndexOptions(device="cpu", runtime="torch"))


def test_one_text_is_one_text(bert):
    encoder = load_encoder(bert, device="cpu")
    one = encoder.encode("hello world")
    assert one.shape == (1, encoder.dimension) and np.array_equal(one, encoder.encode(["hello world"]))
    for wrong in ([b"bytes"], ["a", 7], [None]):
        refused("they must be texts", encoder.encode, wrong)


@pytest.mark.parametrize("name", ["random", "tfidf"])
def test_one_text_is_one_text_to_baselines(corpus, name):
    assert len(citeweave.fit_baseline(name, str(corpus.folder)).encode("hello world")) == 1


def test_a_paper_by_its_row_or_its_id(corpus):
    first = corpus.ids[0]
    assert corpus.paper(first) == corpus.paper(0) == corpus.paper(np.int64(0))
    refused("paper 'bert' is not in", corpus.paper, "bert")
    for row in (-1, 40, 10**12):
        refused(f"row {row} is not in .*it has rows 0 to 39", corpus.paper, row)
    assert corpus.rows(first).tolist() == [0]
    refused("ids hold 0 .int.; they must be texts", corpus.rows, [0])


def test_folders_and_names_are_opened(corpus, bert, tmp_path):
    made = citeweave.embed_papers(str(corpus.folder), str(bert), tmp_path / "vectors")
    assert len(made) == len(citeweave.embed_papers(corpus, [load_encoder(bert)], tmp_path / "vectors"))
    assert made.take(corpus.ids[3]).shape == (1, made.matrix.shape[1])
    graph = citeweave.make_graph(corpus.folder, str(tmp_path / "graph"))
    assert citeweave.related(str(tmp_path / "graph"), "cited", np.arange(3)).offsets[-1] >= 0
    assert graph.nodes == len(corpus)


def test_an_index_answers_a_text(index, corpus):
    text = corpus.titles[5]
    found = citeweave.answer(index, text)
    assert found.hits and found.by == "hybrid"
    again = citeweave.answer(str(index.folder), citeweave.Query(text=text))
    assert [hit.id for hit in again.hits] == [hit.id for hit in found.hits]
    assert citeweave.answer(index, citeweave.Query(paper=corpus.ids[5])).hits
    assert citeweave.answer(index, None, citeweave.Query(text=text, by="words")).by == "words"
    for wrong in ((index, None), (index, citeweave.Query(text="a"), citeweave.Query(text="b"))):
        refused("answer takes an index", citeweave.answer, *wrong)


def test_a_query_and_its_encoder_come_in_either_order(index, corpus):
    query, encoder = citeweave.Query(text=corpus.titles[5]), citeweave.open_query_encoder(index, device="cpu")
    wanted = citeweave.answer(index, encoder, query).hits
    for found in (
        citeweave.answer(index, query, encoder),
        citeweave.answer(index, corpus.titles[5], encoder),
        citeweave.answer(index, query=query),
        citeweave.answer(index=index, query=corpus.titles[5], query_encoder=encoder),
    ):
        assert [hit.id for hit in found.hits] == [hit.id for hit in wanted] and found.by == "hybrid"
    assert citeweave.answer(index, query=query, query_encoder=None).by == "words"
    refused("made by citeweave.open_query_encoder", citeweave.answer, index, load_encoder, query)
    refused("it must be a query encoder .made by", citeweave.search_text, index, "weave", "rain")
    refused("answer takes an index", citeweave.answer, index)


def test_objects_at_a_prompt_are_one_short_line(index, corpus, tmp_path):
    text = corpus.titles[5]
    result = citeweave.answer(index, citeweave.Query(text=text, count=3, where=citeweave.Filter(years=(1, None))))
    value = {"model": {"name": "weave"}, "suite": "csfcube", "tasks": {"all": {}}, "metrics": {"all.map": 38.3}}
    imported = citeweave.import_papers([{"id": "a", "title": text}], tmp_path / "c")
    graph = citeweave.make_graph(corpus, tmp_path / "graph")
    shown = [
        (result, r"SearchResult\(Query\(text='.*: 3 of \d+ hits by hybrid, confidence \w+\)"),
        (result.query.where, r"Filter\(years=\(1, None\)\)"),
        (result.hits[0], rf"Hit\('{result.hits[0].id}', \d+, '.*', score \d\.\d+\)"),
        (citeweave.open_query_encoder(index, device="cpu"), r"QueryEncoder\(.* for Index\('.*': 40 papers by .*\)\)"),
        (citeweave.Report(Path("report"), None, value), r"Report\('report': weave on csfcube, 1 tasks, 1 metrics\)"),
        (imported, r"ImportResult\(Corpus\('.*': 1 papers, 0 citations\), 1 files\)"),
        (corpus.titles, r"TextColumn\('title': 40 texts\)"),
        (corpus.contexts, r"Contexts\(\d+ citing sentences\)"),
        (graph, r"CitationGraph\(40 nodes, \d+ edges\)"),
    ]
    for thing, line in shown:
        assert re.fullmatch(line, repr(thing)) and len(repr(thing)) < 300, repr(thing)


def test_a_misspelled_argument_is_answered_with_the_arguments_that_exist(index):
    with pytest.raises(
        TypeError, match=r"build_index: got an unexpected .*'sentences'; its arguments are corpus, model"
    ):
        citeweave.build_index("corpus/", "weave", "index/", sentences=True)


@pytest.mark.parametrize("wrong", [None, 7, ["index/"], "nowhere", "How old is it?"], ids=repr)
def test_a_wrong_index_is_refused_by_name_with_the_function_that_makes_one(wrong, corpus):
    with pytest.raises(UserError, match=r"^answer: index\b.*an [Ii]ndex.*made by citeweave.build_index") as error:
        citeweave.answer(wrong, "How old is it?")
    assert str(wrong) in str(error.value)


def test_a_corpus_in_place_of_an_index_is_named(corpus):
    refused(r"answer: index is Corpus\(.*it must be an Index or its folder", citeweave.answer, corpus, "How old?")
    refused("^answer: index: .*corpus holds corpus, not index", citeweave.answer, corpus.folder, "How old?")


def test_rows_and_ids_of_an_index(index, corpus):
    one, other = corpus.ids[1], corpus.ids[2]
    by_id, by_row = (citeweave.explain(index, *pair) for pair in ((one, other), (index.row(one), index.row(other))))
    assert by_id == by_row
    refused(r"search_paper: paper is 3 \(int\); it must be a text", citeweave.search_paper, index, 3)
    with pytest.raises(UserError, match=r"search_paper: count is '3' \(str\); it must be a whole number"):
        citeweave.search_paper(index, one, count="3")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_and_types_say_what_every_function_accepts(name):
    """The stub, which type checkers read, and `help` name all types that the conversion of arguments accepts."""
    function = getattr(citeweave, name)
    shown = {each.name: str(each.annotation) for each in inspect.signature(function).parameters.values()}
    (stub,) = (node for node in STUB.body if isinstance(node, ast.FunctionDef) and node.name == name)
    arguments = [*stub.args.args, *stub.args.kwonlyargs]
    for typed in arguments:
        assert ast.unparse(ast.parse(shown[typed.arg])) == ast.unparse(typed.annotation), typed.arg
    for parameter in inspect.signature(function.__wrapped__).parameters.values():
        for kind in {*parts_of(str(parameter.annotation))} & {*ARGUMENT_TYPES}:
            assert {kind, *ARGUMENT_TYPES[kind].stands_in} <= {*parts_of(shown[parameter.name])}, parameter.name


def test_every_name_in_the_types_is_imported():
    imported = {alias.asname or alias.name for node in STUB.body for alias in getattr(node, "names", [])}
    used = {node.id for node in ast.walk(STUB) if isinstance(node, ast.Name)}
    assert used - imported <= {*dir(builtins)}
    assert {*dir(citeweave)} <= imported | {*FUNCTIONS}


def test_a_text_is_a_path_where_a_path_is_wanted():
    assert Argument("open_library: folder", "Path | None", {}).convert("folder") == Path("folder")
    assert Argument("create_app: indexes", "Mapping[str, Path]", {}).convert({"a": "b"}) == {"a": Path("b")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_refuses_what_is_not_meant_by_name(name):
    """Every argument that takes an artifact, a model, a text or an id: none of them lets a number or bytes pass."""
    function = getattr(citeweave, name)
    for parameter in inspect.signature(function.__wrapped__).parameters.values():
        annotation = str(parameter.annotation)
        if not {*parts_of(annotation)} & {*ARGUMENT_TYPES, "str", "Sequence[str]"}:
            continue
        argument = Argument(f"{name}: {parameter.name}", annotation, function.__wrapped__.__globals__)
        for value in NOT_MEANT:
            refused(rf"^{name}: {parameter.name} is .*; it must be ", argument.convert, value)


def test_refusals_come_before_any_work(tmp_path):
    for call, message in (
        (lambda: citeweave.make_graph(7, tmp_path / "g"), "make_graph: corpus is 7 .int.; it must be a Corpus or its"),
        (lambda: citeweave.embed_papers(tmp_path, 7, tmp_path / "v"), "is not an artifact|no manifest|is missing"),
        (lambda: citeweave.compare(7), "compare: systems is 7 .int.; it must be a mapping of names"),
        (lambda: citeweave.compare({"a": 7}), r"compare: systems\['a'\] is 7 .int.; it must be a list"),
        (lambda: citeweave.evaluate(None, 7, tmp_path / "r"), "evaluate: system is None"),
        (lambda: citeweave.import_papers(7, tmp_path / "c"), "import_papers: sources hold 7"),
        (lambda: citeweave.mine_samples("nowhere", 7, tmp_path / "s"), "nowhere"),
    ):
        refused(message, call, error=CiteweaveError)
    assert not list(tmp_path.iterdir())


def test_texts_are_texts():
    assert as_texts("ab") == ["ab"] and as_texts(np.array(["a", "b"])) == ["a", "b"]
