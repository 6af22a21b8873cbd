"""The command line: ``headrace run`` and ``headrace doctor``."""
