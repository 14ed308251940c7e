"""Bundles: a training run as plain files, to train on a machine with torch but without the corpus.

    bundle/
      bundle.json                        the plan: encoder, training, notes for the model's card
      model/                             the start model, weights in float16 (or float32)
      tokens.npz                         tokens of all papers, compressed
      rows.npy  groups/  validation/  names.json  relatives/  sentences/  alignment/  teacher.npy  pools/NAME/  facts.json

    make_bundle(corpus, samples, "bundle/", plan)           on the machine with the corpus
    train_bundle("bundle/", "model/", device="cuda")        on the other, or: python -m citeweave.training.bundle bundle/ model/

The other machine needs numpy, torch, transformers, tokenizers and safetensors. A bundle is untrusted data: nothing in it
is executed, and arrays of objects, archives that would grow out of proportion and inconsistent numbers are refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import artifact_matches, check_files, new_artifact, read_manifest
from citeweave.core.columns import map_array, read_arrays
from citeweave.core.errors import ArtifactError, CiteweaveError
from citeweave.core.files import open_input, read_input, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.aspects import find_heads, save_heads
from citeweave.encoders.encoder import TorchEncoder
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.save import save_encoder
from citeweave.encoders.tokens import TokenStore
from citeweave.training.data import AlignedPairs, AnchorGroups, PaperLists, RankingPools, SentenceSpans, TrainingData
from citeweave.training.options import CardNotes, TrainingPlan, encoder_options, training_options
from citeweave.training.train import EncoderRun, TrainingJob, load_start_model

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import Samples
    from citeweave.training.load_data import DataSources


MAX_COMPRESSION = 50
"""Largest ratio of decompressed to compressed bytes; tokens of texts compress by three to ten."""

SPAN_COLUMNS = {"offsets": "int64", "starts": "int32", "ends": "int32", "numbers": "int32"}


def read_data(folder: Path) -> TrainingData:
    """Read and check the training data of a bundle, memory-mapped."""
    pools = {
        path.name: RankingPools(
            _read_array(path / "queries.npy", "int64"),
            _read_lists(path / "candidates"),
            _read_array(path / "relevant.npy", "bool"),
        )
        for path in sorted((folder / "pools").glob("*"))
    }
    teacher = folder / "teacher.npy"
    data = TrainingData(
        rows=_read_array(folder / "rows.npy", "int64"),
        tokens=_read_tokens(folder / "tokens.npz"),
        groups=_read_groups(folder / "groups"),
        validation=_read_groups(folder / "validation"),
        related=_read_lists(folder / "relatives") if (folder / "relatives").is_dir() else None,
        sentences=_read_spans(folder / "sentences"),
        alignment=_read_alignment(folder / "alignment"),
        teacher=_read_array(teacher, "float32") if teacher.is_file() else None,
        pools=pools,
        metadata=json.loads(read_input(folder / "facts.json")),
        **_read_names(folder / "names.json"),
    )
    _check_data(folder, data)
    return data


def _check_data(folder: Path, data: TrainingData) -> None:
    """Refuse a bundle whose arrays name papers, sentences or aspects that it does not have."""
    lists = [data.groups.positives, data.groups.negatives, data.validation.positives, data.validation.negatives]
    lists += [pool.candidates for pool in data.pools.values()] + ([data.related] if data.related else [])
    named = [data.groups.anchors, data.validation.anchors, *(each.papers for each in lists)]
    named += [pool.queries for pool in data.pools.values()]
    is_valid = len(data.tokens) == len(data.rows) and all(
        not len(papers) or (int(papers.min()) >= 0 and int(papers.max()) < len(data.rows)) for papers in named
    )
    is_valid = is_valid and all(
        each.offsets[0] == 0 and each.offsets[-1] == len(each.papers) and bool((np.diff(each.offsets) >= 0).all())
        for each in lists
    )
    is_valid = is_valid and _spans_fit(data)
    is_valid = is_valid and all(_numbers_fit(groups, data) for groups in (data.groups, data.validation))
    if not is_valid or (data.teacher is not None and len(data.teacher) != len(data.rows)):
        raise ArtifactError(f"{folder} is damaged: its arrays do not fit together; make the bundle again")


def _numbers_fit(groups: AnchorGroups, data: TrainingData) -> bool:
    """Return whether the aspects and rules of a bundle's groups have names."""
    for values, length, names in (
        (groups.aspects, len(groups.anchors), data.aspects),
        (groups.rules, len(groups.negatives.papers), data.rules),
    ):
        if values is not None and (len(values) != length or int(values.max(initial=-1)) >= len(names)):
            return False
    return True


