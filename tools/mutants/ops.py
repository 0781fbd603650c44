"""Which ops' suites can see a mutant of a kernel file: those whose programs come from it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from boundary.entries import entries
from boundary.model import StageTable
from mutants.make import KERNELS
from tileops_manifest.entry import function_name

FLOWS = "packages/tileops-kernels/src/tileops_kernels/ops/flows"


@dataclass(frozen=True)
class Users:
    """Of every kernel file the implemented ops whose kernel classes lie in it, or in a file that imports it,
    and the modules of those files.
    """

    ops: Mapping[str, tuple[str, ...]]
    modules: Mapping[str, tuple[str, ...]]


def users(root: Path, table: StageTable) -> Users:
    """Who uses which kernel file."""
    files = {path.name: path for path in sorted((root / KERNELS).glob("*.py"))}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files.items()}
    defined = {
        node.name: name
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    reached = {name: _reached(name, trees) for name in trees}
    found: dict[str, list[str]] = {name: [] for name in trees}
    for op, entry in entries(root, table).items():
        if entry.get("status", {}).get("cpu") != "implemented":
            continue
        homes = {defined[kernel] for kernel in entry.get("kernel_map", {}).values() if kernel in defined}
        for name in trees:
            if any(name in reached[home] for home in homes):
                found[name].append(op)
    for flow in sorted((root / FLOWS).glob("*.py")):
        # A file whose classes no entry names is launched beside those of the same flow.
        used = _imported(ast.parse(flow.read_text(encoding="utf-8")), trees)
        for name in used:
            if not found[name]:
                found[name] = list(dict.fromkeys(op for other in sorted(used) for op in found[other]))
    package = KERNELS.partition("/src/")[2].replace("/", ".")
    return Users(
        {f"{KERNELS}/{name}": tuple(ops) for name, ops in found.items()},
        {
            f"{KERNELS}/{name}": tuple(
                f"{package}.{user.removesuffix('.py')}" for user in trees if name in reached[user]
            )
            for name in trees
        },
    )


def _reached(name: str, trees: Mapping[str, ast.Module]) -> set[str]:
    pending, seen = [name], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        pending += _imported(trees[current], trees)
    return seen


def _imported(tree: ast.Module, trees: Mapping[str, ast.Module]) -> set[str]:
    modules = (node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    files = {f"{m.rpartition('.')[2]}.py" for m in modules if m.startswith("tileops_kernels.kernels.")}
    return files & trees.keys()


def ops_for(file: str, source: str, line: int, table: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The ops that judge a mutant of `line`: those that the line or its function is for, else all users."""
    able = table.get(file, ())
    words = _words(source, line)
    return [op for op in able if op in words or function_name(op) in words] or list(able)


def _words(source: str, line: int) -> set[str]:
    """Quoted words of a line, or, in a function, the function's name and the quoted words beside its uses."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or node.lineno):
            uses = [text for text in lines if re.search(rf"\b{node.name}\b", text)]
            return {node.name, *re.findall(r'"(\w+)"', "\n".join(uses))}
    return set(re.findall(r'"(\w+)"', lines[line - 1]))
