"""What the five texts claim, as two systems, a metric and the published numbers; and every table and figure they have.

A claim about SciDocs, SciRepEval or MDCR is tested by its nearest kin here: an average is the mean of the corpus suite's
tasks, classification `field.f1`, regression `year.kendalltau`, proximity and citations `cite.map`, co-citations `cocite.map`.
Does not test: see `verdicts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.claims.systems import NEGATIVE_RANKS, POSITIVE_RANKS, START, THRESHOLDS
from citeweave.evaluation.compare import OVERALL

SPECTER, SCINCL, ASPIRE, SCIASPECT, COCITE = "SPECTER", "SciNCL", "ASPIRE", "SciAspect", "Co-citations"
TEXTS = {
    SPECTER: "SPECTER (Cohan et al., ACL 2020)",
    SCINCL: "SciNCL (Ostendorff et al., EMNLP 2022)",
    ASPIRE: "ASPIRE (Mysore et al., NAACL 2022)",
    SCIASPECT: "SciAspect (thesis, TUM 2023)",
    COCITE: "Continuous co-citations and loss study (thesis, Oldenburg 2024)",
}
CLASSES, NUMBERS, CITE, COCITED, MDCR = "field.f1", "year.kendalltau", "cite.map", "cocite.map", "mdcr.map"
FACETED = "csfcube"


@dataclass(frozen=True)
class Claim:
    """One system is better than another, in one text."""

    text: str
    where: str
    better: str
    worse: str
    published: str
    metric: str = OVERALL
    view: str = "corpus"


def _claims(text: str, *rows: tuple[str, ...]) -> list[Claim]:
    return [Claim(text, *row) for row in rows]


CLAIMS = [
    *_claims(
        SPECTER,
        ("table 1", "specter", START, "80.2 against 59.6 (SciBERT)"),
        ("table 1", "specter", START, "88.4 against 48.3 (SciBERT)", CITE),
        ("table 2", "specter", "specter_title", "80.2 against 68.1 (no abstract)"),
        ("table 2", "specter", "specter_venue", "80.2 against 79.9 (+ venue)"),
        ("table 2", "specter_venue", "specter", "84.5 against 84.4 (+ venue, classes)", CLASSES),
        ("table 2", "specter", "specter_author", "80.2 against 67.3 (+ author)"),
        ("section 6, footnote 12", "specter", "specter_author_field", "authors as a field did not help"),
        ("section 2.2, footnote 4", "specter", "specter_apart", "title and abstract apart were worse"),
        ("section 2.3, footnote 5", "specter", "specter, cosine", "cosine under-performed L2"),
        ("table 2", "specter", "specter_easy", "80.2 against 78.4 (no hard negatives)"),
        ("table 3", "specter", "signal_table_cocite", "80.2 against 76.4 (tuned on co-citations)"),
        ("table 3", "specter", "signal_table_cocite", "91.5 against 85.2 (tuned on co-citations, citations)", CITE),
    ),
    *_claims(
        SCINCL,
        ("table 1", "scincl", "specter", "81.8 against 80.0"),
        ("table 1, section 5", "scincl", "specter", "91.4 against 86.2 (without leakage)", CITE),
        ("table 1, section 5", "scincl", "specter", "90.1 against 87.8 (without leakage)", COCITED),
        ("table 1", "scincl_biggraph", "specter", "81.8 against 80.0, with BigGraph's node vectors"),
        ("table 1", "oracle", "scincl", "83.0 against 81.8"),
        ("table 2", "scincl", "scincl, k- 3000 of all data", "81.8 against 81.7 (k- 3000)"),
        ("table 2, section 6.3", "scincl", "scincl_random", "81.8 against 81.8, less spread"),
        ("table 2", "scincl", "scincl_10percent", "81.8 against 81.1"),
        ("table 2", "scincl", "scincl_1percent", "81.8 against 80.8"),
        ("section 5", "scincl_1percent", "scincl", "82.2 against 81.4 (MAG)", CLASSES),
        ("table 2", "scincl_1percent", "specter", "80.8 against 80.0"),
        ("table 2", "scincl", "scincl_bitfit", "81.8 against 81.2"),
        ("table 2", "scincl_bitfit", "specter", "81.2 against 80.0"),
        ("appendix F.1", "scincl_biggraph", "scincl_undirected", "81.8 against 81.7"),
        ("appendix F.2", "scincl", "scincl_wide", "comparable, more spread"),
        ("appendix F.3", "scincl", "scincl_kmeans", "decreased the performance"),
        ("appendix F.5", "scincl", "scincl_threshold", "81.8 against 81.7"),
        ("section 3.4, F.7", "scincl", "scincl_sorted_random", "does not perform well"),
        ("appendix F.8", "scincl", "scincl_mlm", "decreases the performance"),
        ("appendix F.9", "scincl", "scincl_student_teacher", "81.8 against 64.7"),
        ("appendix F.9", "scincl_student_teacher", START, "64.7 against 59.6 (SciBERT)"),
        ("appendix F.9", "scincl", "scincl_joint", "81.8 against 80.5"),
        ("appendix F.10", "specter_bidirectional", "specter_unidirectional", "79.4 against 79.0 (replicated)"),
        ("appendix F.10", "scincl", "specter_bidirectional", "81.8 against 79.4"),
        ("figure 2", "scincl, k+ 25", "scincl, k+ 1000", "peak at 25, decline beyond 100"),
        ("figure 3", "scincl, k- 4000", "scincl, k- 100", "plateau from 2000 to 4000, low before"),
        ("figure 3", "scincl, k- 4000", "scincl, k- 8000", "declines beyond 4000"),
        ("section 5", "specter", "scincl", "82.0 against 81.4 (MAG)", CLASSES),
    ),
    *_claims(
        ASPIRE,
        ("table 1", "specter_cocite_scibert", "specter", "37.90 against 34.23", "all.map", FACETED),
        ("table 1", "aspire_ts", "specter", "40.26 against 34.23", "all.map", FACETED),
        ("table 1", "aspire_ts", "scincl", "40.26 against 39.37", "all.map", FACETED),
        ("table 1", "aspire_ts_ot", "specter", "40.26 against 34.23", "all.map", FACETED),
        ("table 3", "specter", "specter_cocite", "92.39 against 89.85", CITE),
        ("table 3", "specter", "aspire_ot", "92.39 against 91.13", CITE),
        ("table 3", "aspire_ot", "specter", "90.88 against 88.32", COCITED),
        ("table 3", "specter_cocite", "specter", "90.82 against 88.32", COCITED),
        ("table 6, A3", "aspire_ts_scibert", "aspire_max_scibert", "40.10 against 36.66", "all.map", FACETED),
        ("table 6, A3", "aspire_max", "aspire_max_scibert", "39.42 against 36.66", "all.map", FACETED),
        ("table 1", "aspire_ts", "specter_cocite", "40.26 against 37.39", "all.map", FACETED),
        ("table 1", "aspire_ot", "specter_cocite", "40.79 against 37.39", "all.map", FACETED),
        ("table 1", "aspire_ot", "specter", "40.79 against 34.23", "all.map", FACETED),
        ("table 1", "aspire_ot", "scincl", "40.79 against 39.37", "all.map", FACETED),
        ("section 4.1", "aspire_ot", "aspire_ts", "44.75 against 42.92 (result)", "result.map", FACETED),
        ("section 4.1", "aspire_ts", "aspire_ot", "28.86 against 27.64 (method)", "method.map", FACETED),
        ("table 4, A1", "aspire_ts", "aspire_abs", "40.26 against 37.03", "all.map", FACETED),
        (
            "table 5, A2",
            "aspire_att",
            "aspire_ot",
            "41.85 against 40.79; elsewhere comparable or worse",
            "all.map",
            FACETED,
        ),
        ("table 6, A3", "aspire_ts", "aspire_max", "40.26 against 39.42", "all.map", FACETED),
    ),
    *_claims(
        SCIASPECT,
        ("table 6.2", "specter_undirected", "specter", "80.70 against 79.4"),
        ("table 6.2", "specter_cl", "specter_undirected", "81.14 against 80.70"),
        ("table 6.2", "specter_cl", "specter", "81.14 against 79.4"),
        ("table 6.2", "specter_cl", "scincl", "81.14 against 81.1"),
        ("table 6.2", "scincl", "specter_cl", "91.4 against 89.76", CITE),
        ("table 6.2", "sciaspect", "specter_cl", "82.65 against 81.99 (MAG; MeSH 89.0 against 89.25)", CLASSES),
        ("table 6.2", "specter_cl", "sciaspect", "89.76 against 87.68", CITE),
        ("table 6.2", "sciaspect_hybrid", "sciaspect", "80.27 against 79.94"),
        ("table 6.2", "sciaspect_l2", "sciaspect", "80.07 against 79.94"),
        ("table 6.3", "specter_cl", "specter_cl_1p1n", "81.14 against 80.35"),
        ("table 6.3", "specter_cl", "specter_cl_1p3easy", "81.14 against 80.56"),
        ("table 6.3", "specter_cl_1p3easy", "specter_cl", "82.68 against 81.99 (MAG)", CLASSES),
        ("table 6.3", "specter_cl", "specter_cl_2p", "81.14 against 79.85"),
        ("table 6.3", "specter_cl", "specter_cl_4p", "81.14 against 79.71"),
        ("table 6.3", "specter_cl", "specter_cl_5p", "81.14 against 79.84"),
        ("table 6.3", "specter_cl", "specter_cl, temperature 0.01", "81.14 against 80.31"),
        ("table 6.3", "specter_cl", "specter_cl, temperature 0.1", "81.14 against 80.45"),
        ("table 6.3", "specter_cl", "specter_cl, temperature 0.5", "81.14 against 76.54"),
        ("table 6.4", "sciaspect", "sciaspect_misc", "79.94 against 79.42"),
        ("table 6.4", "sciaspect", "sciaspect_weighted", "79.94 against 78.87"),
        ("table 6.6", "sciaspect_hybrid", "sciaspect_hybrid_05", "80.27 against 80.09"),
        ("table 6.6", "sciaspect_hybrid", "sciaspect_hybrid_06", "80.27 against 80.17"),
        ("table 6.6", "sciaspect_hybrid", "sciaspect_hybrid_08", "80.27 against 80.21"),
        ("table 6.6", "sciaspect_hybrid", "sciaspect_hybrid_09", "80.27 against 80.25"),
        (
            "table 6.6",
            "sciaspect_hybrid_05",
            "sciaspect_hybrid_09",
            "82.91 against 82.43 (MAG; MeSH reversed)",
            CLASSES,
        ),
        ("table 6.7", "sciaspect_l2_easy", "sciaspect_l2", "80.08 against 80.07"),
        ("table 6.7", "sciaspect_l2", "sciaspect_l2_hard", "80.07 against 78.72"),
        ("table 6.10", "specter_cl", "sciaspect", "33.77 against 32.55", MDCR),
        ("table 6.10", "sciaspect", "sciaspect_hybrid", "32.55 against 32.30", MDCR),
        ("table 6.11", "sciaspect_hybrid", "specter_cl", "30.01 against 15.88 (year)", NUMBERS),
        ("table 6.11", "specter_undirected", "specter_cl", "28.40 against 15.88 (year)", NUMBERS),
        ("table 6.11", "sciaspect_hybrid", "specter_undirected", "30.01 against 28.40 (year)", NUMBERS),
        ("tables 6.9, 6.10", "specter_cl", "scincl", "33.77 against 32.57", MDCR),
        ("tables 6.8, 6.10", "sciaspect", "specter", "32.55 against 30.6", MDCR),
        ("table 6.2", "specter_cl", "sciaspect_hybrid", "81.14 against 80.27"),
        ("table 6.2", "sciaspect_hybrid", "sciaspect_l2", "80.27 against 80.07"),
    ),
    *_claims(
        COCITE,
        ("table 6.5", "loss_study_infonce", "loss_study_triplet", "67.4 against 66.0", CLASSES),
        ("table 6.5", "loss_study_triplet", "loss_study_infonce", "26.3 against 13.1", NUMBERS),
        ("table 6.5", "loss_study_cosent", "loss_study_triplet", "87.3 against 86.9", CITE),
        ("table 6.5", "loss_study_triplet", "loss_study_infonce", "68.6 against 66.2"),
        ("table 6.5", "loss_study_cosent", "loss_study_infonce", "68.4 against 66.2"),
        ("table 6.5", "loss_study_infonce", "loss_study_angle", "66.2 against 65.1"),
        ("table 6.5", "loss_study_infonce", "loss_study_angle", "86.9 against 85.0", CITE),
        ("table 6.5", START, "loss_study_infonce", "23.2 against 13.1 (SciBERT)", NUMBERS),
        ("table 6.5", "loss_study_triplet", START, "26.3 against 23.2 (SciBERT)", NUMBERS),
        ("table 6.5", "loss_study_triplet", "loss_study_cosent", "26.3 against 23.8", NUMBERS),
        (
            "table 6.5",
            "loss_study_triplet",
            "loss_study_triplet_mean",
            "68.6 against 68.4 (cls against mean; the text claims no difference)",
        ),
        (
            "table 6.5",
            "loss_study_infonce_mean",
            "loss_study_infonce",
            "66.6 against 66.2 (mean against cls; the text claims no difference)",
        ),
        (
            "table 6.5",
            "loss_study_cosent",
            "loss_study_cosent_mean",
            "68.4 against 68.3 (cls against mean; the text claims no difference)",
        ),
        (
            "table 6.5",
            "loss_study_angle_mean",
            "loss_study_angle",
            "65.2 against 65.1 (mean against cls; the text claims no difference)",
        ),
        ("table 6.7", "cocite, fastrp", "specter", "68.7 against 67.4, with FastRP's node vectors"),
        ("table 6.7", "cocite, fastrp", "scincl", "68.7 against 67.8, with FastRP's node vectors"),
        ("table 6.7", "cocite", "specter", "68.7 against 67.4"),
        ("table 6.7", "cocite", "scincl", "68.7 against 67.8"),
        ("table 6.7", "cocite", "scincl", "69.2 against 67.8", CLASSES),
        ("table 6.7", "cocite", "scincl", "26.8 against 23.9", NUMBERS),
        ("table 6.7", "scincl", "cocite", "87.2 against 85.6", CITE),
        ("table 6.7", "specter", "cocite", "85.8 against 85.6", CITE),
        ("table 6.7", "cocite", START, "68.7 against 57.2 (SciBERT)"),
        ("table 6.7", "cocite", START, "69.2 against 63.7 (SciBERT)", CLASSES),
        ("table 6.7", "cocite", START, "26.8 against 23.2 (SciBERT)", NUMBERS),
        ("table 6.7", "cocite", START, "85.6 against 66.1 (SciBERT)", CITE),
        ("table 6.7", "cocite", "cocite_25_1000", "68.7 against 68.1"),
        ("table 6.7", "cocite", "cocite_25_3000", "68.7 against 67.9"),
        ("table 6.7", "cocite", "cocite_200_3000", "68.7 against 68.3"),
        ("table 6.7", "cocite", "cocite_500_3000", "68.7 against 68.3"),
    ),
]

TESTED, DRAWN = "rows above", "figure below"
LINKS = "link prediction below"
ITEMS: dict[str, dict[str, str]] = {
    SPECTER: {
        "figure 1 (overview)": "no numbers",
        "table 1 (SciDocs)": f"{TESTED}; baselines on the same suite: results.md. Co-view, co-read and recommendation need "
        "user logs, which are not public in this form",
        "table 2 (ablations)": f"{TESTED}; the start from BERT-Large needs its weights, which are not at hand",
        "figure 2 (t-SNE, DBSCAN)": "map below: homogeneity 0.41 and completeness 0.72 against SciBERT's 0.19 and 0.63",
        "table 3 (signals)": f"{TESTED} for co-citations; co-views, co-reads and the multitask mixture need user logs",
    },
    SCINCL: {
        "figure 1 (idea)": "no numbers",
        "table 1 (SciDocs)": TESTED,
        "table 2 (ablations)": f"{TESTED}; other start models: the columns of each start",
        "figure 2 (k+)": DRAWN,
        "figure 3 (k-)": DRAWN,
        "figure 4 (collisions)": "shares of collisions for a corpus: `citeweave audit`, see mining.md",
        "table 3, table 4 (mapping to S2ORC, data)": "facts about S2ORC; this study's data are in the table of data",
        "table 5 (link prediction)": LINKS,
        "figure 5 (similarity threshold)": DRAWN,
        "figures 6 and 7 (k+ and k- by task)": DRAWN,
        "table 6 (examples)": "examples of papers, no claim",
    },
    ASPIRE: {
        "figures 1 and 2 (example, overview)": "no numbers",
        "table 1 (CSFCube)": TESTED,
        "table 2 (TRECCOVID-RF, RELISH)": "not testable here: neither data set is at hand",
        "table 3 (SciDocs)": f"{TESTED}, on the corpus suite's kin of SciDocs, which is not at hand",
        "table 4 (A1)": TESTED,
        "table 5 (A2)": TESTED,
        "table 6 (A3)": TESTED,
        "tables 7 and 8 (more metrics and spread)": "the same runs as tables 1 and 2; all metrics are in the reports",
    },
    SCIASPECT: {
        "figures 2.1 to 5.5, table 2.1, table 3.1, table 5.1": "background and drawings, no measurements",
        "table 6.1 (published values)": "taken from SciNCL",
        "table 6.2 (SciDocs)": TESTED,
        "table 6.3 (positives, negatives, temperatures)": TESTED,
        "table 6.4 (SciAspect variants)": f"{TESTED}; several positives: no recipe of it ships; aspect spaces: CSFCube's "
        "facet view of the reports",
        "table 6.5 (local loss in one space)": "aspect spaces of the hybrid: CSFCube's facet view of the reports",
        "table 6.6 (alpha)": TESTED,
        "table 6.7 (L2 negatives)": TESTED,
        "tables 6.8 and 6.9 (published MDCR)": "values of MDCR's authors",
        "table 6.10 (MDCR)": f"{TESTED}, on the corpus suite's pools of the same construction",
        "table 6.11 (SciRepEval)": f"{TESTED} for regression; the other tasks are not at hand",
        "figures A.1 to A.4 (statistics)": "statistics of its data; this study's data are in the table of data",
    },
    COCITE: {
        "figures 1.1 to 5.1, table 3.1": "background and drawings, no measurements",
        "tables 6.1 to 6.4 (tasks)": "facts about SciRepEval",
        "figure 6.1 (validation losses)": "training logs; not kept by the study",
        "table 6.5 (losses by pooling)": f"{TESTED} and grid below; GTE-base's weights are not at hand",
        "figure 6.2, table 6.6, figure A.1 (graph embeddings)": LINKS,
        "figure 6.3 (validation losses)": "training logs; not kept by the study",
        "table 6.7 (band pairs)": TESTED,
        "table A.1 (by split)": "the same runs by SciRepEval's splits, which are not at hand",
    },
}
"""Text -> its tables and figures -> where they are answered, or why not."""

LINK_ROWS = {
    "SciNCL, table 5": "dot product better than cosine; larger dimension better",
    "Co-citations, table 6.6": "MRR cosine-768 0.41, dot-128 0.57, dot-512 0.64, dot-768 0.65; Hits@10 0.75, 0.89, 0.92, 0.92",
}
CURVES = {
    "k+": ("scincl, k+ {}", POSITIVE_RANKS, "SciNCL, figures 2 and 6: peak at 25, decline beyond 100"),
    "k-": ("scincl, k- {}", NEGATIVE_RANKS, "SciNCL, figures 3 and 7: plateau from 2000 to 4000"),
    "t-": ("scincl, t- {}", THRESHOLDS, "SciNCL, figure 5: the score falls as negatives come nearer"),
}
"""Figure -> names of its systems, its ranks or similarities, what the text says of it."""

GRID = {loss: (f"loss_study_{loss}", f"loss_study_{loss}_mean") for loss in ("triplet", "infonce", "cosent", "angle")}
"""Loss -> its systems with the first token and with mean pooling: table 6.5 of the co-citation thesis."""

REASONS = {
    SPECTER: (
        "Hard negatives hurt (specter_easy): where reference lists are short or mostly outside the pool, what a cited paper "
        "cites is often related to the query in another way: 10 % (peerread_plus) and 12 % (elife) of the hard negatives are "
        "co-cited with it or share a reference, of the easy ones under 1 %.",
        "Venue and authors cannot help: they are trained with and evaluated without, as the suites have neither.",
    ),
    SCINCL: (
        "SciNCL under SPECTER: of its positives, neighbors in the node vectors of a small graph, 19 % are a citation and 45 % "
        "(elife 39 %) are connected, co-cited or coupled at all; SPECTER's all are citations. With BigGraph-style vectors, "
        "26 % are citations, and the difference to SPECTER can no longer be claimed.",
        "1 %, 10 % and BitFit: 1 % of the data are 20 to 26 steps here and about 430 in the text; biases alone move little "
        "in 1,900 steps.",
        "The oracle has 688 steps, SciNCL 1,856. The text's oracle has fewer triplets too (106K against 684K), yet thousands of "
        "steps: here the labels of 2,198 query papers seem too few.",
        "Curves: the pool is a fortieth of the text's, so the same rank is forty times farther away: positives must come from "
        "the first 10 ranks, and negatives at rank 8,000 of 17,297 are nearly random.",
        "`field.f1` is a mean over classes, some of which have a dozen papers: it jumps by several points with the C that "
        "cross-validation picks.",
    ),
    ASPIRE: (
        "Co-citing sentences within the pool are few: 2,826 pairs (90 steps) in peerread_plus and 624 (20 steps) in elife, "
        "1.3 million in the text. From SPECTER's weights so few steps change nothing that can be measured; from the plain "
        "start (specter_cocite_scibert) they are too few to learn from.",
    ),
    SCIASPECT: (
        "Differences of less than a point between variants have one seed and mean little.",
        "Intents come from the shipped classifier, and a citation with one is rarer here: SciAspect has 3,186 (peerread_plus) and "
        "5,235 (elife) queries, SPECTER 5,936 and 7,850.",
        "Regression: contrastive losses keep more of the year here than triplet losses do, on both corpora and from both starts.",
    ),
    COCITE: (
        "Co-citations under SPECTER and SciNCL: 1,975 (peerread_plus) and 3,381 (elife) papers of the pool have a co-citation to "
        "learn from, against 5,936 and 7,850 with a reference; of their positives 9 % and 15 % are citations.",
        "The first token loses to the mean, most of all on elife: one epoch of 228 steps is short for a first token that "
        "masked-language pretraining never used; with the mean, triplet and InfoNCE differ by at most a point.",
        "Regression: as above.",
    ),
}
"""Text -> why verdicts may differ from it; counts are those of the bundles."""
