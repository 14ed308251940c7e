"""From the data folder to a study: one bundle per corpus with texts, suites and the samples of every system, and its audit.

    study/elife.bundle          papers of the pool, suites, samples; what was audited, what cannot be mined and why
    study/START.start           a start model
    study/stages/               stages on the way; what is done is not done again

Anchors are SPECTER's query papers for every system: papers of the pool that cite another one (SciNCL, section 4.2: "same
count as SPECTER"; the theses also start from its queries). Systems that draw from citing sentences keep their own.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.costly import costly_facts, graph_of, intents_path, known_nodes, nodes_path
from benchmarks.claims.data import audit_graph, graph_figures, import_study
from benchmarks.claims.systems import COSTLY, System, costs_of, not_trained_here
from benchmarks.table.bundle import (
    Bundle,
    Column,
    DerivedTexts,
    PackedCorpus,
    PackedSamples,
    PackedTeacher,
    packed,
    write_bundle,
)
from benchmarks.table.packing import pack
from benchmarks.table.prepare import SHOWN, Preparation
from benchmarks.table.splitting import record, texts_to_split
from benchmarks.table.systems import START as ALIGNER
from citeweave import Corpus
from citeweave.core.errors import CiteweaveError, UserError
from citeweave.mining.inputs import read_rows
from citeweave.mining.rules import NODES
from citeweave.mining.samples import Picks
from citeweave.pipeline.recipe import load_recipe
from citeweave.pipeline.run_folder import CHAIN
from citeweave.pipeline.stages import TrainingInputs, align_stage
from citeweave.training.options import SENTENCE_LOSSES

TEACHER = "student_teacher"


class StudyPreparation(Preparation):
    """One corpus on its way into a bundle of the study."""

    def __init__(
        self,
        data: Path,
        name: str,
        work: Path,
        *,
        study: Path | None = None,
        papers: int = 0,
        device: str = "cpu",
        aligner: str = ALIGNER,
    ) -> None:
        self.study = study or work
        imported = import_study(data, name, work / name, papers=papers)
        super().__init__(data, name, work, imported.corpus, pool=imported.pool, device=device, start=aligner)
        if (overlay := intents_path(self.study, name)).is_dir():
            self.options = dataclasses.replace(self.options, intents=str(overlay))
        self.pool = read_rows(imported.pool, self.learned, "--pool", self.reporter)  # (pool,)
        is_pool = np.zeros(len(self.learned), bool)
        is_pool[self.pool] = True
        cites = np.zeros(len(self.learned), bool)
        cites[self.learned.citing[is_pool[self.learned.cited]]] = True
        self.queries = is_pool & cites & ~self.held  # (papers,)
        self.suite = self.suites.read("corpus")
        self.audit = audit_graph(self.audited, self.learned, self.held, self.suite)
        self.teacher: PackedTeacher | None = None
        self.derived: dict[str, DerivedTexts] = {}
        self.figures = graph_figures(self.learned, self.pool)

    def samples_of(self, system: System) -> tuple[PackedSamples, dict[str, Any], Corpus]:  # type: ignore[override]
        """Mine what a system trains on, by rows of the pool, with its tables."""
        if reason := not_trained_here(system):
            raise UserError(reason)
        options = dataclasses.replace(self.options, pool=None) if system.texts else self.options
        stages, read, run = self._stages(system, self.imported, options)
        is_derived = bool(system.texts) or stages.is_oracle
        known = nodes_path(self.study, self.name, graph_of(system))
        with known_nodes(known, self.pool) if known.is_file() else nullcontext():
            material = stages.make(stages.audit(self.imported), self.suites)
        if read.alignment is not None:
            material = align_stage(run, material, dataclasses.replace(read.alignment, encoder=self.start))
        if TEACHER in read.training.losses:
            self.teacher = self._node_vectors(material)
        keep = None
        if read.rules.anchors_per == "papers" and not is_derived:
            keep = self.queries[np.asarray(material.samples.anchors)]
        found = packed(material.samples, keep)
        if is_derived:
            self.derived[material.corpus.hash] = derived_texts(material.corpus, found)
        else:
            found = self._by_pool(found)
        if not len(found):
            raise UserError("none of its samples has a query paper of the study")
        written = load_recipe(system.recipe, list(system.overrides)).table("encoder")
        init = str(written.get("init", ""))
        table = {
            "recipe": system.recipe,
            "overrides": list(system.overrides),
            "chain": init.removeprefix(CHAIN) if init.startswith(CHAIN) else "",
            "encoder": {**dataclasses.asdict(read.encoder), "init": "", "pooling": written.get("pooling", "")},
            "training": dataclasses.asdict(read.training),
            "samples": found.hash,
            "derived": material.corpus.hash if is_derived else "",
            "count": len(found),
            "bands": run.stage_metadata("samples").get("bands", {}),
        }
        return found, table, material.corpus

    def made_elsewhere(self, system: System) -> set[str]:
        """Return what is costly about a system and was made by `costly`."""
        has_nodes = nodes_path(self.study, self.name, graph_of(system)).is_file()
        found = {"intents": intents_path(self.study, self.name).is_dir(), "edges": has_nodes}
        return {name for name, is_made in found.items() if is_made}

    def _node_vectors(self, material: TrainingInputs) -> PackedTeacher:
        """Pack the node vectors of the pool, zeros where a paper has none."""
        vectors = material.inputs.vectors[NODES]
        at = vectors.rows(material.corpus.ids.take(self.pool))
        return PackedTeacher.of(np.asarray(vectors.matrix[np.maximum(at, 0)], np.float32) * (at >= 0)[:, None])

    def _by_pool(self, samples: PackedSamples) -> PackedSamples:
        """Number the papers of samples within the pool."""

        def places(rows: NDArray[Any]) -> NDArray[np.int32]:
            at = np.searchsorted(self.pool, rows)
            if len(rows) and (self.pool[np.minimum(at, len(self.pool) - 1)] != rows).any():
                raise CiteweaveError(f"samples of {self.name} name a paper outside the pool; mine them again")
            return at.astype(np.int32)

        def picks(own: Picks) -> Picks:
            return Picks(own.offsets, places(own.rows), own.rules, own.scores)

        return dataclasses.replace(
            samples,
            anchors=places(samples.anchors),
            positives=picks(samples.positives),
            negatives=picks(samples.negatives),
        )

    def pool_papers(self) -> PackedCorpus:
        """Pack the texts of the pool."""
        own = self.learned
        columns = [Column(column.take(self.pool)) for column in (own.titles, own.abstracts, own.venues, own.authors)]
        return PackedCorpus(own.hash, *columns)

    def edges(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the citations within the pool, by its rows."""
        citing, cited = np.asarray(self.learned.citing), np.asarray(self.learned.cited)
        inside = np.isin(citing, self.pool) & np.isin(cited, self.pool)
        return tuple(np.searchsorted(self.pool, rows[inside]).astype(np.int32) for rows in (citing, cited))  # type: ignore[return-value]


