"""The published ways of averaging SciRepEval, each under its own name. Facts about which task counts where.

    SciRepEval In-Train, Out-of-Train, SciDocs, Average     the table of SciRepEval's BENCHMARKING.md
    SPECTER2 In-Train, Out-of-Train, Avg                    the table of SPECTER2's README: SciDocs is out-of-train
    Formats classification, ..., mean                       one number a task, by format, and the mean of the formats

In the first two every number counts once: a SciDocs ranking has two (map and ndcg), reviewer matching one (the mean
of its four). These weights, 7 numbers in-train, 11 or 10 out-of-train, 10 of SciDocs, give the published columns:

    (7 x 54.7 + 11 x 57.4 + 10 x 89.1) / 28 = 68.0     SPECTER in BENCHMARKING.md
    (7 x 54.7 + 20 x 72.0) / 27 = 67.5                 SPECTER in SPECTER2's README

One of the published numbers is S2AND, which has a program of its own and is never in ours. Of tasks with few-shot
samples the value learned from all papers counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from citeweave.evaluation.tasks import Average

IN_TRAIN = (
    "Fields of study",
    "MeSH",
    "Citation Count",
    "Publication Year",
    "Same Author Detection",
    "Highly Influential Citations",
    "Search",
)
"""Tasks that have training data in SciRepEval; citation prediction has no test."""

OUT_OF_TRAIN = (
    "Biomimicry",
    "DRSM",
    "TREC-CoVID",
    "Paper-Reviewer Matching",
    "Peer Review Score",
    "Max hIndex",
    "Tweet Mentions",
)
FIRST_VERSION = ("Feeds-1", "Feeds-M", "Feeds Title")
"""Out-of-train tasks of the first version of 25 tasks, which BENCHMARKING.md's table is about."""

SECOND_VERSION = ("RELISH", "NFCorpus")
"""Those that took their place in the version of 24 tasks."""

SCIDOCS = ("SciDocs MAG", "SciDocs MeSH", "SciDocs Cite", "SciDocs CoView", "SciDocs CoCite", "SciDocs CoRead")

_NO_S2AND = "without S2AND, which the published value contains"

Parts = tuple[str | tuple[str, ...], ...]
Numbers = Mapping[str, Sequence[str]]
"""Task -> names of its numbers, such as `["SciDocs Cite.map", "SciDocs Cite.ndcg"]`."""


def averages(numbers: Numbers, formats: Mapping[str, str], together: frozenset[str]) -> dict[str, Average]:
    """All of them, for the tasks of a file; `formats` says each task's, `together` which tasks count as one number."""
    return {**_published(numbers, together), **_by_format(numbers, formats, together)}


def _published(numbers: Numbers, together: frozenset[str]) -> dict[str, Average]:
    others = FIRST_VERSION if any(name in numbers for name in FIRST_VERSION) else SECOND_VERSION
    names = {"in": IN_TRAIN, "out": (*OUT_OF_TRAIN, *others), "scidocs": SCIDOCS}
    if not all(name in numbers for part in names.values() for name in part):
        return {}
    parts: dict[str, Parts] = {
        key: tuple(part for name in tasks for part in _parts(numbers, name, together)) for key, tasks in names.items()
    }
    count = {key: len(found) for key, found in parts.items()}
    every = f"each of {sum(count.values())} numbers counts once; {_NO_S2AND}"
    return {
        "SciRepEval In-Train": Average(parts["in"], note=f"mean of {count['in']} numbers"),
        "SciRepEval Out-of-Train": Average(parts["out"], note=f"mean of {count['out']} numbers, {_NO_S2AND}"),
        "SciRepEval SciDocs": Average(parts["scidocs"], note=f"mean of {count['scidocs']} numbers"),
        "SciRepEval Average": Average((*parts["in"], *parts["out"], *parts["scidocs"]), note=every),
        "SPECTER2 In-Train": Average(parts["in"], note=f"mean of {count['in']} numbers"),
        "SPECTER2 Out-of-Train": Average(
            (*parts["out"], *parts["scidocs"]),
            note=f"mean of {count['out'] + count['scidocs']} numbers, SciDocs among them; {_NO_S2AND}",
        ),
        "SPECTER2 Avg": Average((*parts["in"], *parts["out"], *parts["scidocs"]), note=every),
    }


def _parts(numbers: Numbers, name: str, together: frozenset[str]) -> Parts:
    return (tuple(numbers[name]),) if name in together else tuple(numbers[name])


def _by_format(numbers: Numbers, formats: Mapping[str, str], together: frozenset[str]) -> dict[str, Average]:
    """The first number of every task; reviewer matching, which has no first one, is left out."""
    groups: dict[str, list[str]] = {}
    for name, found in numbers.items():
        if name not in together:
            groups.setdefault(formats[name], []).append(found[0])
    means = {f"Formats {name}": Average(tuple(parts)) for name, parts in groups.items()}
    note = "mean of the formats' means; the first metric of each task, without reviewer matching"
    return {**means, "Formats mean": Average(tuple(tuple(parts) for parts in groups.values()), note=note)}
