"""GPU operators as TileLang tile programs that run on CUDA and on a CPU."""

__version__ = "0.1.0"
