"""Content digests: a finished row stays finished only while everything it depends on is the same. Imports
nothing."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tileops_bench.errors import CandidateError
from tileops_bench.resolve import OWN, split_reference


def text_digest(parts: Iterable[str]) -> str:
    """SHA-256 over parts that cannot run into each other.

    >>> text_digest(["ab", "c"]) == text_digest(["a", "bc"])
    False
    """
    joined = "\0".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(joined.encode()).hexdigest()


@cache
def package_digest(package: str) -> str:
    """Digest of every file of an installed package, without importing it.

    Raises:
        CandidateError: it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise CandidateError(f"package {package!r} is not installed")
    root = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return text_digest(f"{p.relative_to(root)}={hashlib.sha256(p.read_bytes()).hexdigest()}" for p in files)


def candidate_digest(ref: str) -> str:
    """Digest of what a candidate reference names: our kernels package, a file, or an installed package.

    Raises:
        CandidateError: the file or package does not exist, or the reference is malformed.
    """
    if ref == OWN:
        return package_digest("tileops_kernels")
    place, _ = split_reference(ref)
    if not place.endswith(".py"):
        return text_digest((ref, package_digest(place.split(".")[0])))
    path = Path(place)
    if not path.is_file():
        raise CandidateError(f"candidate file {place!r} does not exist")
    return text_digest((ref, path.read_text(errors="replace")))
