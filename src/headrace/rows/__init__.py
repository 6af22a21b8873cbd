"""Rows, in blocks and one by one, and what a handler is given of them: shared by ``predict`` and ``headrace run``.

blocks.py     blocks of rows, and the places of their rows
columns.py    wraps a handler so that it runs over blocks
fitting.py    which rows of a block a model can take in columns
examples.py   wraps a handler so that it takes rows: a first preprocessing function makes the example of a row
frames.py     the rows of a data frame or an Arrow table, in order
files.py      files as rows, whose contents are read ahead
exploded.py   predictions of several values as several columns
types.py      what columns hold, by the names that users see
values.py     Arrow's values as Python's
records.py    what a row is, and what stands in for one that cannot be read

All but frames.py also run in model hosts. columns.py, fitting.py and values.py need pyarrow.
"""
