"""The version of the library; the build reads it here."""

__version__ = "0.1.0"
