"""The docs cannot rot: examples run, commands and options exist, links lead somewhere, nothing is left out.

Blocks of a page run in order in one folder: ```text NAME is written to a file, ```console runs each command
behind a dollar sign and compares what it prints, ```python runs as a doctest where it has prompts, else as a script.
"""

import ast
import contextlib
import doctest
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from citeweave.cli import command_names, main
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.readers import FORMATS
from citeweave.corpus.synthetic.synthesize import synthesize
from citeweave.training.options import LOSSES

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "citeweave"
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*.md"))]

_BLOCK = re.compile(r"^```(\w*)[ ]?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"(?:^|\s)citeweave ((?:-{0,2}[a-z]).*)")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#[^)]*)?\)")
_VALIDATION = re.compile(r"^step [\d,]+: .*\n", re.MULTILINE)
"""What a training says on its way: numbers that no two processors round alike."""


class Block(NamedTuple):
    language: str
    argument: str
    body: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text())]


def runnable() -> list[Path]:
    """Pages with examples; those of the README are about files that the reader has."""
    return [p for p in PAGES if p.name != "README.md" and any(b.language in ("python", "console") for b in blocks(p))]


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", runnable(), ids=page_name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))  # vectors of an earlier run would be told of
    run_page(page)


def run_page(page: Path) -> None:
    """Run the blocks of a page in this folder, and fail where one gives something else than it says."""
    names: dict[str, object] = {"__name__": "example"}
    for number, block in enumerate(blocks(page)):
        if block.language == "text" and block.argument:
            Path(block.argument).parent.mkdir(parents=True, exist_ok=True)
            Path(block.argument).write_text(block.body)
        elif block.language == "console":
            run_console(block.body)
        elif block.language == "python" and ">>>" in block.body:
            run_doctest(block.body, names, f"{page.name}, block {number}")
        elif block.language == "python":
            exec(compile(block.body, page.name, "exec"), names)


def run_console(body: str) -> None:
    for example in body.split("$ ")[1:]:
        command, _, wanted = example.partition("\n")
        got = _VALIDATION.sub("", output_of(shlex.split(command)[1:]))
        assert doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS), f"{command}\n{got}"


def output_of(arguments: list[str]) -> str:
    """What a command prints, on both streams as a terminal shows them."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream), contextlib.suppress(SystemExit):
        main(arguments)
    return stream.getvalue()


def run_doctest(body: str, names: dict[str, object], name: str) -> None:
    test = doctest.DocTestParser().get_doctest(body, {}, name, None, 0)
    test.globs = names
    report: list[str] = []
    failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append, clear_globs=False).failed
    assert not failed, "".join(report)


@cache
def options_of(command: str) -> frozenset[str]:
    """Every option that the command's --help names; of the whole program where the command is empty."""
    text = output_of([*command.split(), "--help"])
    return frozenset(re.findall(r"(?<![\w-])-{1,2}[a-z][a-z-]*", text))


def commands_in(page: Path) -> Iterator[str]:
    for block in blocks(page):
        if block.language != "python":
            yield from (found[1] for line in block.body.splitlines() if (found := _COMMAND.search(line)))
    for code in _CODE.findall(_BLOCK.sub("", page.read_text())):
        if found := _COMMAND.match(code):
            yield found[1]


@cache
def commands_by_group() -> dict[str, set[str]]:
    """Commands of the program (group ""), and of its groups, such as train and evaluate of intents."""
    found: dict[str, set[str]] = {"": set()}
    for words in map(str.split, command_names()):
        found.setdefault("" if len(words) == 1 else words[0], set()).add(words[-1])
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_and_options_exist(page: Path) -> None:
    groups = commands_by_group()
    for line in commands_in(page):
        command, *words = line.split("#")[0].split()
        known = groups[""]
        if command in groups and words:
            known = {f"{command} {name}" for name in groups[command]}
            command = f"{command} {words.pop(0)}"
        if page.name == "cli.md" and (command == "[OPTIONS]" or words[:1] == ["[OPTIONS]"]):
            continue
        assert command in known or command in options_of(""), f"{page.name}: no command {command!r} in {line!r}"
        used = {word.partition("=")[0] for word in words if re.fullmatch(r"-{1,2}[a-z].*", word)}
        assert used <= options_of(command), f"{page.name}: no option {sorted(used - options_of(command))} in {line!r}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in _LINK.findall(_BLOCK.sub("", page.read_text())) if target and "://" not in target]
    broken = [target for target in targets if not (page.parent / target).exists()]
    assert not broken, broken


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    missing = [
        page.name for page in PAGES if page.name not in ("index.md", "README.md") and f"[{page.name}]" not in index
    ]
    assert not missing, missing


