"""The on-disk cache of compiled programs: one directory per entry, published by an atomic rename.

Layout below `root()`: ``<target>/<key>/…``; ``tilelang/`` holds what TileLang itself writes. An entry is
written in a temporary directory beside its final place and renamed; of two writers the first wins and both
get the same content, because the key is the content's identity. Readers verify a digest, so a truncated or
altered entry is rebuilt, not loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import CacheError

CACHE_DIR_VARIABLE: Final = "TILEOPS_CACHE_DIR"
_META: Final = "meta.json"
_OWNED: Final = (
    "cpu",
    "cuda",
    "tilelang",
)  # what lies below the root and is ours; nothing else is ever counted or removed
_TEMPORARY_PREFIX: Final = ".tmp-"


@dataclass(frozen=True)
class CacheEntry:
    """One compiled program on disk."""

    target: str
    key: str
    path: Path
    meta: Mapping[str, object]

    def file(self, name: str) -> Path:
        return self.path / name

    @property
    def bytes(self) -> int:
        return sum(f.stat().st_size for f in self.path.iterdir() if f.is_file())


def root() -> Path:
    """The cache directory: ``$TILEOPS_CACHE_DIR`` or ``~/.cache/tileops``, read at every call."""
    if configured := os.environ.get(CACHE_DIR_VARIABLE):
        return Path(configured)
    try:
        return Path.home() / ".cache" / "tileops"
    except RuntimeError as error:
        raise CacheError(
            f"there is no home directory to keep compiled programs in; set {CACHE_DIR_VARIABLE} to a "
            "writable directory"
        ) from error


def ensure_directory(*parts: str) -> Path:
    """A writable directory below `root()`, created if missing; raises `CacheError`."""
    path = root().joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(path, error) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise unusable(path, PermissionError("not writable"))
    return path


def digest(*parts: str | bytes) -> str:
    """A key over an ordered list of parts; their borders count."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return sha.hexdigest()[:40]


def load(target: str, key: str) -> CacheEntry | None:
    """The entry, or None where it is missing or damaged."""
    path = root() / target / key
    try:
        meta = json.loads((path / _META).read_text())
        for name, expected in meta["files"].items():
            if hashlib.sha256((path / name).read_bytes()).hexdigest() != expected:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return CacheEntry(target, key, path, meta)


def publish(target: str, key: str, build: Callable[[Path], Mapping[str, object]]) -> CacheEntry:
    """Build an entry and make it visible in one step.

    `build` fills a private directory and returns what goes into the entry's metadata. A damaged entry of
    the same key is replaced.
    """
    parent = ensure_directory(target)
    try:
        work = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=parent))
    except OSError as error:
        raise unusable(parent, error) from error
    try:
        meta = dict(build(work))
        meta["files"] = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(work.iterdir())}
        (work / _META).write_text(json.dumps(meta, sort_keys=True))
        _move_into_place(work, parent / key, target, key)
    except OSError as error:
        raise unusable(parent, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    entry = load(target, key)
    if entry is None:
        raise CacheError(f"the cache entry {parent / key} was removed or altered while it was written")
    return entry


def _move_into_place(work: Path, final: Path, target: str, key: str) -> None:
    for _ in range(
        8
    ):  # a bounded number of rounds: each lost round means that another writer changed the entry
        try:
            os.rename(work, final)
            return
        except OSError:
            if not final.exists():
                raise
        if load(target, key) is not None:
            return
        grave = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=final.parent))
        try:
            os.rename(final, grave / "damaged")
        except FileNotFoundError:
            pass
        finally:
            shutil.rmtree(grave, ignore_errors=True)


def entries() -> tuple[CacheEntry, ...]:
    """Every whole entry, ordered by target and key."""
    found = []
    for target in _OWNED:
        for meta in sorted((root() / target).glob(f"*/{_META}")):
            entry = load(target, meta.parent.name)
            if entry is not None:
                found.append(entry)
    return tuple(found)


def total_bytes() -> int:
    """Bytes that the cache holds, TileLang's own files included."""
    return sum(f.stat().st_size for name in _OWNED for f in (root() / name).rglob("*") if f.is_file())


def clear() -> int:
    """Remove what the cache holds; returns the bytes freed. Programs that are already loaded keep working."""
    freed = total_bytes()
    for name in _OWNED:
        directory = root() / name
        try:
            if directory.exists():
                shutil.rmtree(directory)
        except OSError as error:
            raise unusable(directory, error) from error
    return freed


def unusable(path: Path, error: OSError) -> CacheError:
    """The error that says which directory cannot be used, and how to choose another."""
    return CacheError(
        f"the cache directory {path} cannot be used ({error.strerror or error}); "
        f"set {CACHE_DIR_VARIABLE} to a writable directory"
    )
