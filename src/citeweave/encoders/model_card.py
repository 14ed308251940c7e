"""The model card: README.md of a saved encoder, with its use, training, results and limits.

    card_text(ModelCard(name="specter", base="minilm"), Settings("mean", 256), dimension=384)
    card_from_metadata(json.loads(...))                a card from recorded metadata; nothing is typed by hand
    card_metadata(card)                                as a manifest keeps it

Begins with the YAML that the Hugging Face Hub reads. Contains what was recorded and nothing else: no license and no leakage
audit is claimed that does not exist. Names and titles come from corpora, so whatever could be Markdown, HTML, YAML or a
link is escaped:

    >>> escape("<b>5|*x*")
    '&lt;b&gt;5\\\\|\\\\*x\\\\*'
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from citeweave.core.columns import is_finite
from citeweave.core.errors import UserError, choose
from citeweave.encoders.model_folder import ASPECT_WORDS, Settings
from citeweave.encoders.model_names import hub_name

NO_AUDIT = "No leakage audit was made: papers of an evaluation may be among the training papers."
_MAX_LENGTH = 300
"""Most characters of a value; longer ones are truncated."""

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", ":": "&#58;"}
_MARKS = re.compile(r"([\\`*_\[\]|#~$!])")

_KINDS: dict[str, type] = {
    **dict.fromkeys(("tables", "data", "options", "audit", "results", "versions", "licences"), dict),
    **dict.fromkeys(("seeds", "limits"), list),
}
"""Fields of a card that are not text."""

_NAMES: dict[type, str] = {str: "text", dict: "table", list: "list"}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is recorded about how a model was trained. Everything but the name may be left out."""

    name: str
    base: str = ""
    """The start model, as `load_encoder` takes it."""

    base_revision: str = ""
    recipe: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The tables of the recipe, such as mining and training."""

    data: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the training data: corpus hash, papers, samples, counts."""

    held_out: str = ""
    """What was held out from training, in words."""

    seeds: Sequence[int] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    audit: Mapping[str, Any] | None = None
    """Summary of the leakage audit; None where none was made."""

    results: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Measure -> its value before and after training."""

    hardware: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    license: str = ""
    about: str = ""
    """What the model is, in a sentence or two."""

    licences: Mapping[str, str] = field(default_factory=dict)
    """Licenses of the data and the start model."""

    limits: Sequence[str] = ()
    """Known limits of its use, one sentence each."""

    called: str = "path/of/this/folder"
    """How `load_encoder` names the model."""


def card_text(
    card: ModelCard, settings: Settings, *, dimension: int, has_separator: bool = True, is_delta: bool = False
) -> str:
    """Return the model card as Markdown."""
    parts = [
        _front_matter(card),
        f"# {escape(card.name)}",
        escape(card.about),
        _summary(card, settings, dimension, is_delta=is_delta),
        "## How to use it",
        _code(card, settings.pooling, has_separator=has_separator, is_delta=is_delta),
        _aspect_words_note(settings.pooling, is_delta=is_delta),
        "## How it was trained",
        *_training(card),
        "## What it is worth",
        _results(card),
        "## Limits",
        _limits(settings, is_trained=bool(card.recipe or card.data)),
        "\n".join(f"- {escape(limit)}" for limit in card.limits),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(value: object) -> str:
    """Escape a value as plain text in a line of Markdown: no markup, links, mentions or control characters."""
    text = _MARKS.sub(r"\\\1", _plain(value))
    for character, entity in _ENTITIES.items():
        text = text.replace(character, entity)
    return re.sub(r"www\.", "www&#46;", text, flags=re.IGNORECASE)


def _plain(value: object) -> str:
    """Return a value as one line without control characters, truncated where it is very long."""
    text = value if isinstance(value, str) else _number(value)
    text = "".join(
        " " if each.isspace() else each for each in text if each.isspace() or unicodedata.category(each)[0] != "C"
    )
    text = " ".join(text.split())
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 1] + "…"


def _number(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return str(value)


def _front_matter(card: ModelCard) -> str:
    """Return the YAML front matter of the card; every value is a JSON string, which YAML reads as is."""
    lines = ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
    lines += ["tags:", "- sentence-transformers", "- feature-extraction", "- scientific-papers", "- citeweave"]
    if base := hub_name(card.base):
        lines.append(f"base_model: {json.dumps(base)}")
    if card.license:
        lines.append(f"license: {json.dumps(_plain(card.license), ensure_ascii=False)}")
    return "\n".join(["---", *lines, "---"])


def _summary(card: ModelCard, settings: Settings, dimension: int, *, is_delta: bool) -> str:
    pooling = {
        "cls": "the state of the first token",
        "mean": "the mean over all tokens",
        "layers": "the mean over all tokens and layers",
        "mix": "a learned mix of all layers, then the mean over all tokens",
        ASPECT_WORDS: "a mean of its sentences' vectors (the states of a first token before each), weighed by the words "
        "for aspects",
    }.get(settings.pooling, escape(settings.pooling))
    length = f"at most {settings.max_tokens} tokens" if settings.max_tokens else "as many tokens as the model reads"
    what = (
        "The changes that make an encoder of scientific papers out of its base" if is_delta else "An encoder of papers"
    )
    start = f", trained from {escape(card.base)}" if card.base else ""
    revision = f" (revision {escape(card.base_revision)})" if card.base and card.base_revision else ""
    scale = "of length 1" if settings.normalize else "of any length"
    return (
        f"{what}: title and abstract in, one vector of {dimension} numbers {scale} out{start}{revision}. "
        f"It reads {length}; a vector is {pooling}. Made with citeweave."
    )


def _code(card: ModelCard, pooling: str, *, has_separator: bool, is_delta: bool) -> str:
    if is_delta or pooling == ASPECT_WORDS:
        lines = [
            "import citeweave",
            "",
            f"encoder = citeweave.load_encoder({json.dumps(_plain(card.called))})"
            + ("  # fetches the base by its name" if is_delta else ""),
            'vectors = encoder.encode([citeweave.paper_text("A title", "An abstract.")])',
        ]
    else:
        between = "model.tokenizer.sep_token" if has_separator else '" "'
        lines = [
            "from sentence_transformers import SentenceTransformer",
            "",
            'model = SentenceTransformer("path/of/this/folder")',
            'papers = [("A title", "An abstract.")]',
            f"texts = [title + {between} + abstract for title, abstract in papers]",
            "vectors = model.encode(texts)",
        ]
    code = "\n".join(["```python", *lines, "```"])
    if not is_delta:
        return code
    command = f"citeweave model {escape(card.called)} -o folder/"
    return f'{code}\n\nFor other programs `{command}` writes it whole: `SentenceTransformer("folder/")`.'


def _aspect_words_note(pooling: str, *, is_delta: bool) -> str:
    if pooling != ASPECT_WORDS or is_delta:
        return ""
    return (
        "sentence-transformers loads this folder too, but does not know how its sentences are weighed: it gives the state "
        "of the first token, other vectors than those that were trained."
    )


def _training(card: ModelCard) -> list[str]:
    rows = {"recipe": card.recipe, "seeds": ", ".join(map(str, card.seeds)), "hardware": card.hardware}
    parts = [_table("what", "value", {name: value for name, value in rows.items() if value})]
    for title, table in {**card.tables, "options": card.options}.items():
        parts.append(_section(title, table))
    parts.append(_section("data", card.data))
    parts.append(f"Held out: {escape(card.held_out)}" if card.held_out else "")
    if not any(parts):
        parts.append("Nothing was recorded about its training.")
    parts.append(NO_AUDIT if card.audit is None else _section("leakage audit", card.audit))
    parts.append(_section("licences", card.licences))
    parts.append(_section("versions", card.versions))
    return parts


def _section(title: str, table: Mapping[str, Any]) -> str:
    return f"### {escape(title)}\n\n{_table('what', 'value', table)}" if table else ""


def _table(left: str, right: str, rows: Mapping[str, Any]) -> str:
    if not rows:
        return ""
    lines = [f"| {left} | {right} |", "|---|---|"]
    return "\n".join(lines + [f"| {escape(name)} | {escape(value)} |" for name, value in rows.items()])


def _results(card: ModelCard) -> str:
    if not card.results:
        return "No results were recorded."
    lines = ["| measure | before | after |", "|---|---|---|"]
    for name, (before, after) in card.results.items():
        shown = ["not measured" if value is None else f"{value:.4g}" for value in (before, after)]
        lines.append(f"| {escape(name)} | {shown[0]} | {shown[1]} |")
    return "\n".join(lines)


def _limits(settings: Settings, *, is_trained: bool) -> str:
    cut = f" Text beyond {settings.max_tokens} tokens is not read." if settings.max_tokens else ""
    trained = "papers like those it was trained on" if is_trained else "the texts its base was made for"
    return (
        f"Made for {trained}; other fields, languages and kinds of text were not measured unless the table above says "
        f"so.{cut} Near vectors say that papers are close in what they treat or cite, not that one is right, new or good."
    )


def card_from_metadata(metadata: Mapping[str, Any]) -> ModelCard:
    """Build a model card from recorded metadata, whose keys are the fields of `ModelCard`; others are refused.

    >>> card_from_metadata({"name": "tiny", "results": {"MAP": [38.9, 40.1]}, "seeds": [0]}).results
    {'MAP': (38.9, 40.1)}
    >>> card_from_metadata({"name": "tiny", "licens": "MIT"})
    Traceback (most recent call last):
    citeweave.core.errors.UserError: a field of a model card is 'licens'; it must be one of about, audit, base, base_revision, \
