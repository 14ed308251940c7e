"""What citeweave does, on a synthetic literature, from files to a trained encoder, its report and a search: `make demo`.

Every step is a command that you can type yourself; files go to demo/.
"""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from citeweave import Corpus

FOLDER = Path("demo")
MARK = FOLDER / ".made-by-make-demo"
PAPERS = 1000
HELD_BACK = 50
LIBRARY = 60
BENCHMARK = 40
LITTLE = (
    "--set encoder.max_tokens=48 --set training.frozen_layers=4 --set training.steps=5 "
    "--set training.learning_rate=2e-4 --set training.validation=0.02"
)
"""Training that two cores do in half a minute."""


def main() -> None:
    start = time.monotonic()
    begin_folder()
    say(
        "A synthetic literature is generated: problems, methods and findings in many wordings, citations with their reasons."
    )
    run(f"citeweave synthesize -o {FOLDER}/literature --papers {PAPERS} --seed 0")
    literature = Corpus.open(FOLDER / "literature")
    write_sources(literature, FOLDER / "sources")

    say(
        "It is written as the files that a scholar might have: tables of papers, citations and citing sentences, and a .bib file."
    )
    say(
        "All files are imported. Papers that are in the .bib and in the table are merged; every record is accounted for."
    )
    run(f"citeweave import {FOLDER}/sources -o {FOLDER}/corpus")
    run(f"citeweave info {FOLDER}/corpus --samples 1")

    say(
        "Some papers belong to a benchmark, half of them under another title. They are found (and a few that share most of "
        "their text) and left out of the training corpus."
    )
    write_benchmark(literature, FOLDER / "benchmark")
    run(f"citeweave audit {FOLDER}/corpus --against benchmark={FOLDER}/benchmark -o {FOLDER}/training")

    say("New papers arrive. The update is a new generation that shares the files it did not change.")
    write_update(literature, FOLDER / "update")
    run(f"citeweave import {FOLDER}/update --update {FOLDER}/training -o {FOLDER}/training-2")

    say(
        "The citations become a graph, and its nodes become vectors: papers cited together are close. Held-out citations are predicted from them."
    )
    run(f"citeweave graph {FOLDER}/training -o {FOLDER}/graph --held-out 0.05")

    say(
        "Training needs pairs that belong together and pairs that do not. SciNCL's rules choose them by rank among those "
        "vectors;\nthe ranks are chosen for this small literature. Then the samples are audited."
    )
    run(f"citeweave mine {FOLDER}/training --recipe scincl --bands auto --graph {FOLDER}/graph -o {FOLDER}/samples")
    run(f"citeweave audit {FOLDER}/samples --graph {FOLDER}/graph --against benchmark={FOLDER}/benchmark")

    show_training()
    say(f"Done in {time.monotonic() - start:.0f} s. Look around, or take your own files:")
    print(
        f"  .venv/bin/citeweave explore {FOLDER}/index          the index as a page in the browser: search, reasons, a map\n"
        f"  .venv/bin/citeweave explore YOUR_LIBRARY.bib    the same for your own papers, by their sentences too\n"
        f"  .venv/bin/citeweave search {FOLDER}/index --cite 'We estimate the effect with the instruments of [CIT].' --intent method\n"
        f"  open {FOLDER}/run/report/corpus/report.html in a browser\n"
        f"  less {FOLDER}/run/comparison.md {FOLDER}/run/model/README.md\n  .venv/bin/citeweave recipes\n"
        f"  .venv/bin/citeweave run intent_spaces --corpus {FOLDER}/training -o {FOLDER}/run-spaces --set training.steps=30\n"
        f"  .venv/bin/citeweave info {FOLDER}/corpus --merges --samples 0\n"
        f"  .venv/bin/citeweave evaluate minilm --suite aspects --data {FOLDER}/literature --papers 200 --distance mean_best "
        f"--sentence-metric cosine -o {FOLDER}/report-aspects\n"
        "  .venv/bin/citeweave import YOUR_LIBRARY.bib -o my-corpus"
    )


def begin_folder() -> None:
    """An empty folder; an older demo's is removed, anybody else's is not."""
    if FOLDER.exists() and not MARK.is_file():
        sys.exit(f"{FOLDER}/ was not made by `make demo`; move it elsewhere, then run `make demo` again")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    MARK.touch()


