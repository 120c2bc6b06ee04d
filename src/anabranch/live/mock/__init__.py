"""Made-up data that looks like real data, the same for the same seed."""
