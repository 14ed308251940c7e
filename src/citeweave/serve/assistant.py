"""An assistant's door: a server of the Model Context Protocol over standard input and output, with tools of one index.

    serve_assistant(AssistantLibrary(Index.open("index")))         until the client closes the connection

    >>> from typing import Annotated
    >>> schema_of(Annotated[int, Range(1, 50)])
    {'type': 'integer', 'minimum': 1, 'maximum': 50}
    >>> schema_of(Annotated[tuple[str, ...], MaxLength(3)])
    {'type': 'array', 'items': {'type': 'string'}, 'maxItems': 3}

The client starts the process, so that nothing listens on a network. The protocol is the Python SDK's (`mcp`), over the
low-level server: arguments are checked by the library's own rules, whose messages are one sentence, and standard output
carries messages of the protocol only. Calls are answered one after the other, in a thread; the tools are in
`assistant_tools.py`.
"""

from __future__ import annotations

import os
import signal
import types
import typing
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from citeweave.core.errors import require
from citeweave.core.options import MaxLength, NotBlank, OneOf, Option, Range, inner_class, options_of, unpack
from citeweave.serve.assistant_tools import AssistantLibrary, AssistantTool
from citeweave.version import __version__

_NOT_SHOWN = ("ids", "not_ids", "local")
"""Conditions of a filter that assistants have no use for; they work, but every description costs them tokens."""

_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def serve_assistant(library: AssistantLibrary) -> None:
    """Serve a library to an assistant until its client closes standard input; Ctrl-C ends the process at once."""
    anyio = require("anyio", extra="assistant")
    # a thread waits for standard input and cannot be stopped; nothing is being written
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    anyio.run(_serve, library)


async def _serve(library: AssistantLibrary) -> None:
    """Run the protocol over standard input and output."""
    streams = require("mcp.server.stdio", extra="assistant")
    server = create_assistant_server(library)
    async with streams.stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def create_assistant_server(library: AssistantLibrary) -> Any:
    """Return the server of the protocol whose tools are those of a library."""
    require("mcp", extra="assistant")
    import mcp.types as protocol
    from anyio import CapacityLimiter, to_thread
    from mcp.server import Server

    one_at_a_time = CapacityLimiter(1)

    async def list_tools(context: Any, parameters: Any) -> protocol.ListToolsResult:
        return protocol.ListToolsResult(tools=[protocol.Tool(**describe_tool(tool)) for tool in library.tools()])

    async def call_tool(context: Any, parameters: protocol.CallToolRequestParams) -> protocol.CallToolResult:
        name, arguments = parameters.name, parameters.arguments or {}
        response = await to_thread.run_sync(library.respond, name, arguments, limiter=one_at_a_time)
        content = protocol.TextContent(type="text", text=response.text)
        return protocol.CallToolResult(content=[content], is_error=response.failed)

    return Server(
        "citeweave",
        version=__version__,
        title="citeweave: a library of papers",
        instructions=library.introduce(),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def describe_tool(tool: AssistantTool) -> dict[str, Any]:
    """Describe a tool as the protocol does: name, title, description, JSON schema of the arguments; it only reads."""
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "input_schema": _object_schema(tool.options, tool.required),
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }


# --- JSON schemas of options -------------------------------------------------------------------------------


def _object_schema(options: Mapping[str, Option], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the JSON schema of an object whose keys are options, each with its help as description."""
    shown = {name: option for name, option in options.items() if name not in _NOT_SHOWN}
    properties = {name: {**schema_of(option.type), "description": option.help} for name, option in shown.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, **({"required": [*required]} if required else {}), "additionalProperties": False}


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of the type of an option, with the bounds that its rules set."""
    kind, rules = unpack(hint)
    schema = _plain_schema(kind)
    is_list = schema.get("type") == "array"
    for rule in rules:
        if isinstance(rule, Range):
            names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
            bounds = zip(names, (rule.min, rule.max, rule.above, rule.below), strict=True)
            schema |= {name: bound for name, bound in bounds if bound is not None}
        elif isinstance(rule, MaxLength):
            schema["maxItems" if is_list else "maxLength"] = rule.length
        elif isinstance(rule, NotBlank):
            schema["minLength"] = 1
        elif isinstance(rule, OneOf):
            schema["enum"] = [choice for choice in rule.choices if choice]
    return schema


def _plain_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type without rules."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if each is types.NoneType else schema_of(each) for each in arguments]}
    if origin is tuple:
        several = arguments[-1] is ...
        size = {} if several else {"minItems": len(arguments), "maxItems": len(arguments)}
        return {"type": "array", "items": schema_of(arguments[0]), **size}
    if (inner := inner_class(kind)) is not None:
        return _object_schema(options_of(inner))
    return {"type": _NAMES[kind]}
