"""Rows, and what a handler is given of them: shared by ``predict`` and ``headrace run``.

examples.py   wraps a handler so that it takes rows: a first preprocessing function makes the example of a row
frames.py     the rows of a data frame or an Arrow table, in order
types.py      what columns hold, by the names that users see
values.py     Arrow's values as Python's; durations.py: ISO 8601 text
records.py    what a row is, and what stands in for one that cannot be read

examples.py, records.py and what they import also run in model hosts. Only values.py needs pyarrow.
"""
