"""What several tests of vectors do: write folders, damage a manifest."""

import json

import numpy as np


def change_facts(folder, changes):
    """Write other facts into a manifest, as damage would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["facts"] |= changes
    del manifest["seal"]
    path.write_text(json.dumps(manifest))


def write_blocks(new, folder, ids, rows, *, block=3, **options):
    """Write vectors or sentence vectors, some papers at a time."""
    with new(folder, **{"model": "m", "dtype": "float32", **options}) as writer:
        for start in range(0, len(ids), block):
            writer.append(ids[start : start + block], rows[start : start + block])
        return writer.finish()


def softmax(values):
    powers = np.exp(values - values.max())
    return powers / powers.sum()
