"""The synthetic literature is the same however it is cut, and its citations and sentences agree with its truth."""

import itertools
import re
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.paper import Intent
from citeweave.corpus.synthetic import literature, narration
from citeweave.corpus.synthetic.literature import ASPECTS, LiteratureBlock, make_block, wordings
from citeweave.corpus.synthetic.narration import Facet

from ..conftest import refused

OPTIONS = SyntheticOptions(papers=1500, seed=3)


@pytest.fixture(scope="module")
def complete():
    return make_block(OPTIONS, 0, OPTIONS.papers)


def codes(part: LiteratureBlock, facet: Facet) -> np.ndarray:
    names = {Facet.PROBLEM: "problem", Facet.METHOD: "method", Facet.FINDING: "finding"}
    return getattr(part.truth, names[facet])  # type: ignore[no-any-return]


def columns(value: object) -> dict[str, list[object]]:
    """Every list and array below a block, by name, as plain lists."""
    found: dict[str, list[object]] = {}
    assert is_dataclass(value)
    for field in fields(value):
        inner = getattr(value, field.name)
        if is_dataclass(inner):
            found |= {f"{field.name}.{name}": column for name, column in columns(inner).items()}
        elif not isinstance(inner, int):
            found[field.name] = list(inner)
    return found


def test_same_seed_same_literature_other_seed_another(complete):
    literature.assign_concepts.cache_clear()
    assert columns(make_block(OPTIONS, 0, OPTIONS.papers)) == columns(complete)
    other = make_block(SyntheticOptions(papers=1500, seed=4), 0, 1500)
    assert other.papers.titles != complete.papers.titles
    assert not np.array_equal(other.truth.method, complete.truth.method)


@pytest.mark.parametrize("size", [1, 7, 400, 5000])
def test_the_cut_into_blocks_does_not_matter(complete, size):
    options = OPTIONS if size > 1 else SyntheticOptions(papers=150)
    expected = columns(complete) if size > 1 else columns(make_block(options, 0, 150))
    joined: dict[str, list[object]] = {name: [] for name in expected}
    for start in reversed(range(0, options.papers, size)):  # the order does not matter either
        for name, column in columns(make_block(options, start, min(start + size, options.papers))).items():
            joined[name] = column + joined[name]
    assert joined == expected


def test_ids_sort_as_rows_and_citations_go_back_in_time(complete):
    assert complete.papers.ids == sorted(set(complete.papers.ids)) and complete.papers.ids[7] == "syn:000007"
    assert make_block(SyntheticOptions(papers=1_200_000), 0, 0).papers.ids == []
    cites, years = complete.citations, complete.papers.years
    assert (cites.cited < cites.citing).all() and (cites.cited >= 0).all()
    assert (np.diff(years) >= 0).all() and (years[0], years[-1]) == (1990, 2024)
    pairs = cites.citing * OPTIONS.papers + cites.cited
    assert (np.diff(pairs) > 0).all(), "each is listed once"
    assert 0.8 * OPTIONS.references < len(pairs) / OPTIONS.papers < 1.2 * OPTIONS.references
    degrees = np.sort(np.bincount(cites.cited, minlength=OPTIONS.papers))
    assert degrees[-15:].mean() > 4 * degrees.mean(), "degrees are skewed"


MEANT = [(Intent.BACKGROUND, Facet.PROBLEM), (Intent.METHOD, Facet.METHOD), (Intent.RESULT, Facet.FINDING)]


@pytest.mark.parametrize(("intent", "facet"), MEANT)
def test_intents_agree_with_the_truth(complete, intent, facet):
    cites, code = complete.citations, codes(complete, facet)
    meant = (cites.intents & intent > 0) & ~cites.noise
    shared = code[cites.citing] == code[cites.cited]
    if intent is not Intent.BACKGROUND:  # a noisy mention may join a reasoned one of the same pair
        assert shared[meant].all()
    assert shared[meant].mean() > 0.97
    assert meant.mean() > 0.15
    assert shared[~meant].mean() < 0.2


def test_noise_is_background_and_about_as_frequent_as_requested(complete):
    noise = complete.citations.noise
    assert (complete.citations.intents[noise] == Intent.BACKGROUND).all() and 0.03 < noise.mean() < 0.08
    assert not make_block(SyntheticOptions(papers=300, noise=0), 0, 300).citations.noise.any()


