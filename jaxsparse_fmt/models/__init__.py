"""Performance models of the papers. NumPy only."""
