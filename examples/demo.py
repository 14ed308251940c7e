"""From 2,000 real articles to a trained model, an answer and a map: `make demo`.

Prints a short story and writes it to demo/story.md with two pictures; what the commands print goes to demo/log.txt. Run
again, it resumes: what is done stays. The articles are in examples/elife (eLife, CC BY 4.0).
"""

from __future__ import annotations

import html
import io
import json
import os
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import citeweave as cw
import citeweave.cli
from citeweave.search.map import make_map

HERE = Path(__file__).resolve().parent
FOLDER = Path("demo")
MARK = ".made-by-make-demo"
QUESTION = "How old are the fossils of Homo naledi?"
TASKS = {
    "cite": "its references among random articles",
    "hard_cite": "its references among those that they cite",
    "cocite": "articles cited together with it",
}
"""Tasks of the evaluation, and what must be found for an article whose references nobody has seen."""

SPACE = "miscellaneous"
"""The space of examples/one_layer.toml."""

COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7f6d1c", "#8c8c8c")


def main() -> None:
    begin_folder(FOLDER)
    story = Story(FOLDER)
    story.title("From 2,000 eLife articles to a model, an answer and a map")
    tell_import(story)
    tell_training(story)
    tell_index(story)
    tell_question(story)
    tell_map(story)
    story.end()


def begin_folder(folder: Path) -> None:
    """Create the folder, or take that of an earlier demo; never one that was not made by the demo."""
    if folder.exists() and not (folder / MARK).is_file():
        sys.exit(f"{folder}/ was not made by `make demo`; move it elsewhere, then run `make demo` again")
    folder.mkdir(exist_ok=True)
    (folder / MARK).touch()


def example(name: str) -> str:
    """Return the path of an example, from here, as it is typed."""
    return shlex.quote(os.path.relpath(HERE / name))


# --- the story -------------------------------------------------------------------------------------------


@dataclass
class Story:
    """What the demo tells: lines with elapsed time on the terminal, Markdown in story.md, output of commands in log.txt."""

    folder: Path
    start: float = field(default_factory=time.monotonic)
    markdown: list[str] = field(default_factory=list)

    def title(self, text: str) -> None:
        print(f"\n{text}\n", flush=True)
        (self.folder / "log.txt").write_text("")
        self.markdown.append(
            f"# {text}\n\nArticles: eLife, CC BY 4.0; each is at https://doi.org/10.7554/eLife.NUMBER."
        )

    def step(self, text: str) -> None:
        print(f"{time.monotonic() - self.start:4.0f} s  {text}", flush=True)
        self.markdown.append(f"\n## {text}\n")

    def say(self, text: str) -> None:
        for line in text.splitlines():
            print(textwrap.fill(line, 116, initial_indent=" " * 8, subsequent_indent=" " * 10), flush=True)
        self.markdown.append(text.replace("\n", "  \n") + "\n")

    def run(self, command: str) -> Any:
        """Run a command of citeweave and return the JSON that it prints; the log keeps command and output.

        It runs in this process, so that torch is loaded once for all commands.
        """
        self.markdown.append(f"    {command}\n")
        output = io.StringIO()
        with (self.folder / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"\n$ {command}\n")
            try:
                with redirect_stdout(output), redirect_stderr(log):
                    citeweave.cli.main([*shlex.split(command)[1:], "--json"])
            except SystemExit as end:
                if end.code:
                    log.flush()
                    last = (self.folder / "log.txt").read_text(encoding="utf-8").strip().splitlines()[-1]
                    sys.exit(f"{command}\n{last}\nSee {self.folder}/log.txt; `make demo` resumes.")
            finally:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            log.write(output.getvalue())
        return json.loads(output.getvalue())

    def picture(self, name: str, text: str, svg: str) -> None:
        (self.folder / name).write_text(svg, encoding="utf-8")
        self.markdown.append(f"![{text}]({name})\n")

    def end(self) -> None:
        (self.folder / "story.md").write_text("\n".join(self.markdown), encoding="utf-8")
        print(
            f"{time.monotonic() - self.start:4.0f} s  Done. The story with its pictures: {self.folder}/story.md\n\n"
            f"  .venv/bin/citeweave explore {self.folder}/index       these articles in the browser: search, reasons, the map\n"
            f"  .venv/bin/citeweave explore YOUR_LIBRARY.bib  the same for your own\n"
            f"  less {self.folder}/story.md {self.folder}/log.txt\n",
            flush=True,
        )


