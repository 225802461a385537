"""The layout of entries: address rules, column rules (which decode 16-bit and 32-bit indices), and CSR5's tiles."""
