"""Pictures of experiments: each as pixels and as lines."""

from pathlib import Path
from typing import Any


def save(figure: Any, path: Path) -> None:
    """Write a figure of Matplotlib as the PNG that was asked for, and as an SVG beside it."""
    from matplotlib import rc_context

    figure.savefig(path)
    # Names inside the file are made of this and not of randomness, and no date is written: the
    # same rows make the same picture.
    with rc_context({"svg.hashsalt": "anabranch"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
