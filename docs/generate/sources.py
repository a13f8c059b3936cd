"""Declarations of modules that are read, and not imported: many of them are compiled, or need packages.

For example, `exported(located("timerd_client"))` has the names that `import timerd as td` gives.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = (ROOT / "client", ROOT / "shm_layout", ROOT)  # of packages
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Found(NamedTuple):
    """Where a name is declared: its node, and the file and name there. `doc` is its docstring."""

    path: Path
    name: str
    node: ast.stmt
    doc: str


@cache
def parsed(path: Path) -> ast.Module:
    """The module of a file."""
    return ast.parse(path.read_text())


def located(module: str) -> Path:
    """The file of a module of this tree. Raises ValueError if there is none."""
    for folder in FOLDERS:
        if (path := _file(folder.joinpath(*module.split(".")))) is not None:
            return path
    raise ValueError(f"there is no module {module}")


def is_there(module: str) -> bool:
    """Whether this tree has the module."""
    return any(_file(folder.joinpath(*module.split("."))) is not None for folder in FOLDERS)


def _file(stem: Path) -> Path | None:
    choices = (stem / "__init__.py", stem.with_suffix(".py"), stem.with_suffix(".pyi"))
    return next((path for path in choices if path.exists()), None)


def exported(path: Path) -> set[str]:
    """The names in a module's __all__, also where it adds those of other modules. Raises ValueError without __all__."""
    names: set[str] | None = None
    for node in parsed(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = set(ast.literal_eval(node.value))
        elif isinstance(node, ast.AugAssign) and ast.unparse(node.target) == "__all__" and names is not None:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Attribute) and part.attr == "__all__":
                    names |= exported(_module_named(path, ast.unparse(part.value)))
    if names is None:
        raise ValueError(f"{path} has no __all__")
    return names


def _module_named(path: Path, name: str) -> Path:
    """The file of the module that a module has imported by this name."""
    for source, alias in _imported(path):
        if (alias.asname or alias.name) == name and (file := _file(source / alias.name)) is not None:
            return file
    raise ValueError(f"{path} imports no module {name}")


def _imported(path: Path) -> Iterator[tuple[Path, ast.alias]]:
    """Each name that a module imports from a module of this tree, with that module's path without a suffix."""
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = node.module.split(".") if node.module else []
        base: Path | None
        if node.level:
            base = path.parents[node.level - 1]
        else:
            base = next((folder for folder in FOLDERS if (folder / parts[0]).exists()), None)
        if base is not None:
            yield from ((base.joinpath(*parts), alias) for alias in node.names)


def found(path: Path, name: str) -> Found:
    """Where a name of a module is declared: there, or in the module from which it is imported. Raises ValueError."""
    if (here := declared(path, name)) is not None:
        return here
    stars = []
    for source, alias in _imported(path):
        file = _file(source)
        if file is None or file == path:
            continue
        if alias.name == "*":
            stars.append(file)
        elif (alias.asname or alias.name) == name:
            return found(file, alias.name)
    for file in stars:
        if name in exported(file):
            return found(file, name)
    raise ValueError(f"{path.relative_to(ROOT)} has no {name}")


def declared(path: Path, name: str) -> Found | None:
    """The declaration of a name in this file; None if it has none. Of several, the last: it follows the overloads."""
    body = parsed(path).body
    for at in range(len(body) - 1, -1, -1):
        node = body[at]
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return Found(path, name, node, ast.get_docstring(node) or "")
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(ast.unparse, targets):
                return Found(path, name, node, _text_after(body, at))
    return None


def _text_after(body: list[ast.stmt], at: int) -> str:
    """The docstring that follows a declaration; empty if there is none."""
    match body[at + 1 : at + 2]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return text
    return ""


def class_named(path: Path, name: str) -> ast.ClassDef:
    """A class that is declared in this file. Raises ValueError."""
    here = declared(path, name)
    if here is None or not isinstance(here.node, ast.ClassDef):
        raise ValueError(f"{path.relative_to(ROOT)} has no class {name}")
    return here.node


def bases_of(path: Path, node: ast.ClassDef) -> Iterator[Found]:
    """The bases of a class that this tree declares, without their type arguments."""
    for base in node.bases:
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        try:
            yield found(path, name)
        except ValueError:  # of the standard library, or of another package
            continue


def documented(path: Path, node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """The fields of a class that have a docstring each: name, type, docstring. Those of its bases come first."""
    for base in bases_of(path, node):
        if isinstance(base.node, ast.ClassDef):
            yield from documented(base.path, base.node)
    for at, field in enumerate(node.body):
        if isinstance(field, ast.AnnAssign):
            kind = ast.unparse(field.annotation)
            if kind.startswith("Required["):
                kind = kind.removeprefix("Required[").removesuffix("]")
            yield ast.unparse(field.target), kind, " ".join(_text_after(node.body, at).split())
