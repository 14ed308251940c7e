"""What several tests of vectors do: damage a manifest, draw papers of sentences."""

import json

import numpy as np


def change_facts(folder, changes):
    """Write other facts into a manifest, as damage would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["facts"] |= changes
    del manifest["seal"]
    path.write_text(json.dumps(manifest))


def softmax(values):
    powers = np.exp(values - values.max())
    return powers / powers.sum()