def derived_texts(corpus: Corpus, samples: PackedSamples) -> DerivedTexts:
    """Pack the texts of a corpus that samples name, by its own rows."""
    used = np.unique(np.concatenate([samples.anchors, samples.positives.rows, samples.negatives.rows]).astype(np.int64))

    def texts(column: Any) -> Column:
        found = [""] * len(corpus)
        for row, text in zip(used.tolist(), column.take(used), strict=True):
            found[row] = text
        return Column(found)

    papers = PackedCorpus(corpus.hash, texts(corpus.titles), texts(corpus.abstracts))
    return DerivedTexts(papers, (np.asarray(corpus.citing, np.int32), np.asarray(corpus.cited, np.int32)))


def same_run(tables: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Return another system that trains as this one does where all are given the same start model; empty if there is none.

    >>> same_run({"scincl": {"recipe": "scincl", "count": 3}, "scincl_bert": {"recipe": "scincl_bert", "count": 3}}, "scincl_bert")
    'scincl'
    """

    def trained(table: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in table.items() if key not in ("recipe", "overrides")}

    return next((each for each, own in tables.items() if each != name and trained(own) == trained(tables[name])), "")


def prepare_study(
    preparation: StudyPreparation, systems: Sequence[System], path: Path, *, without: Sequence[str] = ()
) -> Bundle:
    """Write a corpus's bundle; systems that cannot be mined, or need what is left out, are listed with the reason."""
    samples: dict[str, PackedSamples] = {}
    tables: dict[str, dict[str, Any]] = {}
    impossible: dict[str, str] = {}
    for system in systems:
        begun = time.monotonic()
        if costly := sorted((costs_of(system) & set(without)) - preparation.made_elsewhere(system)):
            impossible[system.name] = f"left out: {'; '.join(COSTLY[name] for name in costly)}"
            continue
        try:
            found, tables[system.name], _ = preparation.samples_of(system)
        except CiteweaveError as error:
            impossible[system.name] = str(error)
            print(f"{preparation.name}: {system.name}: {error}", flush=True)
            continue
        if other := same_run(tables, system.name):
            impossible[system.name] = f"the run of {other} stands for it: they differ in their start models alone"
            del tables[system.name]
            continue
        samples[found.hash] = found
        print(f"{system.name}: {len(found):,} samples, {time.monotonic() - begun:.0f} s", flush=True)
    papers = preparation.pool_papers()
    names = {name: shown for name, shown in SHOWN.items() if name == "corpus" or name in preparation.options.suites}
    suites = {
        shown: dataclasses.replace(suite.choose(()), data={**suite.data, "folder": ""})
        for name, shown in names.items()
        if name != "beir"
        for suite in [preparation.suites.read(name)]
    }
    reads_sentences = any(set(SENTENCE_LOSSES) & table["training"]["losses"].keys() for table in tables.values())
    titles, abstracts = (papers.titles.texts, papers.abstracts.texts) if reads_sentences else ((), ())
    facts = {
        **preparation.figures,
        "query papers": int(preparation.queries.sum()),
        "held out": preparation.options.held_out,
        "audit": preparation.audit,
        **costly_facts(preparation.study, preparation.name),
        "not possible here": impossible,
    }
    boundaries = record(texts_to_split(titles, abstracts, suites.values()))
    packed_corpus = (preparation.name, papers, preparation.edges(), suites, samples, tables, facts, boundaries)
    bundle = Bundle(*packed_corpus, preparation.teacher, preparation.derived)
    write_bundle(path, bundle)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, data version {bundle.version}", flush=True)
    return bundle


def pack_start_model(folder: str, path: Path) -> None:
    """Write a start model as one file, with weights in float16."""
    import tempfile

    from citeweave.encoders.encoder import load_encoder
    from citeweave.encoders.model_card import ModelCard
    from citeweave.encoders.save import save_encoder

    start = load_encoder(folder, device="cpu")
    with tempfile.TemporaryDirectory() as made:
        card = ModelCard(name=path.stem)
        save_encoder(Path(made), start.network, start.reader.tokenizer, start.settings, card=card, dtype="float16")
        files = sorted(each for each in Path(made).rglob("*") if each.is_file())
        pack(path, {each.relative_to(made).as_posix(): each.read_bytes() for each in files})
