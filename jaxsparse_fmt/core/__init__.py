"""The matrix: its protocol, the trilinear form behind its products, its basis, and passes over vectors."""
