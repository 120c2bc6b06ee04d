"""The lab: the papers' experiments, run again on the code that ships."""
