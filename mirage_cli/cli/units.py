"""Figures with their units, as tables, pages and pictures show them."""

from __future__ import annotations


def us_text(us: float | None) -> str:
    """Three digits, in µs or ms."""
    if us is None:
        return "-"
    return f"{_three(us / 1e3)} ms" if us >= 999.5 else f"{_three(us)} µs"


def bytes_text(count: float) -> str:
    """In powers of 1000, as rates are."""
    return _scaled(count, ("B", "KB", "MB", "GB", "TB"))


def flops_text(count: float) -> str:
    return _scaled(count, ("FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def percent_text(part: float) -> str:
    return f"{part:.0%}" if part >= 0.1 else f"{part:.1%}"


def _scaled(x: float, units: tuple[str, ...]) -> str:
    power = 0
    while x >= 999.5 and power + 1 < len(units):
        x, power = x / 1e3, power + 1
    return f"{x:.0f} {units[0]}" if power == 0 else f"{_three(x)} {units[power]}"


def _three(x: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{x:.0f}" if x >= 99.95 else f"{x:.1f}" if x >= 9.995 else f"{x:.2f}" if x >= 0.0995 else f"{x:.2g}"
