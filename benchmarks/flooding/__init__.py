"""The systems that flood.py compares, and how it drives them."""
