"""Whatever could run code that is not ours, found in the source by its syntax tree.

    uses("import pickle", "x.py")  ->  [Use("x.py", 1, "pickle", "import pickle")]

Names are followed through `import ... as`, `from ... import` and `require("torch", ...)`; a name counts wherever it
stands, called or handed on. Does not follow values: `getattr(torch, name)` is a use, whatever `name` may be.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

MODULES = {
    "pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml", "ruamel", "runpy",
    "code", "codeop", "imp", "ctypes", "cffi", "pty", "pandas", "jsonpickle", "hickle", "klepto",
}  # fmt: skip
"""Not to be imported at all."""

NAMES = {
    "eval", "exec", "compile", "__import__", "execfile", "breakpoint", "builtins.eval", "builtins.exec", "os.system",
    "os.popen", "os.posix_spawn", "os.posix_spawnp", "torch.load", "torch.jit.load", "torch.hub.load", "torch.package",
    "numpy.load", "numpy.lib.format.read_array", "numpy.fromregex", "transformers.pipeline", "importlib.reload",
    "importlib.util.spec_from_file_location", "importlib.machinery.SourceFileLoader",
    "sentence_transformers.SentenceTransformer", "sentence_transformers.CrossEncoder", "types.FunctionType",
    "tarfile.open", "shutil.unpack_archive", "zipfile.ZipFile.extractall",
}  # fmt: skip
OWN_PIPES = ("multiprocessing", "concurrent.futures.ProcessPoolExecutor", "ray")
_PARTS_OF_PACKAGES = {"torch", "transformers", "numpy", "importlib", "os", "sys", "builtins"}


@dataclass(frozen=True, order=True)
class Use:
    path: str
    line: int
    kind: str
    text: str


def uses(source: str, path: str) -> list[Use]:
    """Every use in a file, in order."""
    tree = ast.parse(source)
    known = _meanings(tree)
    found = {
        Use(path, node.lineno, kind, ast.unparse(node)[:100])
        for node in ast.walk(tree)
        for kind in _kinds(node, known)
        if hasattr(node, "lineno")
    }
    return sorted(found)


def _meanings(tree: ast.AST) -> dict[str, str]:
    """What a name of this file stands for: `np` for numpy, `load` for torch.load."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            firsts = {alias: alias.name.split(".")[0] for alias in node.names}
            known |= {alias.asname or first: alias.name if alias.asname else first for alias, first in firsts.items()}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs = zip(target.elts, node.value.elts, strict=False) if both else [(target, node.value)]
                known |= {ast.unparse(name): package for name, value in pairs if (package := _required(value))}
    return known


def _required(value: ast.expr) -> str:
    """The package that `require("package", ...)` gives."""
    is_call = isinstance(value, ast.Call) and ast.unparse(value.func) in ("require", "importlib.import_module")
    first = value.args[0] if is_call and isinstance(value, ast.Call) and value.args else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _dotted(node: ast.AST, known: dict[str, str]) -> str:
    """`np.lib.format` as `numpy.lib.format`; empty where it is no plain name."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, known)
        return f"{before}.{node.attr}" if before else ""
    return _required(node) if isinstance(node, ast.Call) else ""


def _kinds(node: ast.AST, known: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        front = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            yield from _of_module(front + alias.name) or _of_name(front + alias.name)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield from _of_name(_dotted(node, known))
    elif isinstance(node, ast.Call):
        yield from _of_call(node, known)


def _of_module(name: str) -> list[str]:
    first = name.split(".")[0]
    if first in MODULES or first == "subprocess":
        return [first]
    return ["pickles in our own pipes"] * name.startswith(OWN_PIPES)


def _of_name(name: str) -> list[str]:
    last = name.rpartition(".")[2]
    if name in NAMES or name.removeprefix("builtins.") in NAMES:
        return [name]
    if name.startswith(("os.exec", "os.spawn")):
        return ["os.exec"]
    return [last] * (last in ("read_pickle", "unsafe_load", "full_load", "load_extension", "extractall"))


def _of_call(node: ast.Call, known: dict[str, str]) -> Iterator[str]:
    called, given = _dotted(node.func, known), {word.arg: word.value for word in node.keywords if word.arg}
    name = called.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
    for word, safe in (("shell", False), ("allow_pickle", False), ("trust_remote_code", False), ("weights_only", True)):
        if word in given and not _is(given[word], safe):
            yield word
    if name == "from_pretrained":
        needed = {"trust_remote_code": False, "local_files_only": True}
        needed |= {"use_safetensors": True} if "Tokenizer" not in called and "Config" not in called else {}
        if not all(_is(given.get(word), value) for word, value in needed.items()):
            yield name
    if name == "snapshot_download" and "allow_patterns" not in given:
        yield name
    if name in ("import_module", "require") and node.args:
        first = node.args[0]
        yield from _of_module(str(first.value)) if isinstance(first, ast.Constant) else ["import by a name"]
    if called == "getattr" and len(node.args) > 1 and not isinstance(node.args[1], ast.Constant):
        whole = node.args[0]
        is_import = isinstance(whole, ast.Call) and ast.unparse(whole.func).endswith(("import_module", "require"))
        if is_import or _dotted(whole, known).split(".")[0] in _PARTS_OF_PACKAGES:
            yield "part by a name"
    if name in ("njit", "jit") and _is(given.get("cache"), True):
        yield "compiled code kept"


def _is(value: ast.expr | None, wanted: bool) -> bool:
    return isinstance(value, ast.Constant) and value.value is wanted
