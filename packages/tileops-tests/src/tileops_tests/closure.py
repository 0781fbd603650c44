"""The part of the implementation that an op's verdict speaks for: its import closure, read as text, never
imported.

Roots are the op layer's core (everything in `ops/` that is not a flow), the flow modules that name the op or
import a kernel class of the entry's `kernel_map`, and the files that define these classes. From there imports
are followed statically; what lies beside a followed file and is no Python (headers, tables) counts too. An
import that cannot be resolved to a file of the package ends the trail; a root that cannot be found makes the
closure the whole package, so that a digest is at worst too wide.

The closure is that of one target: a file that imports several folders of `targets/` chooses between them,
and only the chosen one is followed from there. A change to the code generator of CPUs leaves verdicts on GPUs
alone.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tileops_manifest import Entry
from tileops_tests.sandbox import package_folder

PACKAGE = "tileops_kernels"
_TARGETS = "targets"


def digest_files(files: Iterable[Path], root: Path) -> str:
    """SHA-256 over paths relative to `root` and contents, in path order."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def implementation_digest(entry: Entry, target: str) -> str | None:
    """Digest of the closure of an op in the installed implementation; None where none is installed."""
    root = package_folder(PACKAGE)
    return None if root is None else digest_files(implementation_files(entry, root, target), root)


def implementation_files(entry: Entry, root: Path, target: str) -> frozenset[Path]:
    """Files that the op's result on a target depends on; `root` is the package's folder."""
    roots = _roots(entry, root)
    if roots is None:
        return frozenset(_everything(root))
    found = import_closure(roots, root, PACKAGE, target)
    folders = {file.parent for file in found}
    return found | {file for file in _everything(root) if file.suffix != ".py" and file.parent in folders}


def _roots(entry: Entry, root: Path) -> set[Path] | None:
    files = _everything(root)
    flows = [file for file in files if "flows" in file.parts]
    kernels = set(entry.kernel_map.values())
    # Names of ops may be put together at run time; those of the classes that run them are not.
    naming = [file for file in flows if entry.name in _strings(file) or kernels & _imported_names(file)]
    defining = [file for file in files if kernels & _classes(file)]
    if not naming or (kernels and not defining):
        return None
    core = [file for file in files if file.parent == root / "ops"]
    return {*core, *naming, *defining}


def import_closure(
    roots: Iterable[Path], root: Path, package: str, target: str | None = None
) -> frozenset[Path]:
    """All files of `package` (in `root`) that `roots` import, directly or not.

    The `__init__.py` above each file counts too, since it runs; what it imports counts only when it is
    imported itself. Where a file imports several targets, only `target` is followed.
    """
    pending, seen = list(roots), set()
    while pending:
        file = pending.pop()
        if file not in seen:
            seen.add(file)
            found = _imported_files(file, root, package)
            chooses = target in found.values() and len(set(found.values()) - {None}) > 1
            pending += [file for file, other in found.items() if not chooses or other in (None, target)]
    above = {
        parent / "__init__.py" for file in seen for parent in file.parents if parent.is_relative_to(root)
    }
    return frozenset(seen | {init for init in above if init.exists()})


@cache
def _imported_files(file: Path, root: Path, package: str) -> dict[Path, str | None]:
    """Files of the package that a file imports, each with the target that it belongs to."""
    names = _imported(file, root, package)
    return {found: _target_of(found, root) for name in names for found in _resolve(name, root, package)}


def _target_of(file: Path, root: Path) -> str | None:
    """The target that a file belongs to: the folder in `targets/` that it lies in."""
    parts = file.relative_to(root).parts
    return parts[1] if parts[0] == _TARGETS and len(parts) > 2 else None


def _resolve(name: str, root: Path, package: str) -> Iterator[Path]:
    """Files of a dotted name: the module, or the package; `a.b.c` may also be attribute c of module a.b."""
    parts = name.split(".")
    if parts[0] != package:
        return
    for length in range(len(parts), 0, -1):
        base = root.joinpath(*parts[1:length])
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if length > 1 and candidate.exists():
                yield candidate
                return


def _imported(file: Path, root: Path, package: str) -> Iterator[str]:
    inside = [package, *file.relative_to(root).parts[:-1]]
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@cache
def _everything(root: Path) -> tuple[Path, ...]:
    return tuple(
        sorted(file for file in root.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    )


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes() if file.suffix == ".py" else b"")


@cache
def _strings(file: Path) -> frozenset[str]:
    return frozenset(
        n.value for n in ast.walk(_tree(file)) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )


@cache
def _imported_names(file: Path) -> frozenset[str]:
    imports = (node for node in ast.walk(_tree(file)) if isinstance(node, ast.ImportFrom))
    return frozenset(alias.name for node in imports for alias in node.names)


@cache
def _classes(file: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(_tree(file)) if isinstance(node, ast.ClassDef))
