"""What the texts claim, asked of the table: two systems, a metric, a direction, and a verdict that the test gives.

A claim that its text makes of SciDocs or SciRepEval is asked of the suite's nearest kin: an average becomes the mean of
the nine tasks, field classification `field.f1`, regression `year.kendalltau`, proximity and citations `cite.map`.
Every claim is tested on every corpus by the paired hierarchical bootstrap; all tests are corrected together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.table.judging import CORPUS, CSFCUBE
from benchmarks.table.ranking import Standing
from benchmarks.table.tables import NOTHING, lead_text, markdown
from citeweave.evaluation.compare import OVERALL, Difference, holm

HOLDS, FAILS, UNKNOWN = "holds", "reversed", "inconclusive"
NOT_RUN = "was not run"

SPECTER = "SPECTER"
SCINCL = "SciNCL"
ASPIRE = "ASPIRE"
SCIASPECT = "SciAspect"
COCITE = "Co-citation"
LINKS = "open in SciNCL, section 9; direction of Hits@10 in [graph.md](../graph.md)"


@dataclass(frozen=True)
class Claim:
    """One system is better than another."""

    better: str
    worse: str
    source: str
    metric: str = OVERALL
    view: str = CORPUS


CLAIMS = (
    Claim("specter", "citeomatic", f"{SPECTER}, table 1: 80.2 against 76.0"),
    Claim("specter", "sif", f"{SPECTER}, table 1: 80.2 against 75.9"),
    Claim("sgc", "specter", f"{SPECTER}, table 1: 91.6 against 88.4", "cite.map"),
    Claim("specter", "sgc", f"{SPECTER}, table 1: 87.9 against 84.1", "cocite.map"),
    Claim("scincl", "specter", f"{SCINCL}, section 5, table 1: 81.8 against 80.0"),
    Claim("scincl", "specter", f"{SCINCL}, section 5: higher in all citation tasks", "cite.map"),
    Claim("scincl", "specter", f"{SCINCL}, section 5: higher in all citation tasks", "cocite.map"),
    Claim("specter_undirected", "specter", f"{SCINCL}, appendix F.10: +0.4; {SCIASPECT}, discussion"),
    Claim("specter_cl", "specter_undirected", f"{SCIASPECT}, table 6.2: 81.14 against 80.70"),
    Claim("specter_cl", "scincl", f"{SCIASPECT}, section 6.2.2: better than SciNCL on MDCR", "mdcr.map"),
    Claim("specter_undirected", "specter_cl", f"{SCIASPECT}, section 6.3: regression much worse", "year.kendalltau"),
    Claim("sciaspect", "specter_cl", f"{SCIASPECT}, table 6.2: 82.65 against 81.99", "field.f1"),
    Claim("specter_cl", "sciaspect", f"{SCIASPECT}, discussion: aspects cost in ranking tasks", "cite.map"),
    Claim("specter_cl", "sciaspect_hybrid", f"{SCIASPECT}, table 6.2: 81.14 against 80.27"),
    Claim("sciaspect_hybrid", "sciaspect", f"{SCIASPECT}, table 6.2: 80.27 against 79.94"),
    Claim("sciaspect_hybrid", "sciaspect_l2", f"{SCIASPECT}, table 6.2: 80.27 against 80.07"),
    Claim("sciaspect_l2", "sciaspect", f"{SCIASPECT}, table 6.2: 80.07 against 79.94"),
    Claim("cocite", "scincl", f"{COCITE}, table 6.7: 68.7 against 67.8"),
    Claim("cocite", "specter", f"{COCITE}, table 6.7: 68.7 against 67.4"),
    Claim("cocite", "scincl", f"{COCITE}, table 6.7: 69.2 against 67.8", "field.f1"),
    Claim("cocite", "scincl", f"{COCITE}, table 6.7: 26.8 against 23.9", "year.kendalltau"),
    Claim("scincl", "cocite", f"{COCITE}, section 6.3.2: co-citations are inferior in proximity", "cite.map"),
    Claim("loss_study_infonce", "loss_study_triplet", f"{COCITE}, table 6.5: classification is InfoNCE's", "field.f1"),
    Claim(
        "loss_study_triplet",
        "loss_study_infonce",
        f"{COCITE}, table 6.5: regression is the triplets'",
        "year.kendalltau",
    ),
    Claim("loss_study_cosent", "loss_study_triplet", f"{COCITE}, table 6.5: proximity is CoSENT's", "cite.map"),
    Claim("loss_study_triplet", "loss_study_infonce", f"{COCITE}, table 6.5: 68.4 against 66.8"),
    Claim("loss_study_cosent", "loss_study_infonce", f"{COCITE}, table 6.5: 68.4 against 66.8"),
    Claim("loss_study_infonce", "loss_study_angle", f"{COCITE}, table 6.5: 66.8 against 65.5"),
    Claim("loss_study_triplet", "loss_study_angle", f"{COCITE}, table 6.5: 68.4 against 65.5"),
    Claim("specter_cocite", "specter", f"{ASPIRE}, section 4.1, table 1: 37.90 against 34.23", "all.map", CSFCUBE),
    Claim("aspire_ts", "specter_cocite", f"{ASPIRE}, section 4.1, table 1: 40.26 against 37.39", "all.map", CSFCUBE),
    Claim("aspire_ot", "specter_cocite", f"{ASPIRE}, section 4.1, table 1: 40.79 against 37.39", "all.map", CSFCUBE),
    Claim("aspire_ot", "scincl", f"{ASPIRE}, section 4.1, table 1: 40.79 against 39.37", "all.map", CSFCUBE),
    Claim(
        "aspire_ot",
        "aspire_ts",
        f"{ASPIRE}, section 4.1: 44.75 against 42.92",
        "result.map",
        CSFCUBE,
    ),
    Claim(
        "aspire_ts",
        "aspire_ot",
        f"{ASPIRE}, section 4.1: 28.86 against 27.64",
        "method.map",
        CSFCUBE,
    ),
    Claim("aspire_ts", "aspire_abs", f"{ASPIRE}, appendix H, A1: contexts add to the aligner", "all.map", CSFCUBE),
    Claim("aspire_att", "aspire_ot", f"{ASPIRE}, appendix H, A2, table 5: 41.85 against 40.79", "all.map", CSFCUBE),
    Claim("aspire_ts", "aspire_max", f"{ASPIRE}, appendix H, A3, table 6: 40.26 against 39.42", "all.map", CSFCUBE),
    Claim("scincl, prone", "scincl", LINKS),
    Claim("scincl", "scincl, edges with margin", LINKS),
    Claim(
        "scincl, edges with softmax",
        "scincl, edges with margin",
        LINKS,
    ),
    Claim("scincl", "scincl, 10 % of the graph", f"{SCINCL}, section 9, open"),
    Claim("scincl", "scincl, 1 % of the graph", f"{SCINCL}, section 9, open"),
)

HEAD = """### Published claims

