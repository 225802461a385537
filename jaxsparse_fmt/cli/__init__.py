"""The command `jaxsparse`: main has the parser, each command its module, tables prints its tables."""
