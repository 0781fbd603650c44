"""What a worker can see: a folder of links to everything importable except the judge, a scratch folder, a
cache.

The same folder serves editable and wheel installs: it is built from the parent's own import path, entry by
entry, and the entries that belong to the judge are left out. Landlock, where the system has it, then denies
the rest of the disk.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tileops_tests.errors import WorkerStartError

HIDDEN = ("tileops_tests", "tileops_workloads", "tileops_bench")
NEEDED = ("tileops_kernels", "tileops_manifest")

_KEPT_VARIABLES = (
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CC", "CXX",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip
_COMPILERS = ("g++", "c++", "clang++", "gcc", "cc", "nvcc")
_SYSTEM_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/nix", "/etc/alternatives")
_READ_ONLY_TREES = ("/etc", "/proc", "/sys")
_HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class Sandbox:
    """Folders of one verification run; `paths` are Landlock's rules for the two phases."""

    root: Path
    boot: Path
    view: Path
    cache: Path
    target: str
    candidate: Path | None
    readable: tuple[str, ...]
    executable: tuple[str, ...]

    def compile_paths(self, scratch: Path) -> dict[str, list[str]]:
        """Compilers may run; scratch (for the zygote: the root) and cache may be written."""
        return {
            "read": [*self.readable],
            "execute": [*self.executable],
            "write": [str(scratch), str(self.cache), *self._devices(scratch)],
        }

    def run_paths(self, scratch: Path) -> dict[str, list[str]]:
        """Nothing may be executed any more; only scratch may be written."""
        return {
            "read": [*self.readable, *self.executable, str(self.cache)],
            "write": [str(scratch), *self._devices(scratch)],
        }

    def _devices(self, scratch: Path) -> tuple[str, ...]:
        # Without writing below /proc/self the CUDA driver does not start. The zygote needs all of /proc,
        # since its workers have other ids; what is left to a worker is its own.
        own = "/proc" if scratch == self.root else "/proc/self"
        return ("/dev", own) if self.target == "cuda" else _HARMLESS_DEVICES

    def environment(self, scratch: Path, threads: int) -> dict[str, str]:
        """A scrubbed environment: what compilers and CUDA need, and every cache inside the sandbox."""
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        cache = str(self.cache)
        return kept | {
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "XDG_CACHE_HOME": cache,
            "TILEOPS_CACHE_DIR": f"{cache}/tileops",
            "TILELANG_CACHE_DIR": f"{cache}/tilelang",
            "TRITON_CACHE_DIR": f"{cache}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "CUDA_CACHE_PATH": f"{cache}/nv",
            "OMP_NUM_THREADS": str(threads),
            "CUDA_MODULE_LOADING": "LAZY",
        }

    def scratch(self) -> Path:
        """A new folder for one worker."""
        return Path(tempfile.mkdtemp(prefix="worker-", dir=self.root))

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def default_cache() -> Path:
    """Where the worker keeps compiled programs between runs; apart from the user's own, which is never
    trusted.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tileops-tests"


def build_sandbox(target: str, *, candidate: Path | None = None, cache: Path | None = None) -> Sandbox:
    """Prepare folders and rules. A foreign candidate gets a cache of its own, so that it cannot plant a
    program in ours.

    Raises:
        WorkerStartError: the folders cannot be made, or the implementation is not installed.
    """
    try:
        root = Path(tempfile.mkdtemp(prefix="tileops-tests-"))
        cache = cache or (root / "cache" if candidate is not None else default_cache())
        cache.mkdir(parents=True, exist_ok=True)
        boot, view = root / "boot", root / "view"
        view.mkdir()
        shutil.copytree(
            Path(__file__).with_name("worker"), boot, ignore=shutil.ignore_patterns("__pycache__")
        )
        linked = _link_everything_importable(view)
    except OSError as error:
        raise WorkerStartError(f"cannot prepare the worker's folders: {error}") from error
    hidden = [path for name in HIDDEN if (path := package_folder(name)) is not None]
    readable = [str(boot), str(view), *_READ_ONLY_TREES]
    for path in (*linked, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")):
        readable += allow_except(Path(path), hidden)
    if candidate is not None:
        readable += [*allow_except(candidate.parent, hidden), str(candidate)]
    executable = [tree for path in _executable_trees() for tree in allow_except(path, hidden)]
    return Sandbox(
        root,
        boot,
        view,
        cache,
        target,
        candidate,
        tuple(dict.fromkeys(readable)),
        tuple(dict.fromkeys(executable)),
    )


def package_folder(name: str) -> Path | None:
    """Where a top-level package lies, without importing it; None where it is not installed."""
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent


def allow_except(path: Path, hidden: Iterable[Path]) -> list[str]:
    """`path`, or, where a hidden folder lies below it, the children of it that do not lead there.

    Landlock's rules only add: to hide a folder one must name its siblings.
    """
    path = path.resolve()
    inside = [h for h in hidden if h.is_relative_to(path)]
    if not inside:
        return [] if any(path.is_relative_to(h) for h in hidden) or not path.exists() else [str(path)]
    if not path.is_dir():
        return []
    children = [child for child in path.iterdir() if not child.is_symlink()]
    return [allowed for child in children if child not in inside for allowed in allow_except(child, inside)]


def _link_everything_importable(view: Path) -> list[str]:
    """Fill `view` with links; returns what they lead to. Earlier entries of the path win, as they do for an
    import.
    """
    targets: list[str] = []
    for name in NEEDED:
        folder = package_folder(name)
        if folder is not None:
            (view / name).symlink_to(folder)
            targets.append(str(folder))
    for entry in _importable_entries():
        link = view / entry.name
        if not link.is_symlink():
            link.symlink_to(entry)
            targets.append(str(entry))
    return targets


def _importable_entries() -> Iterator[Path]:
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    standard |= {path / "lib-dynload" for path in standard}
    script_folder = Path(sys.argv[0]).resolve().parent if sys.argv and sys.argv[0] else None
    for folder in map(Path, sys.path):
        if not folder.is_absolute() or not folder.is_dir() or folder.resolve() in standard | {script_folder}:
            continue
        for entry in folder.iterdir():
            hidden = entry.name.split("-")[0].split(".")[0] in HIDDEN
            if not hidden and entry.suffix not in (".pth", ".egg-link") and entry.name != "__pycache__":
                yield entry.resolve()


def _executable_trees() -> Iterator[Path]:
    yield from (Path(tree) for tree in _SYSTEM_TREES if Path(tree).exists())
    yield Path(sys.executable).resolve()
    for name in _COMPILERS:
        found = shutil.which(name)
        if found is not None:
            yield Path(found).resolve().parent.parent
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
