"""The page's files, without a browser: small, self-contained, readable in both schemes, no way for data to be markup."""

import re

import pytest

from citeweave.serve.app import FOLDER, SHARED

FILES = [*sorted(path for path in FOLDER.iterdir() if path.is_file()), SHARED]
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MOST_BYTES, MOST_LINES = 150_000, 350
FORBIDDEN = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "style=")
TEXTS = ("ink", "muted", "accent", "warn")
GROUNDS = ("ground", "raised", "sunken", "wash")


def test_the_files_are_few_and_small():
    assert sum(path.stat().st_size for path in FILES) < MOST_BYTES
    assert {path.name: lines for path in FILES if (lines := path.read_text("utf-8").count("\n")) > MOST_LINES} == {}


def test_no_script_makes_markup_of_text():
    found = [(path.name, word) for path in SCRIPTS for word in FORBIDDEN if word in path.read_text("utf-8")]
    assert found == [] and SCRIPTS


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_inline():
    start = (FOLDER / "index.html").read_text("utf-8")
    assert not re.search(r"https?://|<style|\son\w+=|\sstyle=", start)
    assert re.findall(r"<script[^>]*>([^<]+)", start) == []
    named = set(re.findall(r'(?:src|href)="page/([^"]+)"', start))
    for path in SCRIPTS:
        named |= set(re.findall(r'"\./([\w.]+)"', path.read_text("utf-8")))
    present = {path.name for path in FILES} - {"index.html", "docs.css"}  # the style of /docs
    assert named == present  # every file is used, and every file that is named is there
    for path in FILES:
        if path.suffix == ".css":
            assert "url(" not in path.read_text("utf-8") and "@import" not in path.read_text("utf-8")


def test_every_name_that_a_script_imports_is_exported():
    exported = {
        path.name: set(
            re.findall(r"^export (?:async )?(?:function|class|const|let) (\w+)", path.read_text("utf-8"), re.M)
        )
        | {
            name
            for more in re.findall(r"^export const ([^;]+);", path.read_text("utf-8"), re.M)
            for name in re.findall(r"(\w+) =", more)
        }
        for path in SCRIPTS
    }
    imports = [
        (path.name, name.split(" as ")[0].strip(), source)
        for path in SCRIPTS
        for names, source in re.findall(r'import \{([^}]+)\} from "\./([\w.]+)"', path.read_text("utf-8"))
        for name in names.split(",")
    ]
    assert [one for one in imports if one[1] not in exported[one[2]]] == [] and len(imports) > 50


def colors(scheme: int) -> dict[str, str]:
    """The colors of a scheme, 0 light and 1 dark, by name."""
    found = re.findall(r"--([\w-]+):light-dark\((#\w+),(#\w+)\)", (FOLDER / "base.css").read_text("utf-8"))
    return {name: (light, dark)[scheme] for name, light, dark in found}


def luminance(color: str) -> float:
    """Relative luminance (WCAG 2.2).

    >>> luminance("#fff"), luminance("#000000")
    (1.0, 0.0)
    """
    digits = color[1:] if len(color) == 7 else "".join(digit * 2 for digit in color[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.2, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_has_the_contrast_of_aa(scheme):
    known = colors(scheme)
    pairs = [(text, ground) for text in TEXTS for ground in GROUNDS] + [("on-accent", "accent"), ("ink", "mark")]
    found = {(text, ground): contrast(known[text], known[ground]) for text, ground in pairs}
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}
    assert contrast(known["edge"], known["ground"]) >= 3  # borders of fields
