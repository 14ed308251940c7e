"""The made-up literature is the same however it is cut, and its citations and sentences tell the truth."""

from __future__ import annotations

import doctest
import re
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.corpus.paper import Intent
from citeweave.corpus.synthetic import literature, narration, vocabulary
from citeweave.corpus.synthetic import literature as synthetic
from citeweave.corpus.synthetic.literature import (
    ASPECTS,
    Facet,
    LiteratureBlock,
    SyntheticOptions,
    describe_literature,
    make_block,
    make_blocks,
    wordings,
)

OPTIONS = SyntheticOptions(papers=1500, seed=3)


@pytest.fixture(scope="module")
def whole() -> LiteratureBlock:
    return make_block(OPTIONS, 0, OPTIONS.papers)


def codes(part: LiteratureBlock, facet: Facet) -> np.ndarray:
    return {Facet.PROBLEM: part.truth.problem, Facet.METHOD: part.truth.method, Facet.FINDING: part.truth.finding}[
        facet
    ]


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


@pytest.mark.parametrize("module", [narration, literature, synthetic, vocabulary])
def test_examples(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_same_seed_same_literature_other_seed_another(whole: LiteratureBlock) -> None:
    literature.assign_concepts.cache_clear()
    assert columns(make_block(OPTIONS, 0, OPTIONS.papers)) == columns(whole)
    other = make_block(SyntheticOptions(papers=1500, seed=4), 0, 1500)
    assert other.papers.titles != whole.papers.titles
    assert not np.array_equal(other.truth.method, whole.truth.method)


@pytest.mark.parametrize("size", [1, 7, 400, 5000])
def test_the_cut_into_blocks_does_not_matter(whole: LiteratureBlock, size: int) -> None:
    options = OPTIONS if size > 1 else SyntheticOptions(papers=150)
    expected = columns(whole) if size > 1 else columns(make_block(options, 0, 150))
    joined: dict[str, list[object]] = {name: [] for name in expected}
    for part in reversed(list(make_blocks(options, size))):  # the order does not matter either
        for name, column in columns(part).items():
            joined[name] = column + joined[name]
    assert joined == expected


def test_ids_are_unique_and_sort_as_rows(whole: LiteratureBlock) -> None:
    assert whole.papers.ids == sorted(set(whole.papers.ids))
    assert whole.papers.ids[7] == "syn:000007"
    assert make_block(SyntheticOptions(papers=1_200_000), 0, 0).papers.ids == []


def test_citations_go_back_in_time_and_are_listed_once(whole: LiteratureBlock) -> None:
    cites = whole.citations
    assert (cites.cited < cites.citing).all() and (cites.cited >= 0).all()
    assert (np.diff(whole.papers.years) >= 0).all()
    assert whole.papers.years[0] == 1990 and whole.papers.years[-1] == 2024
    pairs = cites.citing * OPTIONS.papers + cites.cited
    assert (np.diff(pairs) > 0).all()
    assert 0.8 * OPTIONS.references < len(pairs) / OPTIONS.papers < 1.2 * OPTIONS.references


@pytest.mark.parametrize(
    ("intent", "facet"),
    [(Intent.BACKGROUND, Facet.PROBLEM), (Intent.METHOD, Facet.METHOD), (Intent.RESULT, Facet.FINDING)],
)
def test_intents_agree_with_the_truth(whole: LiteratureBlock, intent: Intent, facet: Facet) -> None:
    cites, code = whole.citations, codes(whole, facet)
    meant = (cites.intents & intent > 0) & ~cites.noise
    shared = code[cites.citing] == code[cites.cited]
    if intent is not Intent.BACKGROUND:  # a noisy mention may join a reasoned one of the same pair
        assert shared[meant].all()
    assert shared[meant].mean() > 0.97
    assert meant.mean() > 0.15
    assert shared[~meant].mean() < 0.2


def test_noise_is_background_and_about_as_frequent_as_asked(whole: LiteratureBlock) -> None:
    noise = whole.citations.noise
    assert (whole.citations.intents[noise] == Intent.BACKGROUND).all()
    assert 0.03 < noise.mean() < 0.08
    assert not make_block(SyntheticOptions(papers=300, noise=0), 0, 300).citations.noise.any()


def test_contexts_name_the_cited_papers_and_what_they_share(whole: LiteratureBlock) -> None:
    told = whole.contexts
    mask = {
        (citing, cited): intents
        for citing, cited, intents in zip(
            whole.citations.citing.tolist(),
            whole.citations.cited.tolist(),
            whole.citations.intents.tolist(),
            strict=True,
        )
    }
    sizes = set()
    for citing, text, cited, intents in zip(
        told.citing.tolist(), told.texts, told.cited, told.intents.tolist(), strict=True
    ):
        assert text.count("[CIT]") == len(cited) == len(set(cited))
        assert all(intents & ~mask[citing, other] == 0 for other in cited)
        sizes.add(len(cited))
        for facet, intent in ((Facet.METHOD, Intent.METHOD), (Facet.FINDING, Intent.RESULT)):
            if intents & intent:
                code = codes(whole, facet)
                assert (code[list(cited)] == code[citing]).all()
    assert sizes == {1, 2, 3}
    assert set(told.sections) == {
        "Introduction",
        "Related Work",
        "Methods",
        "Experimental Setup",
        "Results",
        "Discussion",
    }


def test_contexts_use_a_wording_of_the_shared_concept(whole: LiteratureBlock) -> None:
    told = whole.contexts
    methods = np.flatnonzero(told.intents & Intent.METHOD)[:20]
    for at in methods.tolist():
        known = wordings(OPTIONS, Facet.METHOD, int(whole.truth.method[told.citing[at]]))
        assert any(wording in told.texts[at] for wording in known)


def test_some_citations_have_no_context(whole: LiteratureBlock) -> None:
    pairs = {
        (citing, row) for citing, rows in zip(whole.contexts.citing, whole.contexts.cited, strict=True) for row in rows
    }
    assert 0.6 < len(pairs) / len(whole.citations.citing) < 0.9


def test_facets_cover_the_sentences(whole: LiteratureBlock) -> None:
    bare = 0
    for text, facets in zip(whole.papers.abstracts, whole.truth.facets, strict=True):
        sentences = re.findall(r"[^.]+\.", text)
        assert len(sentences) == len(facets)
        assert not facets or {Facet.PROBLEM, Facet.METHOD, Facet.FINDING} <= set(facets)
        bare += not facets
    assert 0.01 < bare / OPTIONS.papers < 0.06


@pytest.mark.parametrize("facet", ASPECTS)
def test_a_sentence_of_a_facet_names_the_papers_own_concept(whole: LiteratureBlock, facet: Facet) -> None:
    for row in range(100, 130):
        known = wordings(OPTIONS, facet, int(codes(whole, facet)[row]))
        sentences = whole.papers.abstracts[row].split(". ")
        own = [text for text, code in zip(sentences, whole.truth.facets[row], strict=False) if code == facet]
        assert not own or any(wording in text for text in own for wording in known)
        others = [text for text, code in zip(sentences, whole.truth.facets[row], strict=False) if code != facet]
        assert not any(wording in text for text in others for wording in known)


def test_concepts_have_many_wordings_and_do_not_collide() -> None:
    seen: dict[str, tuple[Facet, int]] = {}
    for facet in ASPECTS:
        for code in range(OPTIONS.fields * OPTIONS.concepts):
            told = wordings(OPTIONS, facet, code)
            assert len(told) >= 20
            for wording in told:
                assert "." not in wording and "*" not in wording and "#" not in wording
                assert seen.setdefault(wording, (facet, code)) == (facet, code)


def test_wordings_of_a_concept_share_few_words() -> None:
    told = wordings(OPTIONS, Facet.METHOD, 5)
    overlaps = [
        len({*a.split()} & {*b.split()}) / len({*a.split()} | {*b.split()}) for a in told for b in told if a != b
    ]
    assert np.mean(overlaps) < 0.35


def test_every_concept_has_sharers_and_aspects_are_nearly_independent(whole: LiteratureBlock) -> None:
    for facet in ASPECTS:
        counts = np.bincount(codes(whole, facet), minlength=OPTIONS.fields * OPTIONS.concepts)
        assert counts.min() > 10 and counts.max() < 4 * OPTIONS.sharers
    same_problem = whole.truth.problem[:, None] == whole.truth.problem
    same_method = whole.truth.method[:, None] == whole.truth.method
    np.fill_diagonal(same_problem, False)
    assert (same_problem & same_method).sum() / same_problem.sum() < 0.15


def test_large_literatures_keep_the_number_of_sharers() -> None:
    options = SyntheticOptions(papers=1_000_000)
    assert 30 < options.papers / (options.fields * options.concepts) < 50
    parts = literature.concept_parts(options, Facet.METHOD, np.arange(options.fields * options.concepts))
    assert len(np.unique(parts, axis=0)) == len(parts)
    assert any("type)" in wording for wording in wordings(options, Facet.METHOD, options.concepts - 1))


def test_degrees_are_skewed(whole: LiteratureBlock) -> None:
    degrees = np.sort(np.bincount(whole.citations.cited, minlength=OPTIONS.papers))
    assert degrees[-15:].mean() > 4 * degrees.mean()


@pytest.mark.parametrize("papers", [1, 2, 5])
def test_tiny_literatures(papers: int) -> None:
    part = make_block(SyntheticOptions(papers=papers), 0, papers)
    assert len(part.papers.ids) == len(part.truth.facets) == papers
    assert make_block(SyntheticOptions(papers=papers), papers, papers).contexts.texts == []


def test_the_manifest_says_that_it_is_made_up() -> None:
    assert describe_literature(OPTIONS)["made_up"] is True


@pytest.mark.parametrize(
    "wrong", [{"papers": 0}, {"noise": 1.5}, {"sharers": 1}, {"first_year": 2030}, {"references": -1}]
)
def test_wrong_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="--"):
        SyntheticOptions(**wrong)


def test_every_field_has_the_same_number_of_areas() -> None:
    assert len({len(heads) for heads in vocabulary.FIELDS.values()}) == 1
    assert len(vocabulary.FAMILIES) % len(narration.FIELDS) == len(vocabulary.FACTORS) % len(narration.FIELDS) == 0
    assert all(len(ways) == narration.WAYS for ways in narration.REASONS.values())