def test_every_format_is_described() -> None:
    page = (DOCS / "corpus.md").read_text()
    assert [name for name in FORMATS if f"| `{name}` |" not in page] == []


def test_every_loss_is_described() -> None:
    page = (DOCS / "training.md").read_text()
    assert [name for name in LOSSES if f"`{name}`" not in page] == []


def load_generator(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_rooms_and_files_are_up_to_date() -> None:
    assert (DOCS / "design.md").read_text() == load_generator("generate_design").page(), "run `make docs`"


def test_the_reference_is_up_to_date() -> None:
    assert (DOCS / "reference.md").read_text() == load_generator("generate_reference").reference(), "run `make docs`"


def test_types_of_public_names_are_up_to_date() -> None:
    assert (SOURCE / "__init__.pyi").read_text() == load_generator("generate_stub").stub(), "run `make docs`"


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """In strict mode: a link to a page or a heading that does not exist is an error."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}
    assert {"index.html", "reference.html", "examples/explore_a_library.html", "CONTRIBUTING.html"} <= pages.keys()
    loaded = re.compile(r"""<(?:script|img|iframe|link)[^>]*?(?:src|href)=["']?(?:https?:)?//[^"'\s>]+""")
    assert not {name: found for name, page in pages.items() if (found := loaded.findall(page))}
    styles = [style.read_text() for style in site.rglob("*.css")]
    assert styles and not [
        found for style in styles for found in re.findall(r"(?:url\(|@import)\W*(?:https?:)?//\S+", style)
    ]
    assert "citeweave" in (site / "search" / "search_index.json").read_text()


def test_every_column_is_described(tmp_path: Path) -> None:
    rows = re.findall(
        r"^\| (\w+) \| (\w+) \| (text|bool|u?int\d+|float\d+) \|", (DOCS / "formats.md").read_text(), re.MULTILINE
    )
    described = {f"{folder}/{column}": kind for folder, column, kind in rows}
    papers = tmp_path / "papers.jsonl"
    papers.write_text('{"id": "a", "title": "T"}\n')
    import_papers([papers], tmp_path / "plain")
    import_papers([papers], tmp_path / "update", update=tmp_path / "plain")
    synthesize(tmp_path / "made-up", SyntheticOptions(papers=20))
    found: dict[str, str] = {}
    for folder in (tmp_path / "update", tmp_path / "made-up"):
        for path in folder.glob("*/*"):
            name = path.relative_to(folder).as_posix()
            if name.endswith(".utf8"):
                found[name.removesuffix(".utf8")] = "text"
            elif not name.endswith(".offsets.npy"):
                found[name.removesuffix(".npy")] = np.load(path, allow_pickle=False).dtype.name
    assert described == found


def test_the_page_of_trust_tells_its_counts_and_all_held() -> None:
    generate = load_generator("generate_trust")
    assert not doctest.testmod(generate).failed
    counts = json.loads((DOCS / "trust.json").read_bytes())
    assert (DOCS / "trust.md").read_text() == generate.page(counts), "run python docs/generate_trust.py"
    assert all(count["held"] == count["tried"] > 0 for count in counts.values())


REMOVERS = {"unlink", "rmtree", "rmdir", "rename", "renames", "truncate", "removedirs", "delete_file", "delete_dir"}
REMOVERS |= {"delete_dir_contents", "delete_objects", "rm", "rm_file", "move_object", "remove_object"}


def removers(path: Path) -> list[int]:
    """Lines of a module that remove, rename or truncate something; `replace` counts where it has one argument."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            has_one_name = len(node.args) == 1 and isinstance(node.args[0], ast.Name) and not node.keywords
            is_call = isinstance(node.func, ast.Attribute) or name in ("move_object", "remove_object", "rmtree")
            if (name in REMOVERS and is_call) or (name == "replace" and has_one_name):
                found.append(node.lineno)
    return found


def test_every_module_that_removes_something_is_on_the_page_of_trust() -> None:
    listed = {name for _, _, names in load_generator("generate_trust").REMOVALS for name in names.split(", ")}
    found = {path.relative_to(SOURCE).as_posix(): lines for path in SOURCE.rglob("*.py") if (lines := removers(path))}
    assert found.keys() <= listed, {name: found[name] for name in found.keys() - listed}
    assert all((SOURCE / name).is_file() for name in listed)
