"""Where a tracker keeps the registry between two runs."""