called, data, hardware, held_out, licences, license, limits, name, options, recipe, results, seeds, tables, versions. \
Did you mean 'license'?
    """
    known = [each.name for each in fields(ModelCard)]
    for name, value in metadata.items():
        kind = _KINDS.get(choose(name, known, "a field of a model card"), str)
        if not isinstance(value, kind) and not (name == "audit" and value is None):
            raise UserError(f"the field {name} of a model card is {str(value)[:60]!r}; it must be a {_NAMES[kind]}")
    if "name" not in metadata:
        raise UserError("a model card lacks the name of the model; add it")
    results = {str(name): _read_result(name, pair) for name, pair in metadata.get("results", {}).items()}
    return ModelCard(**{**metadata, "results": results})


def card_metadata(card: ModelCard) -> dict[str, Any]:
    """Return the metadata from which `card_from_metadata` builds the card again, without empty fields."""
    return {name: value for name, value in asdict(card).items() if value}


def _read_result(name: str, pair: object) -> tuple[float | None, float | None]:
    if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_number_or_none, pair))):
        raise UserError(f"the result {name!r} is {str(pair)[:60]}; it must be two numbers, before and after training")
    return pair[0], pair[1]


def _is_number_or_none(value: object) -> bool:
    return value is None or is_finite(value)
