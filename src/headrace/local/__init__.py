"""The plain-Python adapter: the same runtime over any iterable."""