def show_training() -> None:
    """A whole run of a recipe, and what its encoder is good for."""
    say(
        "Now everything with one command: SPECTER's recipe trains MiniLM briefly on this literature. The references of a tenth of "
        "the papers\nare held out; what they cite must be found among random papers (cite), and among papers one step further "
        "(hard_cite),\nbefore and after. Texts are cut at 48 tokens and four of six layers stay as they are: this is two CPU cores."
    )
    tasks = "--task cite --task hard_cite --queries 60"
    run(f"citeweave run specter --corpus {FOLDER}/training --init minilm -o {FOLDER}/run {tasks} {LITTLE} --device cpu")

    say(
        "The accuracy on held-back triplets (above, before and after) shows that it learns; half a minute on two cores does not yet "
        "move rankings.\nIs it better than words alone, or is that chance?"
    )
    judged = f"--suite corpus --data {FOLDER}/training {tasks}"
    run(f"citeweave evaluate bm25 {judged} -o {FOLDER}/report-bm25")
    run(f"citeweave compare {FOLDER}/run/report/corpus {FOLDER}/report-bm25 --metric cite.map --metric hard_cite.map")

    say("The trained encoder embeds all papers.")
    run(f"citeweave embed {FOLDER}/training --model {FOLDER}/run/model -o {FOLDER}/vectors --device cpu")

    say(
        "An index of these vectors answers questions: what is near to a paper and why, and which papers say so in these words?"
    )
    made = f"--model {FOLDER}/run/model --vectors {FOLDER}/vectors"
    run(f"citeweave index {FOLDER}/training {made} -o {FOLDER}/index --device cpu")
    known = Corpus.open(FOLDER / "training").ids[100]
    run(f"citeweave search {FOLDER}/index --paper {known} --count 3 --explain")
    run(f"citeweave search {FOLDER}/index {shlex.quote('causal diagrams')} --by words --year 2010- --count 3")


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


def run(command: str) -> None:
    """Run a command of citeweave and show it."""
    print(f"\n$ {command}", flush=True)
    words = shlex.split(command)
    subprocess.run([sys.executable, "-m", *words], check=True)


def write_sources(literature: Corpus, folder: Path) -> None:
    """All but the last papers as JSON lines and TSV, and some of them once more as a library of BibTeX entries."""
    known = len(literature) - HELD_BACK
    papers = [paper_record(literature, row) for row in range(known)]
    write_lines(folder / "papers.jsonl.gz", [{**paper, "references": []} for paper in papers])
    rows = np.flatnonzero(literature.citing < known)
    pairs = zip(literature.citing[rows], literature.cited[rows], literature.strengths[rows], strict=True)
    ids = literature.ids
    edges = [f"{ids[int(citing)]}\t{ids[int(cited)]}\t{strength:g}\n" for citing, cited, strength in pairs]
    (folder / "citations.tsv").write_text("".join(edges))
    contexts = (literature.context(number) for number in range(len(literature.contexts)))
    sentences = [
        {"citing": c.citing, "text": c.text, "cited": c.cited, "section": c.section, "intents": intent_words(c)}
        for c in contexts
    ]
    write_lines(folder / "contexts.jsonl.gz", sentences)
    library = [literature.paper(row) for row in range(0, known, known // LIBRARY)]
    entries = [
        f"@article{{key{i},\n  title = {{{p.title}}},\n  year = {{{p.year}}}\n}}\n" for i, p in enumerate(library)
    ]
    (folder / "library.bib").write_text("".join(entries))


def intent_words(context: object) -> list[str]:
    names = {"BACKGROUND": "background", "METHOD": "methodology", "RESULT": "result"}
    return [names[intent.name] for intent in context.intents if intent.name in names]  # type: ignore[attr-defined]


def write_benchmark(literature: Corpus, folder: Path) -> None:
    """Papers under ids of its own; half of them with another title, so that only their text gives them away."""
    records = []
    for number, row in enumerate(range(7, len(literature) - HELD_BACK, len(literature) // BENCHMARK)):
        record = paper_record(literature, row)
        record["id"] = f"bench-{number}"
        if number % 2:
            record["title"] = f"Benchmark paper {number}"
        records.append(record)
    write_lines(folder / "papers.jsonl", records)


def write_update(literature: Corpus, folder: Path) -> None:
    """The papers that were held back, and a correction of one that is known."""
    records = [paper_record(literature, row) for row in range(len(literature) - HELD_BACK, len(literature))]
    corrected = paper_record(literature, 0)
    corrected["abstract"] = str(corrected["abstract"]) + " This sentence was added by an erratum."
    write_lines(folder / "papers.jsonl.gz", [*records, corrected])


def paper_record(corpus: Corpus, row: int) -> dict[str, object]:
    paper = corpus.paper(row)
    return {
        "id": paper.id,
        "title": paper.title,
        "abstract": paper.abstract,
        "year": paper.year,
        "venue": paper.venue,
        "authors": paper.authors,
        "fields": paper.fields,
        "references": [corpus.ids[int(cited)] for cited in corpus.cited[corpus.citing == row]],
    }


def write_lines(path: Path, records: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


if __name__ == "__main__":
    main()
