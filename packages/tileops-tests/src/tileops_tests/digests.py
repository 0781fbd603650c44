"""Content digests of everything that a verdict rests on: a record speaks only for these."""

from __future__ import annotations

import hashlib
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from tileops_manifest import Entry
from tileops_tests.closure import digest_files, implementation_digest, import_closure
from tileops_tests.oracles import Oracle, module_of
from tileops_tests.sandbox import package_folder
from tileops_tests.tolerance import tolerance_digest

# The verdict itself: what runs the candidate, what compares, what decides.
CHECKER = (
    "cases.py", "comparator.py", "forbidden.py", "host.py", "judge.py", "memory.py", "precision.py",
    "reference.py", "sandbox.py", "second.py", "sensitivity.py", "tolerance.py", "verify.py",
    "worker/buffers.py", "worker/confinement.py", "worker/guards.py", "worker/main.py", "zygote.py",
)  # fmt: skip
_DISTS = (
    "tileops-manifest", "tileops-workloads", "tileops-kernels", "tileops-tests", "torch", "tilelang",
    "pydantic",
)  # fmt: skip


def digests_of(entry: Entry, oracle: object, candidate: Path | None, target: str) -> dict[str, str]:
    """Digests by name: manifest, workload, oracle, tolerance, checker, and candidate or implementation (of
    the target)."""
    found = {
        "manifest": entry.digest,
        "workload": _package_digest("tileops_workloads"),
        "oracle": oracle_digest(oracle),
        "tolerance": tolerance_digest(),
        "checker": _checker_digest(),
    }
    if candidate is not None:
        found["candidate"] = hashlib.sha256(candidate.read_bytes()).hexdigest()
    elif (digest := implementation_digest(entry, target)) is not None:
        found["implementation"] = digest
    return found


def oracle_digest(oracle: object) -> str:
    """Digest of the file that an oracle stands in and what it imports from this package."""
    root = Path(__file__).parent
    module = sys.modules[module_of(oracle) if isinstance(oracle, Oracle) else type(oracle).__module__]
    file = Path(module.__file__ or "")
    if not file.is_relative_to(root):
        return hashlib.sha256(file.read_bytes()).hexdigest()
    return digest_files(import_closure([file], root, "tileops_tests"), root)


@cache
def _checker_digest() -> str:
    root = Path(__file__).parent
    return digest_files([root / name for name in CHECKER], root)


@cache
def _package_digest(name: str) -> str:
    root = package_folder(name)
    if root is None:
        raise ModuleNotFoundError(f"{name} is not installed", name=name)
    return digest_files(root.rglob("*.py"), root)


def versions() -> dict[str, str]:
    """Versions of Python, the operating system and the packages involved, from metadata alone.

    The label of a local build is left out: a record names releases, which its readers can install.
    """
    found = {"python": platform.python_version(), "system": platform.platform()}
    for dist in _DISTS:
        try:
            found[dist] = metadata.version(dist).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """The processor's model name, or its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
