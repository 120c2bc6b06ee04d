"""All mutants, by subject."""

from mutants.calm import CALM
from mutants.frames import FRAMES
from mutants.keeping import KEEPING
from mutants.keys import KEYS
from mutants.links import LINKS
from mutants.reading import READING
from mutants.registry import REGISTRY
from mutants.security import SECURITY as SECURITY
from mutants.spark import SPARK
from mutants.storage import STORAGE

MUTANTS = (
    *(*CALM, *FRAMES, *KEEPING, *KEYS, *LINKS, *READING, *REGISTRY, *SPARK, *STORAGE),
    *SECURITY,
)
