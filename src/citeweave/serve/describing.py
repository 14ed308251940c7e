"""GET /docs: the routes of /openapi.json as one plain page, written at the start. No script, nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2rem; font-size: 1.1rem; border-top: 1px solid #8886; padding-top: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
pre { background: #8882; padding: 0.75rem; overflow-x: auto; border-radius: 4px; }
table { border-collapse: collapse; } td { padding: 0.1rem 1rem 0.1rem 0; vertical-align: top; }
"""


def describe_routes(described: Mapping[str, Any]) -> str:
    """The page of a description in the form of OpenAPI."""
    info = described["info"]
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f'<title>{escape(info["title"])}</title><link rel="stylesheet" href="/docs.css"></head><body>',
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}</p>",
        '<p>For programs: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            lines += _route(path, method, route, described)
    return "\n".join([*lines, "</body></html>\n"])


def _route(path: str, method: str, route: Mapping[str, Any], described: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(route.get('description', ''))}</p>"
    if parameters := route.get("parameters"):
        yield "<table>"
        for one in parameters:
            words = one.get("description") or one["schema"].get("description", "")
            need = " (needed)" if one.get("required") else ""
            yield f"<tr><td><code>{escape(one['name'])}</code>{need}</td><td>{escape(words)}</td></tr>"
        yield "</table>"
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    for example in described.get("components", {}).get("schemas", {}).get(name, {}).get("examples", ()):
        yield f"<pre>{escape(json.dumps(example, ensure_ascii=False))}</pre>"
