"""Compilers side by side: an op that launches several programs waits for the slowest of them, not for their
sum."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["compiled_together", "now_or_together"]

T = TypeVar("T")

# What the running `compiled_together` of this thread is to make.
_wanted: ContextVar[list[Callable[[], Any]] | None] = ContextVar("wanted", default=None)


class _Placeholder:
    """What a program is before it is compiled: there is nothing to launch."""

    def bound(self, *example_args: Any) -> Callable[..., None]:
        return self.launcher

    def launcher(self, *args: Any) -> None:
        """Do nothing."""


def now_or_together(make: Callable[[], Any]) -> Any:
    """Return the program that `make` compiles; within `compiled_together` a placeholder for it.

    >>> now_or_together(lambda: "a program")
    'a program'
    """
    wanted = _wanted.get()
    if wanted is None:
        return make()
    wanted.append(make)
    return _Placeholder()


def compiled_together(prepare: Callable[[], T]) -> T:
    """Return `prepare()`, with the programs that it asks for compiled side by side.

    Where programs are missing, `prepare` is called twice: once to learn which, with placeholders for them,
    and again when they are there. So it must do nothing but decide, allocate and bind. An error of a compiler
    is raised in the second call, where that program is asked for.
    """
    wanted: list[Callable[[], Any]] = []
    token = _wanted.set(wanted)
    try:
        result = prepare()
    finally:
        _wanted.reset(token)
    if not wanted:
        return result
    if len(wanted) > 1:
        with ThreadPoolExecutor(len(wanted)) as pool:
            for future in [pool.submit(make) for make in wanted]:
                future.exception()
    return prepare()
