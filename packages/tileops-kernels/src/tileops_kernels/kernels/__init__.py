"""L1 kernels. `get_kernel` finds a class by its name in the manifest; modules load on first use."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import lru_cache

from tileops_kernels.errors import ConfigError
from tileops_kernels.kernels.base import ConfigTable, Kernel

__all__ = ["ConfigTable", "Kernel", "get_kernel", "list_kernels"]


def _subclasses(cls: type[Kernel]) -> Iterator[type[Kernel]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


@lru_cache(maxsize=1)
def _kernels() -> dict[str, type[Kernel]]:
    for module in pkgutil.walk_packages(__path__, prefix=f"{__name__}."):
        importlib.import_module(module.name)
    # A class without a program of its own is a shared base; classes defined elsewhere are not this package's.
    found: dict[str, type[Kernel]] = {}
    for cls in _subclasses(Kernel):
        if cls.program is Kernel.program or not cls.__module__.startswith(f"{__name__}."):
            continue
        if found.setdefault(cls.__name__, cls) is not cls:
            raise ConfigError(
                f"two kernels are named {cls.__name__}: {found[cls.__name__].__module__}, {cls.__module__}"
            )
    return found


def list_kernels() -> list[str]:
    """Return the names of all kernel classes, sorted."""
    return sorted(_kernels())


def get_kernel(name: str) -> type[Kernel]:
    """Return the kernel class of that name.

    Raises:
        ConfigError: there is no such kernel.
    """
    try:
        return _kernels()[name]
    except KeyError:
        raise ConfigError(f"no kernel is named {name!r}; there are {', '.join(list_kernels())}") from None