Each row is one published claim "first > second", tested on the systems of the tables above by the closest metric: an average becomes
the mean of the nine tasks, classification `field.f1`, regression `year.kendalltau`, proximity `cite.map`. Cells are the difference with
its 95 % interval and the verdict of the paired hierarchical bootstrap over queries and seeds, corrected by Holm over all {tests} tests:
"{holds}" and "{fails}" (the second is better) at a corrected p under 0.05, otherwise "{unknown}". The authors started from SciBERT or
SPECTER with far more papers and larger graphs, and evaluated on other benchmarks: a claim may hold there and not here. Sources:
SPECTER (ACL 2020), SciNCL (EMNLP 2022), ASPIRE (NAACL 2022), SciAspect (thesis, TUM 2023), Co-citation (thesis, Oldenburg 2024).
"""


@dataclass(frozen=True)
class Asked:
    """A claim on one corpus."""

    claim: Claim
    corpus: str
    lead: Difference | None = None
    """Of the system that is said to be better; None where it could not be tested."""

    values: tuple[float, ...] = ()
    why_not: str = ""

    @property
    def verdict(self) -> str:
        if self.lead is None or not self.lead.is_significant:
            return UNKNOWN
        return HOLDS if self.lead.points > 0 else FAILS


def ask_claims(
    standings: Mapping[str, Mapping[str, Standing]],
    impossible: Mapping[str, Mapping[str, str]],
    claims: Sequence[Claim] = CLAIMS,
) -> list[Asked]:
    """Every claim on every corpus, corrected together."""
    asked = [_ask(claim, corpus, own, impossible[corpus]) for claim in claims for corpus, own in standings.items()]
    tested = [at for at, each in enumerate(asked) if each.lead is not None]
    corrected = holm([lead.p for each in asked if (lead := each.lead) is not None])
    for at, p in zip(tested, corrected, strict=True):
        asked[at] = replace(asked[at], lead=replace(asked[at].lead, corrected=p))  # type: ignore[type-var]
    return asked


def _ask(claim: Claim, corpus: str, standings: Mapping[str, Standing], impossible: Mapping[str, str]) -> Asked:
    standing = standings[claim.view]
    for name in (claim.better, claim.worse):
        if name in standing.refused:
            return Asked(claim, corpus, why_not=f"{name} is not ranked")
        if name not in standing.values:
            why = "is not possible here" if name in impossible else NOT_RUN
            return Asked(claim, corpus, why_not=f"{name} {why}")
    lead = standing.leads.get((claim.better, claim.worse, claim.metric))
    values = tuple(standing.values[name][claim.metric] for name in (claim.better, claim.worse))
    return Asked(claim, corpus, lead, values, "" if lead else "too few queries")


def claims_section(standings: Mapping[str, Mapping[str, Standing]], impossible: Mapping[str, Mapping[str, str]]) -> str:
    """The claims with their verdicts on every corpus, as a part of the page."""
    asked = ask_claims(standings, impossible)
    shown_ones = [each for each in asked if not each.why_not.endswith(NOT_RUN)]
    rows: dict[Claim, dict[str, str]] = {}
    for each in shown_ones:
        rows.setdefault(each.claim, {})[each.corpus] = _cell(each)
    lines = [["claim", "by", *standings, "source"]]
    for claim, cells in rows.items():
        metric = "mean" if claim.metric == OVERALL else claim.metric
        shown = f"CSFCube {metric}" if claim.view == CSFCUBE else metric
        found = [cells.get(corpus, NOTHING) for corpus in standings]
        lines.append([f"{claim.better} > {claim.worse}", shown, *found, claim.source])
    tests = sum(each.lead is not None for each in asked)
    counts = {word: sum(each.verdict == word for each in shown_ones) for word in (HOLDS, FAILS, UNKNOWN)}
    told = ", ".join(f"{word}: {number}" for word, number in counts.items())
    head = HEAD.format(tests=tests, holds=HOLDS, fails=FAILS, unknown=UNKNOWN)
    left = [each.corpus for each in asked if each.why_not.endswith(NOT_RUN)]
    absent = "".join(
        f" Not asked, since a system {NOT_RUN}: {left.count(name)} on {name}." for name in sorted(set(left))
    )
    return f"{head}\n{markdown(lines)}\n\n{len(shown_ones)} tests; {told}.{absent}\n"


def _cell(each: Asked) -> str:
    if each.lead is None:
        return f"{each.verdict}: {each.why_not}"
    return f"{lead_text(each.lead)} {each.verdict}"
