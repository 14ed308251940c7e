"""The trained model as the compact delta inside the package: weights, card, golden vectors and manifest in one go.

    delta.json, delta.safetensors    what loads on top of minilm, or of `base`
    README.md                        the card, made of facts.json and of what was measured here; nothing in it is typed
                                     (with another base `citeweave model NAME --from` writes it, from the manifest)
    golden.json                      vectors of a few texts, which a test compares with; on a base that comes with citeweave
    manifest.json                    hashes of these, provenance, and what became of every matrix

The trained model is a folder of its base's architecture, saved whole, or the stem of differences that `train` wrote, such as
table/shipped-0. Texts of some corpora say which weights count, and how near the small model is to the whole one. facts.json has
the keys of `ModelCard` (encoders/model_card.py), each optional, and `provenance`, a table with at least commit, recipe,
corpora and seed; what the manifest of a trained folder says of these need not be said again. Beside this file are facts.json of
the model that ships, weave_base.json and weave_small.json.
"""

from __future__ import annotations

import json
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shipping.training import add_differences, read_differences
from citeweave.core.artifact import new_artifact, read_manifest
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import write_json
from citeweave.core.progress import Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import paper_text
from citeweave.encoders.compress import CompressedEncoder, compress
from citeweave.encoders.delta import base_revision, open_model
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_card import ModelCard, card_from_metadata, card_metadata, card_text
from citeweave.encoders.model_folder import SETTINGS_FILE
from citeweave.encoders.model_names import MINILM, NAMED, WEAVE, locate
from citeweave.encoders.save import CARD, KIND, VERSION, save_encoder
from citeweave.pipeline.recipe import load_recipe
from citeweave.training.options import encoder_options
from citeweave.training.train import load_start_model
from citeweave.vectors.own_distance import write_reading
from citeweave.version import __version__

LARGEST = 4_000_000
"""Bytes of the whole folder."""

BESIDE = 120_000
"""Bytes that are left for card, manifest and golden vectors."""

PROVENANCE = ("commit", "recipe", "corpora", "seed")

GOLDEN = (
    ("Maps of citations", "We draw maps of who cites whom. Schools of thought become visible."),
    ("Rain measured by telephones", "Signals between masts weaken in rain. We turn that into rainfall."),
    ("A protein that folds slowly", "We follow the folding of a small protein by fluorescence over hours."),
    ("Attention in translation", "A network without recurrence translates better and is trained in less time."),
    ("On the choice of a prior", ""),
)
"""Invented titles and abstracts."""


@dataclass(frozen=True)
class Compressing:
    """What is to be made, and of what."""

    trained: Path
    corpora: Sequence[Path]
    facts: Path
    output: Path
    texts: int = 1000
    """Drawn from all corpora together."""

    most: int = LARGEST
    """Bytes of the whole folder."""

    max_tokens: int | None = None
    """Where texts are cut; None = as it was trained."""

    seed: int = 0
    """Of drawing the texts."""

    base: str = MINILM
    """Start model: minilm, or the folder of another, such as mpnet unzipped."""

    name: str = WEAVE
    """Of the model."""

    layers: tuple[int, ...] = ()
    """Of the base, which the model was trained from; all where none is named."""


def compress_shipped(asked: Compressing) -> str:
    """Make the folder; what it costs and keeps, in words."""
    facts = read_facts(asked.facts)
    provenance = provenance_of(asked.trained, facts.pop("provenance", {}))
    corpora = [Corpus.open(folder) for folder in asked.corpora]
    texts = drawn_texts(corpora, asked.texts, asked.seed)
    with tempfile.TemporaryDirectory(prefix="ship-") as made:
        trained = trained_folder(asked, Path(made) / "trained")
        model = open_model(trained)
        drawn = {"corpora": [corpus.hash for corpus in corpora], "count": len(texts), "seed": asked.seed}
        recipe = {"trained": model.revision(model.settings), "texts": drawn, "bytes": asked.most}
        with new_artifact(asked.output, KIND, VERSION, recipe, overwrite=True) as writer:
            budget = asked.most - BESIDE
            found = compress(
                trained, asked.base, writer.folder, texts, budget=budget, layers=asked.layers, reporter=Reporter()
            )
            card = write_card(asked, writer.folder, facts, provenance, found)
            if asked.base in NAMED:
                write_golden(writer.folder)
            else:
                forget_folders(writer.folder, card)
            writer.facts = {CARD: card_metadata(card), "provenance": provenance, "compression": found.as_json()}
            writer.finish()
    size = sum(path.stat().st_size for path in asked.output.iterdir())
    if size > asked.most:
        raise UserError(f"{asked.output} takes {size:,} bytes, and --bytes is {asked.most:,}; shorten {asked.facts}")
    return summary(asked.output, size, found)


def trained_folder(asked: Compressing, folder: Path) -> Path:
    """The trained model as a whole folder: itself, or made of the start model and the differences from it.

    As those of the start models, its vectors are normalized.
    """
    if asked.trained.is_dir() and asked.max_tokens is None:
        return asked.trained
    folder.mkdir()
    if asked.trained.is_dir():
        own = load_encoder(asked.trained, device="cpu", max_tokens=asked.max_tokens, normalize=True)
    else:
        table = {**load_recipe(WEAVE).table("encoder"), "init": asked.base, "normalize": True}
        table |= {"max_tokens": asked.max_tokens} if asked.max_tokens else {}
        own = load_start_model(encoder_options(table), "cpu")
        add_differences(own, read_differences(asked.trained))
    save_encoder(folder, own.network, own.reader.tokenizer, own.settings, card=ModelCard(asked.name))
    write_reading(folder, encoder_options(load_recipe(WEAVE).table("encoder")).reading)
    return folder


