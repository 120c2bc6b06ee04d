"""The overlays by name: a stream chooses one of these."""

from anabranch.core.overlay import Overlay
from anabranch.overlays.random_regular import RandomRegular

OVERLAYS: dict[str, type[Overlay]] = {"random-regular": RandomRegular}
