"""Pictures of experiments: each as pixels and as lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def save(figure: Any, path: Path) -> None:
    """Write a figure of Matplotlib as the PNG that was asked for, and as an SVG beside it."""
    from matplotlib import rc_context

    figure.savefig(path)
    # Names inside the file are made of this and not of randomness, and no date is written: the
    # same rows make the same picture.
    with rc_context({"svg.hashsalt": "anabranch"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def draw_gains(labels: Sequence[str], values: NDArray[np.float64], title: str, path: Path) -> None:
    """Draw by how much messages to a liar take longer than when it is honest, for each lie."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    axes.boxplot(list(values), tick_labels=list(labels), showmeans=True, whis=(5, 95))
    axes.axhline(0, color="#8a8a8a", linewidth=1)
    axes.set_ylabel("delay to the liar beyond that\nwhen it is honest, ms")
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    save(figure, path)
