"""Models of what formats hold and products move. NumPy only."""
