"""All mutants, by subject."""

from mutants.calm import CALM
from mutants.five import FIVE
from mutants.forgetting import FORGETTING
from mutants.frames import FRAMES
from mutants.keeping import KEEPING
from mutants.keys import KEYS
from mutants.links import LINKS
from mutants.neighbours import NEIGHBOURS
from mutants.network import NETWORK
from mutants.order import ORDER
from mutants.reading import READING
from mutants.registry import REGISTRY
from mutants.security import ATTACKERS, SECURITY
from mutants.spark import SPARK
from mutants.storage import STORAGE

# The rows of docs/security.md, by attacker.
ATTACKS = tuple(
    mutant
    for attacker in ATTACKERS
    for mutant in (*SECURITY, *NETWORK)
    if mutant.row is not None and mutant.row.who == attacker
)
MUTANTS = (
    *(*CALM, *FIVE, *FORGETTING, *FRAMES, *KEEPING, *KEYS, *LINKS, *NEIGHBOURS, *ORDER),
    *(*READING, *REGISTRY, *SPARK, *STORAGE),
    *ATTACKS,
)
