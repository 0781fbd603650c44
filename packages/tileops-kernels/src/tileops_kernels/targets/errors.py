"""Errors of the targets. All are `TargetError`; the class says what the reader can do about it."""

from __future__ import annotations


class TargetError(RuntimeError):
    """A tile program could not be compiled for, or launched on, a target."""


class LaunchError(TargetError, ValueError):
    """An argument of a launch does not fit; names the parameter, what came and what was expected."""

    def __init__(self, program: str, parameter: str, got: object, expected: object) -> None:
        super().__init__(f"{program}: {parameter} is {got}, expected {expected}")
        self.program, self.parameter, self.got, self.expected = program, parameter, got, expected


class UnsupportedTileOpError(TargetError, NotImplementedError):
    """The program uses an operation that this target cannot run; names it and the source line."""

    def __init__(self, operation: str, location: str | None = None, detail: str | None = None) -> None:
        where = f" at {location}" if location else ""
        why = f": {detail}" if detail else ""
        super().__init__(f"the cpu target does not support {operation}{where}{why}")
        self.operation, self.location, self.detail = operation, location, detail


class CompilerNotFoundError(TargetError):
    """No compiler is installed; says which package to install."""


class CompilationError(TargetError):
    """The compiler refused the generated code: a defect of this package or of the installation."""

    def __init__(self, message: str, source: str | None = None) -> None:
        super().__init__(message)
        self.source = source


class LoweringError(TargetError):
    """TileLang could not lower the program for a target; carries TileLang's own message."""


class CacheError(TargetError):
    """The cache directory cannot be used; names it and the environment variable that moves it."""
