"""The model card: README.md of a saved encoder, with its use, training, results and limits.

    card_text(ModelCard(name="specter", base="minilm"), Settings("mean", 256), dimension=384)
    card_from_metadata(json.loads(...))                a card from recorded metadata; nothing is typed by hand
    card_metadata(card)                                as a manifest keeps it

Begins with the YAML that the Hugging Face Hub reads: library, task, tags, and, where known, start model, license, languages,
datasets and results (`front_matter`). Contains what was recorded and nothing else: no license and no leakage audit is
claimed that does not exist. Names and titles come from corpora, so whatever could be Markdown, HTML, YAML or a
link is escaped:

    >>> escape("<b>5|*x*")
    '&lt;b&gt;5\\\\|\\\\*x\\\\*'
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.core.columns import is_finite
from citeweave.core.errors import UserError, choose
from citeweave.core.files import read_input
from citeweave.encoders.model_folder import ASPECT_WORDS, TITLE_ABSTRACT, Settings
from citeweave.encoders.model_names import hub_name

if TYPE_CHECKING:
    from jinja2 import Template

NO_AUDIT = "No leakage audit was made: papers of an evaluation may be among the training papers."
_MAX_LENGTH = 300
"""Most characters of a value; longer ones are truncated."""

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", ":": "&#58;"}
_MARKS = re.compile(r"([\\`*_\[\]|#~$!])")

_POOLINGS = {
    "cls": "the state of the first token",
    "mean": "the mean over all tokens",
    "layers": "the mean over all tokens and layers",
    "mix": "a learned mix of all layers, then the mean over all tokens",
    ASPECT_WORDS: "a mean of its sentences' vectors (the states of a first token before each), weighed by the words for "
    "aspects",
    TITLE_ABSTRACT: "the mean of two states of the first token, of the title and of the abstract, each read by itself",
}
_KINDS: dict[str, type] = {
    **dict.fromkeys(("tables", "data", "options", "audit", "results", "versions", "licences"), dict),
    **dict.fromkeys(("seeds", "limits", "languages", "datasets"), list),
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

    languages: Sequence[str] = ()
    """Languages of the training papers as ISO codes, such as en."""

    datasets: Sequence[str] = ()
    """Training datasets that the Hugging Face Hub has, by name."""

    called: str = "path/of/this/folder"
    """How `load_encoder` names the model."""


def card_text(
    card: ModelCard, settings: Settings, *, dimension: int, has_separator: bool = True, is_delta: bool = False
) -> str:
    """Return the model card as Markdown."""
    from markupsafe import Markup

    origin = {"recipe": card.recipe, "seeds": ", ".join(map(str, card.seeds)), "hardware": card.hardware}
    text = _template().render(
        card=card,
        settings=settings,
        dimension=str(dimension),
        max_tokens=str(settings.max_tokens or ""),
        pooling=_POOLINGS.get(settings.pooling, settings.pooling),
        is_delta=is_delta,
        own_code=is_delta or settings.pooling in (ASPECT_WORDS, TITLE_ABSTRACT),
        # code and YAML: JSON, which both read as is
        front={
            Markup(name): Markup(json.dumps(value, ensure_ascii=False)) for name, value in front_matter(card).items()
        },
        called=Markup(json.dumps(_plain(card.called))),
        in_code=Markup(_plain(card.called).replace("`", "'")),  # between backticks, where nothing is to be escaped
        comment=Markup("  # fetches the base by its name" if is_delta else ""),
        separator=Markup("model.tokenizer.sep_token" if has_separator else '" "'),
        origin={name: value for name, value in origin.items() if value},
        tables={**card.tables, "options": card.options, "data": card.data},
        no_audit=Markup(NO_AUDIT),
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


TAGS = ("sentence-transformers", "feature-extraction", "scientific-papers", "citations", "citeweave")


def front_matter(card: ModelCard) -> dict[str, Any]:
    """Return what the Hugging Face Hub reads of a model card, by its own keys; what is not known is left out.

    >>> front_matter(ModelCard("tiny", license="mit", languages=["en"]))["language"]
    ['en']
    """
    known = {
        "base_model": hub_name(card.base),
        "license": _plain(card.license),
        "language": [_plain(language) for language in card.languages],
        "datasets": [_plain(name) for name in card.datasets],
        "model-index": _model_index(card),
    }
    fixed = {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity", "tags": [*TAGS]}
    return {**fixed, **{name: value for name, value in known.items() if value}}


def _model_index(card: ModelCard) -> list[dict[str, Any]]:
    """Return the results after training as the Hub lists them: one dataset each, with its metrics."""
    measured: dict[str, list[dict[str, Any]]] = {}
    for name, (_, after) in card.results.items():
        dataset, metric = _split_measure(_plain(name))
        if after is not None:
            measured.setdefault(dataset, []).append({"type": metric, "name": _plain(name), "value": after})
    results = [
        {
            "task": {"type": "sentence-similarity", "name": "Similarity of papers"},
            "dataset": {"type": re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-") or "other", "name": dataset},
            "metrics": metrics,
        }
        for dataset, metrics in measured.items()
    ]
    return [{"name": _plain(card.name) or "model", "results": results}] if results else []


def _split_measure(name: str) -> tuple[str, str]:
    """Split the name of a measure into that of its dataset and that of the metric.

    >>> _split_measure("elife, cite.map"), _split_measure("ACL titles, ndcg_cut_10"), _split_measure("map")
    (('elife, cite', 'map'), ('ACL titles', 'ndcg_cut_10'), ('validation', 'map'))
    """
    dataset, _, metric = name.replace(", ", ".").rpartition(".")
    return name[: -len(metric)].rstrip(" .,") if dataset else "validation", metric or name


@functools.cache
def _template() -> Template:
    """Return the template of a model card; whatever it prints is escaped, except for code and YAML that are marked up."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def plain_text(value: object) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(value))

    environment = Environment(
        autoescape=True, finalize=plain_text, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(read_input(Path(__file__).parent / "model_card.md.j2").decode())


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


def card_from_metadata(metadata: Mapping[str, Any]) -> ModelCard:
    """Build a model card from recorded metadata, whose keys are the fields of `ModelCard`; others are refused.

    >>> card_from_metadata({"name": "tiny", "results": {"MAP": [38.9, 40.1]}, "seeds": [0]}).results
    {'MAP': (38.9, 40.1)}
    >>> card_from_metadata({"name": "tiny", "licens": "MIT"})
    Traceback (most recent call last):
    citeweave.core.errors.UserError: a field of a model card is 'licens'; it must be one of about, audit, base, base_revision, \
called, data, datasets, hardware, held_out, languages, licences, license, limits, name, options, recipe, results, seeds, \
tables, versions. Did you mean 'license'?
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
    if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(one is None or is_finite(one) for one in pair)):
        raise UserError(f"the result {name!r} is {str(pair)[:60]}; it must be two numbers, before and after training")
    return pair[0], pair[1]
