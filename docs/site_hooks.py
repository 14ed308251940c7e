"""Hooks of the site: pages from the folder above, notebooks as pages, links between them; see mkdocs.yml.

What the repository has beside docs/ becomes part of the site: CONTRIBUTING.md, SECURITY.md, CHANGELOG.md and the notebooks of
examples/. Links to other files, such as benchmarks, become plain text, as the site has no place for them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
ABOVE = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
NOTEBOOKS = tuple(sorted(path.name for path in (ROOT / "examples").glob("*.ipynb")))

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_NAMED_BLOCK = re.compile(r"^```(\w+) ([^\n`]+)$", re.MULTILINE)
"""A file of an example, such as ```text papers.jsonl."""

_ELSEWHERE = re.compile(r"^[a-z]+:|^#")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for name in ABOVE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for name in NOTEBOOKS:
        notebook = json.loads((ROOT / "examples" / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, f"examples/{Path(name).stem}.md", content=notebook_as_markdown(notebook)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the pages of the site."""
    here = ROOT / (
        "examples" if page.file.src_uri.startswith("examples/") else "" if page.file.src_uri in ABOVE else "docs"
    )

    def moved(found: re.Match[str]) -> str:
        text, target = found.groups()
        if _ELSEWHERE.match(target):
            return found[0]
        path, _, anchor = target.partition("#")
        uri = place_of((here / path).resolve())
        if uri is None or files.get_file_from_path(uri) is None:
            return text
        back = "../" * page.file.src_uri.count("/")
        return f"[{text}]({back}{uri}{'#' + anchor if anchor else ''})"

    parts = _FENCED.split(markdown)  # text, block of code, text, ...
    texts = [
        _NAMED_BLOCK.sub(r'```\1 title="\2"', part) if at % 2 else _LINK.sub(moved, part)
        for at, part in enumerate(parts)
    ]
    return "".join(texts)


def place_of(path: Path) -> str | None:
    """Where a file of the repository is on the site; None where it has no place there."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return name.replace(".ipynb", ".md") if name in ABOVE or path.name in NOTEBOOKS else None


def notebook_as_markdown(notebook: dict[str, Any]) -> str:
    """A notebook as a page: its cells with their outputs, tables and pictures as they are in the notebook."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [shown for output in cell.get("outputs", []) if (shown := output_as_markdown(output))]
    return "\n\n".join(parts) + "\n"


def output_as_markdown(output: dict[str, Any]) -> str:
    data = {kind: "".join(lines) for kind, lines in output.get("data", {}).items() if kind != "application/json"}
    if "image/png" in data:
        return f'<img alt="Picture drawn by the code above" src="data:image/png;base64,{data["image/png"].strip()}">'
    if "text/html" in data:
        # one line without blank ones: Markdown leaves it alone
        return f'<div class="output">{" ".join(data["text/html"].split())}</div>'
    text = data.get("text/plain") or "".join(output.get("text", []))
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""
