"""A small synthetic literature for all tests of graphs."""

import json

import numpy as np
import pytest

from citeweave import IntentOverlay, synthesize
from citeweave.core.artifact import new_artifact
from citeweave.corpus.options import SyntheticOptions
from citeweave.graph.intent_overlay import KIND, VERSION, OverlayWriter, confidence_from_mask


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("graph") / "corpus", SyntheticOptions(papers=300))


def hash_of(folder):
    return json.loads((folder / "manifest.json").read_text())["hash"]


def write_overlay(corpus, folder, mask, confidence=None, *, given=None, mentions=1, contexts=()):
    """An overlay with these intents of the citations, and of the citing sentences."""
    sentences = np.array(contexts, np.uint8)
    with new_artifact(folder, KIND, VERSION, {"corpus": corpus.hash}) as artifact:
        writer = OverlayWriter(artifact)
        writer.append_contexts(sentences, confidence_from_mask(sentences))
        writer.close()
        confidence = confidence_from_mask(mask) if confidence is None else confidence
        given = np.zeros(len(mask), bool) if given is None else given
        writer.write_citations(mask, confidence, np.full(len(mask), mentions), given)
        artifact.facts |= {"citations": {"all": len(mask)}, "contexts": {"all": len(sentences)}}
        artifact.facts |= {"corpus": corpus.hash, "least": 0.5}
        artifact.finish()
    return IntentOverlay.open(folder)


def stop_after(monkeypatch, owner, name, calls, error=KeyboardInterrupt):
    """The call after so many of a function raises instead; returns the arguments of the calls."""
    whole, made = getattr(owner, name), []

    def counted(*arguments, **more):
        if len(made) == calls:
            raise error
        made.append(arguments)
        return whole(*arguments, **more)

    monkeypatch.setattr(owner, name, counted)
    return made