def tell_import(story: Story) -> None:
    story.step("Import: three files become a corpus; every record is kept, or counted with a reason.")
    report = story.run(f"citeweave import {example('elife')} -o {story.folder}/corpus --overwrite")
    kept = {kind: report["records"][kind]["kept"] for kind in ("papers", "citations", "contexts")}
    story.say(
        f"{kept['papers']:,} articles of seven subjects, {kept['citations']:,} citations among them, "
        f"{kept['contexts']:,} sentences that cite."
    )


def tell_training(story: Story) -> None:
    story.step("Train a little: one linear layer over MiniLM learns from citations which articles belong together.")
    folder, tasks = story.folder, " ".join(f"--task {name}" for name in TASKS)
    made = story.run(
        f"citeweave run {example('one_layer.toml')} --corpus {folder}/corpus --intents corpus {tasks} "
        f"--queries 200 --device cpu -o {folder}/run --overwrite"
    )
    story.say(
        f"{made['samples']:,} training samples were mined. References of a tenth of the articles were held out: they are "
        "asked for now."
    )
    story.step("Did it help? Mean average precision before and after, on references that training has not seen.")
    metrics = " ".join(f"--metric {name}.map" for name in TASKS)
    after = shlex.quote(f"after={folder}/run/report/corpus ({SPACE})")
    found = story.run(f"citeweave compare {after} before={folder}/run/report-start/corpus {metrics}")
    rows = scores(found)
    for row in rows:
        verdict = "" if row.is_significant else "; may be chance"
        story.say(
            f"{row.text:<42} {row.before:5.1f} -> {row.after:5.1f}  "
            f"({row.after - row.before:+.1f}, 95% interval {row.low:+.1f} to {row.high:+.1f}{verdict})"
        )
    story.picture("scores.svg", "Scores before and after training", draw_scores(rows))


class Score(NamedTuple):
    """Mean average precision of a task before and after training, and the interval of the difference."""

    text: str
    before: float
    after: float
    low: float
    high: float
    is_significant: bool


def scores(comparison: Mapping[str, Any]) -> list[Score]:
    """Read what `citeweave compare after=... before=... --json` prints."""
    rows, values = [], comparison["values"]
    for each in comparison["differences"]:
        if each["metric"].partition(".")[0] not in TASKS:
            continue  # the mean of all
        sign = 1 if each["first"] == "after" else -1
        low, high = sorted((sign * each["low"], sign * each["high"]))
        before, after = (values[name][each["metric"]] for name in ("before", "after"))
        text = TASKS[each["metric"].partition(".")[0]]
        rows.append(Score(text, before, after, low, high, each["significant"]))
    return rows


def tell_index(story: Story) -> None:
    story.step("Index: the model that ships with citeweave reads all articles and each of their sentences.")
    story.run(f"citeweave index {story.folder}/corpus --sentences --device cpu -o {story.folder}/index --overwrite")
    story.say(
        "This model, weave, was trained on citations of eLife among others, so these articles are familiar to it."
    )


def tell_question(story: Story) -> None:
    story.step(f"Ask: {QUESTION}")
    story.markdown.append(f"    citeweave search {story.folder}/index {shlex.quote(QUESTION)}\n")
    for year, title, sentence, id in answers(story.folder / "index", QUESTION, 3):
        story.say(f"{year}  {title}\n  {sentence} [{id}]")


def answers(folder: Path, question: str, count: int) -> list[tuple[int, str, str, str]]:
    """Return the first hits of a question: year, title, the sentence nearest to the question, id."""
    index = cw.Index.open(folder)
    return [
        (index.year(hit.row), hit.title, index.sentence_texts(hit.row)[hit.matches[0].sentence], hit.id)
        for hit in cw.answer(index, cw.Query(text=question, count=count)).hits
    ]


