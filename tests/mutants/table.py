"""All mutants, by subject."""

from mutants.frames import FRAMES
from mutants.keys import KEYS
from mutants.links import LINKS
from mutants.mutation import Mutant
from mutants.network import NETWORK
from mutants.reading import READING
from mutants.registry import REGISTRY
from mutants.security import ATTACKERS
from mutants.security import SECURITY as ROWS
from mutants.security_network import SECURITY_NETWORK
from mutants.security_storage import SECURITY_STORAGE
from mutants.spark import SPARK
from mutants.storage import STORAGE


def attacker(mutant: Mutant) -> int:
    """Return the place of a row's attacker in docs/security.md."""
    assert mutant.row is not None, mutant.name
    return ATTACKERS.index(mutant.row.who)


SECURITY = tuple(sorted((*ROWS, *SECURITY_NETWORK, *SECURITY_STORAGE), key=attacker))
MUTANTS = (*FRAMES, *KEYS, *LINKS, *NETWORK, *READING, *REGISTRY, *SPARK, *STORAGE, *SECURITY)