def _read_names(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the names of aspects and rules; older bundles have none."""
    if not path.is_file():
        return {}
    try:
        names = json.loads(read_input(path))
        return {key: tuple(str(name) for name in names[key]) for key in ("aspects", "rules")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArtifactError(f"{path} does not hold names of aspects and rules; make the bundle again") from None


def _spans_fit(data: TrainingData) -> bool:
    """Return whether sentence spans lie within the tokens of their paper, and aligned sentences exist."""
    spans, alignment = data.sentences, data.alignment
    if spans is None:
        return alignment is None
    offsets, papers = spans.offsets, len(data.rows)
    if len(offsets) != papers + 1 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        return False
    if not len(spans.starts) == len(spans.ends) == len(spans.numbers) == int(offsets[-1]):
        return False
    longest = np.repeat(data.tokens.lengths(), spans.lengths())  # (sentences,)
    inside = (spans.starts >= 0) & (spans.starts < spans.ends) & (spans.ends <= longest)
    owner = spans.owners()  # (sentences,)
    apart = (spans.ends[:-1] <= spans.starts[1:]) | (owner[:-1] != owner[1:])  # (sentences - 1,)
    fits = bool(inside.all() and apart.all() and ((spans.lengths() > 0) == (data.tokens.lengths() > 0)).all())
    return fits and (alignment is None or _alignment_fits(alignment, spans))


def _alignment_fits(alignment: AlignedPairs, spans: SentenceSpans) -> bool:
    """Return whether aligned pairs ascend and their sentences exist."""
    pairs = np.stack([alignment.keys >> np.uint64(32), alignment.keys & np.uint64(2**32 - 1)], axis=1).astype(np.int64)
    if alignment.sentences.shape != pairs.shape or (pairs > len(spans.offsets) - 2).any():
        return False
    if (alignment.keys[1:] <= alignment.keys[:-1]).any():
        return False
    return bool((alignment.sentences >= 0).all() and (alignment.sentences < spans.lengths()[pairs]).all())


def _write_data(data: TrainingData, folder: Path) -> None:
    """Write training data as the plain files of a bundle."""
    _write_array(folder / "rows.npy", data.rows)
    np.savez_compressed(folder / "tokens.npz", ids=data.tokens.ids, offsets=data.tokens.offsets)
    for name, groups in (("groups", data.groups), ("validation", data.validation)):
        _write_array(folder / name / "anchors.npy", groups.anchors)
        _write_lists(folder / name / "positives", groups.positives)
        _write_lists(folder / name / "negatives", groups.negatives)
        for column, values in (("aspects", groups.aspects), ("rules", groups.rules)):
            if values is not None:
                _write_array(folder / name / f"{column}.npy", values.astype(np.uint8))
    if data.related is not None:
        _write_lists(folder / "relatives", data.related)
    if data.sentences is not None:
        for name, dtype in SPAN_COLUMNS.items():
            _write_array(folder / "sentences" / f"{name}.npy", getattr(data.sentences, name).astype(dtype))
    if data.alignment is not None:
        _write_array(folder / "alignment" / "keys.npy", data.alignment.keys)
        _write_array(folder / "alignment" / "sentences.npy", data.alignment.sentences)
    if data.teacher is not None:
        _write_array(folder / "teacher.npy", data.teacher)
    for name, pool in data.pools.items():
        _write_array(folder / "pools" / name / "queries.npy", pool.queries)
        _write_lists(folder / "pools" / name / "candidates", pool.candidates)
        _write_array(folder / "pools" / name / "relevant.npy", pool.relevant)
    write_json(folder / "names.json", {"aspects": list(data.aspects), "rules": list(data.rules)})
    write_json(folder / "facts.json", dict(data.metadata))


def _write_array(path: Path, values: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.ascontiguousarray(values), allow_pickle=False)


def _write_lists(folder: Path, lists: PaperLists) -> None:
    _write_array(folder / "offsets.npy", lists.offsets)
    _write_array(folder / "papers.npy", lists.papers.astype(np.int32))


def _read_array(path: Path, *dtypes: str) -> NDArray[Any]:
    try:
        array = map_array(path)
    except (OSError, ValueError):
        raise ArtifactError(f"{path} is missing or not an array of numbers; make the bundle again") from None
    if array.dtype.name not in dtypes:
        raise ArtifactError(f"{path} holds {array.dtype.name}, not {' or '.join(dtypes)}; make the bundle again")
    return array


def _read_lists(folder: Path) -> PaperLists:
    return PaperLists(
        _read_array(folder / "offsets.npy", "int64"), _read_array(folder / "papers.npy", "int32").astype(np.int64)
    )


def _read_spans(folder: Path) -> SentenceSpans | None:
    if not folder.is_dir():
        return None
    return SentenceSpans(
        *(_read_array(folder / f"{name}.npy", dtype).astype(np.int64) for name, dtype in SPAN_COLUMNS.items())
    )


def _read_alignment(folder: Path) -> AlignedPairs | None:
    if not folder.is_dir():
        return None
    return AlignedPairs(_read_array(folder / "keys.npy", "uint64"), _read_array(folder / "sentences.npy", "int64"))


def _read_tokens(path: Path) -> TokenStore:
    """Read the tokens of all papers; a decompression bomb is refused before it is read."""
    try:
        with open_input(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            grows = any(entry.file_size > MAX_COMPRESSION * entry.compress_size + (1 << 20) for entry in members)
        if grows or {entry.filename for entry in members} != {"ids.npy", "offsets.npy"}:
            raise ValueError
        stored = read_arrays(path)
    except (OSError, ValueError, zipfile.BadZipFile):
        raise ArtifactError(f"{path} is missing or not an archive of tokens; make the bundle again") from None
    ids, offsets = stored["ids"], stored["offsets"]
    if ids.dtype.name not in ("uint16", "uint32") or offsets.dtype.name != "int64":
        raise ArtifactError(f"{path} holds {ids.dtype.name} and {offsets.dtype.name}; make the bundle again")
    return TokenStore(ids, offsets, name=str(path))


def _read_groups(folder: Path) -> AnchorGroups:
    aspects, rules = (
        _read_array(path, "uint8").astype(np.int64) if path.is_file() else None
        for path in (folder / "aspects.npy", folder / "rules.npy")
    )
    lists = (_read_lists(folder / "positives"), _read_lists(folder / "negatives"))
    return AnchorGroups(_read_array(folder / "anchors.npy", "int64"), *lists, aspects, rules)


# Making a bundle and training from it

KIND, VERSION = "bundle", 1


def make_bundle(
    corpus: Corpus,
    samples: Samples,
    folder: str | Path,
    plan: TrainingPlan | None = None,
    *,
    sources: DataSources | None = None,
    weights: str = "float16",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Path:
    """Write a bundle: training data and start model in one folder, to train on a machine that has neither corpus nor graph.

    An existing bundle of the same inputs is kept.
    """
    from citeweave.training.load_data import DataSources, load_training_data

    plan, sources, folder = plan or TrainingPlan(), sources or DataSources(), Path(folder)
    start = load_start_model(plan.encoder, "cpu")
    hashes = {"corpus": corpus.hash, "samples": samples.hash, **sources.hashes(), "start": start.revision}
    recipe = {**hashes, "plan": _plan_json(plan), "weights": weights}
    if artifact_matches(folder, KIND, VERSION, recipe):
        reporter.say(f"{folder} already exists: same samples, start model and options")
        return folder
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        tokens = writer.scratch_folder("data") / "tokens"
        data = load_training_data(
            corpus, samples, start.reader, plan.encoder, plan.training, tokens, sources, reporter=reporter
        )
        _write_data(data, writer.folder)
        (writer.folder / "model").mkdir()
        card = ModelCard(name="start model", base=plan.encoder.init, base_revision=start.revision)
        save_encoder(
            writer.folder / "model", start.network, start.reader.tokenizer, start.settings, card=card, dtype=weights
        )
        if (heads := find_heads(plan.encoder.init)) is not None:
            save_heads(writer.folder / "model", heads)
        write_json(writer.folder / "bundle.json", {"plan": _plan_json(plan), "made_of": hashes})
        writer.facts = {"papers": len(data.rows), **data.metadata}
        del data  # unmaps its tokens, since Windows cannot rename a folder in use
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
    """Train an encoder from a bundle; `changes` override the `[training]` table, such as {"seed": 1}."""
    bundle = Path(bundle)
    plan, hashes = read_plan(bundle)
    plan = dataclasses.replace(plan, training=dataclasses.replace(plan.training, **(changes or {})))
    manifest_hash = read_manifest(bundle, KIND, VERSION).hash
    training = TrainingJob(Path(folder), plan, {**hashes, "bundle": manifest_hash}, start=str(bundle / "model"))

    def load(_: TorchEncoder, __: Path) -> TrainingData:
        return read_data(bundle)

    return training.run(load, device=device, overwrite=overwrite, reporter=reporter)


def read_plan(bundle: Path) -> tuple[TrainingPlan, dict[str, Any]]:
    """Read the training plan of a bundle, and the hashes of its inputs."""
    check_files(bundle, read_manifest(bundle, KIND, VERSION))
    try:
        content = json.loads(read_input(bundle / "bundle.json"))
        plan, hashes = content["plan"], content["made_of"]
        about = CardNotes(**plan["about"])
        return TrainingPlan(encoder_options(plan["encoder"]), training_options(plan["training"]), about), hashes
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArtifactError(f"{bundle}/bundle.json does not describe a bundle: it is damaged; make it again") from None


def _plan_json(plan: TrainingPlan) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(plan)))
    return plain


def main() -> None:
    """Train from a bundle where citeweave's command line cannot be installed."""
    parser = argparse.ArgumentParser(prog="python -m citeweave.training.bundle", description=main.__doc__)
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("model", type=Path, help="folder to write")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--seed", type=int, help="another seed than the bundle's")
    args = parser.parse_args()
    changes = {} if args.seed is None else {"seed": args.seed}
    try:
        run = train_bundle(args.bundle, args.model, changes=changes, device=args.device, reporter=Reporter())
    except CiteweaveError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(json.dumps({"before": run.before, "after": run.after, "output": str(run.folder)}) + "\n")


if __name__ == "__main__":
    main()
