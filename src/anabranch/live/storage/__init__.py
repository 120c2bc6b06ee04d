"""Where a storage node keeps its logs, and how they are read from outside."""
