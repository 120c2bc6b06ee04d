"""The parts of benchmarks/turns.py: figures of rows, ratios of pairs, and the trees compared."""
