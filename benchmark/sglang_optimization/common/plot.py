# SPDX-License-Identifier: Apache-2.0
"""Figures that look alike across benchmarks."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator

from .cli import BenchError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe-Ito: told apart with colour-vision deficiencies and in grey.
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#999999",
)
MARKERS = "os^vDP*X"


@contextmanager
def figure(
    path: Path, rows: int = 1, columns: int = 1, panel: tuple[float, float] = (5.0, 3.6)
) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure and its ``rows`` x ``columns`` array of axes; save it on success.

    ``panel`` is the size of one panel in inches (width, height).

    Raises:
        BenchError: matplotlib is missing or the file cannot be written.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise BenchError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(panel[0] * columns, panel[1] * rows),
        squeeze=False,
        layout="constrained",
    )
    try:
        yield drawing, axes
        drawing.savefig(path, dpi=110)
    except OSError as error:
        raise BenchError(f"cannot write {path.name}: {error.strerror}") from None
    finally:
        pyplot.close(drawing)


def style(index: int) -> dict[str, Any]:
    """Colour and marker of the index-th series, stable within one figure."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index // len(COLOURS) + index) % len(MARKERS)],
        "linewidth": 1.4,
        "markersize": 4,
    }