def test_contexts_name_the_cited_papers_and_what_they_share(complete):
    table, cites, sizes = complete.contexts, complete.citations, set()
    pairs = zip(cites.citing.tolist(), cites.cited.tolist(), strict=True)
    mask = dict(zip(pairs, cites.intents.tolist(), strict=True))
    rows = zip(table.citing.tolist(), table.texts, table.cited, table.intents.tolist(), strict=True)
    for citing, text, cited, intents in rows:
        assert text.count("[CIT]") == len(cited) == len(set(cited))
        assert all(intents & ~mask[citing, other] == 0 for other in cited)
        sizes.add(len(cited))
        for facet, intent in ((Facet.METHOD, Intent.METHOD), (Facet.FINDING, Intent.RESULT)):
            if intents & intent:
                code = codes(complete, facet)
                assert (code[list(cited)] == code[citing]).all()
    assert sizes == {1, 2, 3}
    sections = {"Introduction", "Related Work", "Methods", "Experimental Setup", "Results", "Discussion"}
    assert set(table.sections) == sections
    for at in np.flatnonzero(table.intents & Intent.METHOD)[:20].tolist():
        known = wordings(OPTIONS, Facet.METHOD, int(complete.truth.method[table.citing[at]]))
        assert any(wording in table.texts[at] for wording in known)
    in_contexts = {(citing, row) for citing, rows in zip(table.citing, table.cited, strict=True) for row in rows}
    assert 0.6 < len(in_contexts) / len(cites.citing) < 0.9, "some citations have no context"


def test_facets_cover_the_sentences(complete):
    bare = 0
    for text, facets in zip(complete.papers.abstracts, complete.truth.facets, strict=True):
        sentences = re.findall(r"[^.]+\.", text)
        assert len(sentences) == len(facets)
        assert not facets or {Facet.PROBLEM, Facet.METHOD, Facet.FINDING} <= set(facets)
        bare += not facets
    assert 0.01 < bare / OPTIONS.papers < 0.06


@pytest.mark.parametrize("facet", ASPECTS)
def test_a_sentence_of_a_facet_names_the_papers_own_concept(complete, facet):
    for row in range(100, 130):
        known = wordings(OPTIONS, facet, int(codes(complete, facet)[row]))
        sentences = complete.papers.abstracts[row].split(". ")
        own = [text for text, code in zip(sentences, complete.truth.facets[row], strict=False) if code == facet]
        assert not own or any(wording in text for text in own for wording in known)
        others = [text for text, code in zip(sentences, complete.truth.facets[row], strict=False) if code != facet]
        assert not any(wording in text for text in others for wording in known)


def test_concepts_have_many_wordings_that_do_not_collide():
    seen: dict[str, tuple[Facet, int]] = {}
    for facet in ASPECTS:
        for code in range(OPTIONS.fields * OPTIONS.concepts):
            known = wordings(OPTIONS, facet, code)
            assert len(known) >= 20
            for wording in known:
                assert not set(wording) & set(".*#")
                assert seen.setdefault(wording, (facet, code)) == (facet, code)
    words = [set(wording.split()) for wording in wordings(OPTIONS, Facet.METHOD, 5)]
    assert np.mean([len(a & b) / len(a | b) for a, b in itertools.permutations(words, 2)]) < 0.35


def test_every_concept_has_sharers_and_aspects_are_nearly_independent(complete):
    for facet in ASPECTS:
        counts = np.bincount(codes(complete, facet), minlength=OPTIONS.fields * OPTIONS.concepts)
        assert counts.min() > 10 and counts.max() < 4 * OPTIONS.sharers
    same_problem = complete.truth.problem[:, None] == complete.truth.problem
    same_method = complete.truth.method[:, None] == complete.truth.method
    np.fill_diagonal(same_problem, False)
    assert (same_problem & same_method).sum() / same_problem.sum() < 0.15


def test_large_literatures_keep_the_number_of_sharers():
    options = SyntheticOptions(papers=1_000_000)
    assert 30 < options.papers / (options.fields * options.concepts) < 50
    parts = literature.concept_parts(options, Facet.METHOD, np.arange(options.fields * options.concepts))
    assert len(np.unique(parts, axis=0)) == len(parts)
    assert any("type)" in wording for wording in wordings(options, Facet.METHOD, options.concepts - 1))


@pytest.mark.parametrize("papers", [1, 2, 5])
def test_tiny_literatures_are_complete(papers):
    part = make_block(SyntheticOptions(papers=papers), 0, papers)
    assert len(part.papers.ids) == len(part.truth.facets) == papers
    assert make_block(SyntheticOptions(papers=papers), papers, papers).contexts.texts == []
    assert literature.describe_literature(SyntheticOptions(papers=papers))["made_up"] is True


def test_wrong_options_are_refused():
    for name, value in {"papers": 0, "noise": 1.5, "sharers": 1, "first_year": 2030, "references": -1}.items():
        refused("; it must|--", SyntheticOptions, **{name: value})


def test_every_field_has_the_same_number_of_areas():
    assert len({len(heads.splitlines()) for heads in narration.PHRASES["fields"].values()}) == 1
    assert not any(len(narration.HEADS[facet]) % len(narration.FIELDS) for facet in ASPECTS)
    assert all(len(ways) == narration.WAYS for ways in narration.REASONS.values())
