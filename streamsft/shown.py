"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["counted"]


def counted(value: float) -> str:
    """A count in at most six characters: up to 99,999 in full, above that three digits and a unit (1.23M)."""
    if abs(value) < 99_999.5:
        return f"{value:,.0f}"
    for unit in "kMGTP":
        value /= 1000
        if abs(value) < 999.5:
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:.{digits}f}{unit}"
    return f"{value * 1e15:.0e}"