def forget_folders(folder: Path, card: ModelCard) -> None:
    """No path of the base, and no card of the delta alone; `encoders/packaged_models.py` has the base and writes the card."""
    (folder / "README.md").unlink()
    delta = json.loads((folder / SETTINGS_FILE).read_bytes())
    write_json(folder / SETTINGS_FILE, {**delta, "base": card.base})


def read_facts(path: Path) -> dict[str, Any]:
    """The facts of a card, and `provenance`; keys of the card that are made here are refused."""
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"--facts {path} cannot be read as JSON ({error}); see the head of benchmarks/shipping/compressing.py"
        ) from None
    if not isinstance(facts, dict) or not isinstance(facts.get("provenance", {}), dict):
        raise UserError(
            f"--facts {path} is no table of facts, or its provenance is none; see benchmarks/shipping/compressing.py"
        )
    if own := sorted({"name", "base", "base_revision", "called"} & set(facts)):
        raise UserError(f"--facts {path} gives {', '.join(own)}, which is not to be chosen; leave it out")
    card_from_metadata({"name": WEAVE, **{name: value for name, value in facts.items() if name != "provenance"}})
    return facts


def provenance_of(trained: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Where a model comes from: what is given, else what its own manifest says."""
    found: dict[str, Any] = {"built at commit": _commit()}
    try:
        manifest = read_manifest(trained, KIND, VERSION)
        found |= {"recipe": manifest.facts["recipe"], "seed": manifest.facts["seed"], "model": manifest.hash}
        found |= {"corpora": {"training": manifest.recipe["corpus"]}, "training": manifest.recipe}
    except (ArtifactError, KeyError):
        pass  # trained by another program: facts.json says it all
    found |= given
    if lacking := [name for name in PROVENANCE if name not in found]:
        raise UserError(
            f"the provenance of {trained} lacks {', '.join(lacking)}; add them to the facts, see benchmarks/shipping/compressing.py"
        )
    return found


def _commit() -> str:
    """The commit of the working tree, with a + where files differ from it."""
    return _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()


def drawn_texts(corpora: list[Corpus], count: int, seed: int) -> list[str]:
    """Titles with abstracts, the same number of every corpus, in an order that is drawn."""
    random = np.random.default_rng(seed)
    found: list[str] = []
    for corpus in corpora:
        rows = random.permutation(len(corpus))
        texts = (
            paper_text(corpus.titles[row], corpus.abstracts[row]) for row in rows.tolist() if corpus.abstracts[row]
        )
        found += [text for text, _ in zip(texts, range(count // len(corpora)), strict=False)]
    return [found[number] for number in random.permutation(len(found)).tolist()]


def write_card(
    asked: Compressing, folder: Path, facts: dict[str, Any], provenance: dict[str, Any], found: CompressedEncoder
) -> ModelCard:
    """README.md, of the facts and of what was measured here."""
    measured = {
        "bytes of the delta": found.bytes,
        "matrices kept": sum(report.coding is not None for report in found.matrices.values()),
        "texts of the check": found.texts,
        "cosine with the whole trained model, mean": found.cosines.mean,
        "cosine with the whole trained model, least": found.cosines.least,
        "cosine of the start with the whole trained model, mean": found.base_cosines.mean,
    }
    versions = {"citeweave": __version__, "python": platform.python_version(), **facts.get("versions", {})}
    told = {name: value for name, value in provenance.items() if name not in ("training",)}
    tables = {**facts.get("tables", {}), "provenance": told, "compression": measured}
    base = asked.base if asked.base in NAMED else "sentence-transformers/all-mpnet-base-v2"
    own = {"name": asked.name, "base": base, "base_revision": base_revision(open_model(locate(asked.base).folder))}
    called = asked.name if asked.name in NAMED else ModelCard(asked.name).called
    card = card_from_metadata({**facts, **own, "called": called, "tables": tables, "versions": versions})
    encoder = load_encoder(folder, device="cpu")
    text = card_text(card, encoder.settings, dimension=encoder.dimension, is_delta=True)
    (folder / "README.md").write_text(text, encoding="utf-8")
    return card


def write_golden(folder: Path) -> None:
    """golden.json: what the model makes of a few texts, for tests."""
    vectors = load_encoder(folder, device="cpu").encode([paper_text(title, text) for title, text in GOLDEN])
    told = [{"title": title, "abstract": text} for title, text in GOLDEN]
    write_json(
        folder / "golden.json", {"papers": told, "vectors": [[round(float(x), 6) for x in row] for row in vectors]}
    )


def summary(folder: Path, size: int, found: CompressedEncoder) -> str:
    lines = [f"{folder}: {size:,} bytes, the delta {found.bytes:,}"]
    for name, report in found.matrices.items():
        coding = report.coding
        how = "nothing" if coding is None else f"{coding.kind} {coding.count}, {coding.bits} bits"
        lines.append(f"  {name}: {how}, {report.bytes:,} bytes, residual {report.residual}")
    lines.append(
        f"cosine with the whole model: mean {found.cosines.mean}, least {found.cosines.least} ({found.texts} texts)"
    )
    lines.append(f"cosine of the base with it: mean {found.base_cosines.mean}, least {found.base_cosines.least}")
    return "\n".join(lines)
