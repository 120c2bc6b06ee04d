"""All mutants, by subject."""

from mutants.calm import CALM
from mutants.five import FIVE
from mutants.forgetting import FORGETTING
from mutants.frames import FRAMES
from mutants.keys import KEYS
from mutants.links import LINKS
from mutants.reading import READING
from mutants.registry import REGISTRY
from mutants.security import SECURITY as SECURITY
from mutants.spark import SPARK
from mutants.storage import STORAGE

MUTANTS = (
    *(*CALM, *FIVE, *FORGETTING, *FRAMES, *KEYS, *LINKS, *READING, *REGISTRY),
    *(*SPARK, *STORAGE, *SECURITY),
)
