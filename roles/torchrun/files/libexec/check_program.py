"""Finds out, without running it, whether a program can begin: python check_program.py CODE script|module NAME.

Runs with the job's own Python and its PYTHONPATH, so it sees the modules that the program will see. Prints one sentence
where something is wrong: a syntax error, a module that is not there, an import of a package that is not installed.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

CURE = "name its package in a file that -e requirements= gives"


def is_there(name: str) -> bool:
    """Tell whether a top-level module can be found; nothing of it is run."""
    try:
        return name in sys.builtin_module_names or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, top-level name) of what a program imports in any case: not under a condition, or within try."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.lineno, node.module.partition(".")[0]


def problem_of(path: Path, name: str) -> str | None:
    """Return what keeps a file from beginning, or None."""
    try:
        tree = ast.parse(path.read_bytes(), filename=name)
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text else ""
        return f"{name} has a syntax error in line {error.lineno} ({error.msg}){text}"
    except (OSError, ValueError) as error:
        return f"{name} cannot be read as Python ({error})."
    # A program that moves its own import path can find what is not found here.
    if any(isinstance(node, ast.Attribute) and node.attr == "path" and isinstance(node.value, ast.Name)
           and node.value.id == "sys" for node in ast.walk(tree)):  # fmt: skip
        return None
    for line, module in imports(tree):
        if not is_there(module):
            return f"{name} imports {module} in line {line}, which is not installed on the nodes: {CURE}."
    return None


def file_of(module: str, code: Path) -> Path | None:
    """Return the file of the user's project that python -m would run; None for a module from elsewhere."""
    place = code.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__main__.py") if path.is_file()), None)


def problem(code: Path, kind: str, name: str) -> str | None:
    """Return what keeps the program from beginning, or None."""
    if kind == "script":
        sys.path[0] = str((code / name).parent)
        return problem_of(code / name, name)
    sys.path[0] = str(code)
    top = name.partition(".")[0]
    if not is_there(top):
        return f"module is {name}, but the nodes have no module {top}: give its project as workdir, or {CURE}."
    path = file_of(name, code)
    return problem_of(path, str(path.relative_to(code))) if path else None


if __name__ == "__main__":
    found = problem(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    if found:
        print(found)  # noqa: T201 (the answer)
