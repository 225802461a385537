"""Tables and small pictures for notebooks, as text: HTML, with SVG in the colour of its surroundings."""

import html
from collections.abc import Iterable
from typing import Any

import numpy as np

CELLS = 40  # of a picture of a matrix, along the longer axis
SIDE = 120  # pixels of its longer axis
LEVELS = 4  # of opacity
WIDTH, HEIGHT, POINTS = 180, 36, 90  # pixels and points of a curve


def table(title: str, rows: Iterable[tuple[str, str]], picture: str = "") -> str:
    """A table of names and values under a title, with a picture at its right; names and values are plain text."""
    lines = (
        f'<tr><td style="text-align:left;opacity:.7">{html.escape(name)}</td>'
        f'<td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    text = f"<div><b>{html.escape(title)}</b><table>{''.join(lines)}</table></div>"
    return f'<div style="display:flex;gap:1.5em;align-items:center">{text}{picture}</div>'


def density(S: Any, cells: int = 400) -> np.ndarray:
    """The fraction of places that hold an entry, in each cell of a coarse grid over the matrix.

    Args:
      S: SciPy's, in CSR without duplicates.
      cells: the most cells along an axis; a shorter axis gets one cell a row or column.

    Returns:
      float64 [min(rows, cells), min(columns, cells)], from 0 to 1.
    """
    high, wide = (min(n, cells) for n in S.shape)
    down, across = (np.arange(n) * min(n, cells) // max(n, 1) for n in S.shape)  # the cell of each row and column
    cell = np.repeat(down * wide, np.diff(S.indptr)) + across[S.indices]
    entries = np.bincount(cell, minlength=high * wide).reshape(high, wide)
    return entries / np.outer(np.bincount(down, minlength=high), np.bincount(across, minlength=wide))


def spy(S: Any) -> str:
    """The pattern of a matrix, SciPy's in CSR: cells are darker the more of their places hold entries."""
    if 0 in S.shape:
        return ""
    filled = density(S, CELLS)
    high, wide = filled.shape
    level = np.ceil(LEVELS * np.sqrt(filled)).astype(int)  # 0 without entries
    paths = []
    for opacity in range(1, LEVELS + 1):
        cells = "".join(f"M{j} {i}h1v1h-1z" for i, j in np.argwhere(level == opacity))
        paths.append(f'<path d="{cells}" fill="currentColor" fill-opacity="{opacity / LEVELS:g}"/>' if cells else "")
    across, down = (max(round(SIDE * n / max(S.shape)), 12) for n in reversed(S.shape))
    frame = f'<rect width="{wide}" height="{high}" fill="none" stroke="currentColor" stroke-width="0.4"/>'
    return _svg(across, down, f"0 0 {wide} {high}", frame + "".join(paths), "the pattern of the matrix")


def sparkline(norms: Any) -> str:
    """The logarithms of positive numbers [n] as a curve; empty of fewer than two."""
    norms = np.asarray(norms, np.float64)
    steps = np.flatnonzero(np.isfinite(norms) & (norms > 0))
    if steps.size < 2:
        return ""
    steps = steps[np.unique(np.linspace(0, steps.size - 1, POINTS).astype(int))]
    y = np.log10(norms[steps])
    x = steps / steps[-1] * (WIDTH - 4) + 2
    y = (y.max() - y) / (np.ptp(y) or 1) * (HEIGHT - 4) + 2
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    curve = f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    return _svg(WIDTH, HEIGHT, f"0 0 {WIDTH} {HEIGHT}", curve, "the logarithm of the residual norm by iteration")


def _svg(width: int, height: int, box: str, content: str, label: str) -> str:
    size = f'width="{width}" height="{height}" viewBox="{box}" preserveAspectRatio="none"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">{content}</svg>'
