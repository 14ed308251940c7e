"""Bundles: all that a training run reads as plain arrays, for a machine that has torch and transformers and no corpus.

    bundle/
      bundle.json                        the plan: encoder, training, what the card says
      model/                             the start model, weights in float16 (or float32)
      tokens.npz                         of every paper, compressed
      rows.npy  groups/  validation/  relatives/  teacher.npy  pools/NAME/  facts.json

    make_bundle(corpus, samples, "bundle/", plan)           here
    train_bundle("bundle/", "model/", device="cuda")        there, or: python -m citeweave.training.bundle bundle/ model/

There it needs numpy, torch, transformers, tokenizers and safetensors. A bundle is data: nothing in it is run, arrays of
objects are refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.saved.model_card import ModelCard
from citeweave.encoders.saving import save_encoder
from citeweave.encoders.token_store import TokenStore
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import ArtefactError, CiteweaveError
from citeweave.files import check_files, matches, new_artefact, read_manifest, write_json
from citeweave.progress import QUIET, Reporter
from citeweave.training.data import Groups, Lists, RankingPools, TrainingData
from citeweave.training.options import encoder_options, training_options
from citeweave.training.plan import About, Plan
from citeweave.training.starting import load_start
from citeweave.training.train import EncoderRun, Training

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import Samples
    from citeweave.training.gathering import Sources

KIND, VERSION = "bundle", 1

MOST_COMPRESSED = 50
"""Tokens of texts become three to ten times smaller; what would grow by more than this is no text."""


def make_bundle(
    corpus: Corpus,
    samples: Samples,
    folder: str | Path,
    plan: Plan | None = None,
    *,
    sources: Sources | None = None,
    weights: str = "float16",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Path:
    """Write a bundle; one that was made of the same is left as it is."""
    from citeweave.training.gathering import Sources, gather

    plan, sources, folder = plan or Plan(), sources or Sources(), Path(folder)
    start = load_start(plan.encoder, "cpu")
    made_of = {"corpus": corpus.hash, "samples": samples.hash, **sources.hashes(), "start": start.revision}
    recipe = {**made_of, "plan": _plan_json(plan), "weights": weights}
    if matches(folder, KIND, VERSION, recipe):
        reporter.say(f"{folder} is there already: same samples, start model and options")
        return folder
    with new_artefact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        tokens = writer.work("data") / "tokens"
        data = gather(corpus, samples, start.reader, plan.encoder, plan.training, tokens, sources, reporter=reporter)
        _write_data(data, writer.folder)
        (writer.folder / "model").mkdir()
        card = ModelCard(name="start model", base=plan.encoder.init, base_revision=start.revision)
        save_encoder(
            writer.folder / "model", start.network, start.reader.tokenizer, start.settings, card=card, dtype=weights
        )
        write_json(writer.folder / "bundle.json", {"plan": _plan_json(plan), "made_of": made_of})
        writer.facts = {"papers": len(data.rows), **data.facts}
        writer.finish()
    return folder


def train_bundle(
    bundle: str | Path,
    folder: str | Path,
    *,
    changes: Mapping[str, Any] | None = None,
    device: str = "auto",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> EncoderRun:
    """Train from a bundle; `changes` are other values of the `[training]` table, such as {"seed": 1}."""
    bundle = Path(bundle)
    plan, made_of = read_plan(bundle)
    plan = dataclasses.replace(plan, training=dataclasses.replace(plan.training, **(changes or {})))
    manifest_hash = read_manifest(bundle, KIND, VERSION).hash
    training = Training(Path(folder), plan, {**made_of, "bundle": manifest_hash}, start=str(bundle / "model"))

    def gathered(_: TorchEncoder, __: Path) -> TrainingData:
        return read_data(bundle)

    return training.run(gathered, device=device, overwrite=overwrite, reporter=reporter)


def read_plan(bundle: Path) -> tuple[Plan, dict[str, Any]]:
    """What a bundle says is to be trained, and the hashes of what it was made of."""
    check_files(bundle, read_manifest(bundle, KIND, VERSION))
    try:
        found = json.loads((bundle / "bundle.json").read_bytes())
        plan, made_of = found["plan"], found["made_of"]
        about = About(**plan["about"])
        return Plan(encoder_options(plan["encoder"]), training_options(plan["training"]), about), made_of
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArtefactError(f"{bundle}/bundle.json does not describe a bundle: it is damaged; make it again") from None


def read_data(folder: Path) -> TrainingData:
    """The data of a bundle, memory-mapped."""
    pools = {
        path.name: RankingPools(
            _read(path / "queries.npy", "int64"), _read_lists(path / "candidates"), _read(path / "relevant.npy", "bool")
        )
        for path in sorted((folder / "pools").glob("*"))
    }
    teacher = folder / "teacher.npy"
    data = TrainingData(
        rows=_read(folder / "rows.npy", "int64"),
        tokens=_read_tokens(folder / "tokens.npz"),
        groups=_read_groups(folder / "groups"),
        validation=_read_groups(folder / "validation"),
        relatives=_read_lists(folder / "relatives") if (folder / "relatives").is_dir() else None,
        teacher=_read(teacher, "float32") if teacher.is_file() else None,
        pools=pools,
        facts=json.loads((folder / "facts.json").read_bytes()),
    )
    _check(folder, data)
    return data


def _check(folder: Path, data: TrainingData) -> None:
    """Every paper that is named must be there."""
    lists = [data.groups.positives, data.groups.negatives, data.validation.positives, data.validation.negatives]
    lists += [pool.candidates for pool in data.pools.values()] + ([data.relatives] if data.relatives else [])
    named = [data.groups.anchors, data.validation.anchors, *(each.papers for each in lists)]
    named += [pool.queries for pool in data.pools.values()]
    right = len(data.tokens) == len(data.rows) and all(
        not len(papers) or (int(papers.min()) >= 0 and int(papers.max()) < len(data.rows)) for papers in named
    )
    right = right and all(
        each.offsets[0] == 0 and each.offsets[-1] == len(each.papers) and bool((np.diff(each.offsets) >= 0).all())
        for each in lists
    )
    if not right or (data.teacher is not None and len(data.teacher) != len(data.rows)):
        raise ArtefactError(f"{folder} is damaged: its arrays do not fit together; make the bundle again")


def _write_data(data: TrainingData, folder: Path) -> None:
    _write(folder / "rows.npy", data.rows)
    np.savez_compressed(folder / "tokens.npz", ids=data.tokens.ids, offsets=data.tokens.offsets)
    for name, groups in (("groups", data.groups), ("validation", data.validation)):
        _write(folder / name / "anchors.npy", groups.anchors)
        _write_lists(folder / name / "positives", groups.positives)
        _write_lists(folder / name / "negatives", groups.negatives)
    if data.relatives is not None:
        _write_lists(folder / "relatives", data.relatives)
    if data.teacher is not None:
        _write(folder / "teacher.npy", data.teacher)
    for name, pool in data.pools.items():
        _write(folder / "pools" / name / "queries.npy", pool.queries)
        _write_lists(folder / "pools" / name / "candidates", pool.candidates)
        _write(folder / "pools" / name / "relevant.npy", pool.relevant)
    write_json(folder / "facts.json", dict(data.facts))


def _write(path: Path, values: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.ascontiguousarray(values), allow_pickle=False)


def _write_lists(folder: Path, lists: Lists) -> None:
    _write(folder / "offsets.npy", lists.offsets)
    _write(folder / "papers.npy", lists.papers.astype(np.int32))


def _read(path: Path, *dtypes: str) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise ArtefactError(f"{path} is missing or no array of numbers; make the bundle again") from None
    if found.dtype.name not in dtypes:
        raise ArtefactError(f"{path} holds {found.dtype.name}, not {' or '.join(dtypes)}; make the bundle again")
    return found


def _read_lists(folder: Path) -> Lists:
    return Lists(_read(folder / "offsets.npy", "int64"), _read(folder / "papers.npy", "int32").astype(np.int64))


def _read_tokens(path: Path) -> TokenStore:
    """Tokens of all papers; an archive that would grow out of proportion is refused before it is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            grows = any(entry.file_size > MOST_COMPRESSED * entry.compress_size + (1 << 20) for entry in members)
        if grows or {entry.filename for entry in members} != {"ids.npy", "offsets.npy"}:
            raise ValueError
        with np.load(path, allow_pickle=False) as stored:
            ids, offsets = stored["ids"], stored["offsets"]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        raise ArtefactError(f"{path} is missing or no archive of tokens; make the bundle again") from None
    if ids.dtype.name not in ("uint16", "uint32") or offsets.dtype.name != "int64":
        raise ArtefactError(f"{path} holds {ids.dtype.name} and {offsets.dtype.name}; make the bundle again")
    return TokenStore(ids, offsets, name=str(path))


def _read_groups(folder: Path) -> Groups:
    return Groups(
        _read(folder / "anchors.npy", "int64"), _read_lists(folder / "positives"), _read_lists(folder / "negatives")
    )


def _plan_json(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(plan)))
    return found


def main() -> None:
    """Train from a bundle where the command line of citeweave cannot be installed."""
    parser = argparse.ArgumentParser(prog="python -m citeweave.training.bundle", description=main.__doc__)
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("model", type=Path, help="folder to make")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--seed", type=int, help="another seed than the bundle's")
    asked = parser.parse_args()
    changes = {} if asked.seed is None else {"seed": asked.seed}
    try:
        run = train_bundle(asked.bundle, asked.model, changes=changes, device=asked.device, reporter=Reporter())
    except CiteweaveError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(json.dumps({"before": run.before, "after": run.after, "output": str(run.folder)}) + "\n")


if __name__ == "__main__":
    main()