def tell_map(story: Story) -> None:
    story.step("Map: similar articles lie close together; names are the words that set a region apart.")
    index, corpus = cw.Index.open(story.folder / "index"), cw.Corpus.open(story.folder / "corpus")
    drawn = make_map(index)
    rows = corpus.rows([index.id(row) for row in drawn.columns["row"].tolist()])
    subjects = [corpus.paper(row).fields[0] for row in rows.tolist()]
    names = [Name(group.name, group.x, group.y) for group in drawn.groups]
    story.say("; ".join(name.text for name in names))
    story.picture("map.svg", "The articles by similarity, colored by subject", draw_map(drawn.xy, subjects, names))


# --- pictures --------------------------------------------------------------------------------------------


class Name(NamedTuple):
    """A name on the map, at the coordinates of its points."""

    text: str
    x: float
    y: float


def draw_map(xy: Any, groups: Sequence[str], names: Sequence[Name]) -> str:
    """Draw points (n, 2) as SVG, colored by group, with names over them and a legend."""
    side, margin, known = 900, 20, sorted(set(groups), key=lambda name: (-groups.count(name), name))
    color = {name: COLORS[min(number, len(COLORS) - 1)] for number, name in enumerate(known)}
    scale = (side - 2 * margin) / max(1, int(xy.max()))
    dots = [
        f'<circle cx="{margin + x * scale:.0f}" cy="{side - margin - y * scale:.0f}" r="3" fill="{color[group]}" opacity=".65"/>'
        for (x, y), group in zip(xy.tolist(), groups, strict=True)
    ]
    style = 'text-anchor="middle" font-weight="600" paint-order="stroke" stroke="#fff" stroke-width="4"'
    written, places = [], list[tuple[float, float, float]]()
    for name in names:
        half = min(5 * len(name.text), side / 2)  # about half its width: no name is cut off
        x, y = min(max(margin + name.x * scale, half), side - half), side - margin - name.y * scale
        if not any(abs(x - x2) < half + half2 and abs(y - y2) < 18 for x2, y2, half2 in places):  # none over another
            places.append((x, y, half))
            written.append(f'<text x="{x:.0f}" y="{y:.0f}" {style}>{html.escape(name.text)}</text>')
    legend = [
        f'<circle cx="{20 + 450 * (number % 2)}" cy="{side + 25 + 24 * (number // 2)}" r="6" fill="{color[name]}"/>'
        f'<text x="{34 + 450 * (number % 2)}" y="{side + 30 + 24 * (number // 2)}">{html.escape(name)}</text>'
        for number, name in enumerate(known[: len(COLORS)])
    ]
    return svg(side, side + 30 + 12 * (len(legend) + 2), [*dots, *written, *legend])


def draw_scores(rows: Sequence[Score]) -> str:
    """Draw the scores before and after training as SVG: two bars each, from the 0 to the 100 of the metric."""
    parts = ['<text x="10" y="24" font-weight="600">Mean average precision, before (gray) and after training</text>']
    for number, row in enumerate(rows):
        top = 50 + 86 * number
        verdict = "" if row.is_significant else ", may be chance"
        change = f"{row.after - row.before:+.1f} [{row.low:+.1f}, {row.high:+.1f}]{verdict}"
        parts.append(f'<text x="10" y="{top + 12}">{html.escape(row.text)}: {change}</text>')
        for place, (value, color) in enumerate(((row.before, "#9a9a9a"), (row.after, COLORS[0]))):
            y = top + 20 + 24 * place
            parts.append(f'<rect x="10" y="{y}" width="{6 * value:.1f}" height="20" fill="{color}"/>')
            parts.append(f'<text x="{16 + 6 * value:.1f}" y="{y + 15}">{value:.1f}</text>')
    return svg(680, 60 + 86 * len(rows), parts)


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = 'font-family="system-ui, sans-serif" font-size="15" fill="#222"'
    return "\n".join([f"{head} {style}>", '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n"])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted; `make demo` resumes")
