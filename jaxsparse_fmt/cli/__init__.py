"""The command `jaxsparse`: `main` has the parser, each command has a module, `tables` prints tables."""
