"""The command line: ``headrace run``."""
