"""Numbers for people."""

from __future__ import annotations

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_RATES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def time_text(ns: float | None) -> str:
    """Three significant digits and a unit.

    >>> time_text(12_345), time_text(None)
    ('12.3 µs', '–')
    """
    if ns is None:
        return "–"
    for scale, unit in _TIMES:
        if ns >= scale:
            return f"{ns / scale:.3g} {unit}" if ns / scale < 1000 else f"{ns / scale:.0f} {unit}"
    return f"{ns:.2g} ns"


def size_text(count: int | None) -> str:
    """Bytes with a binary unit.

    >>> size_text(3 << 20)
    '3.0 MiB'
    """
    if count is None:
        return "–"
    for scale, unit in _SIZES:
        if count >= scale:
            return f"{count / scale:.1f} {unit}" if scale > 1 else f"{count} B"
    return "0 B"


def rate_text(per_second: float, unit: str) -> str:
    """A rate with a decimal prefix.

    >>> rate_text(4.27e12, "B/s")
    '4.27 TB/s'
    """
    for scale, prefix in _RATES:
        if per_second >= scale:
            return f"{per_second / scale:.3g} {prefix}{unit}"
    return f"{per_second:.3g} {unit}"
