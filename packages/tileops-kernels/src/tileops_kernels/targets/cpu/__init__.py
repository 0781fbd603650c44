"""The CPU target: tile program to C++ to shared library to callable."""

from .target import CpuProgram, compile_cpu

__all__ = ["CpuProgram", "compile_cpu"]
