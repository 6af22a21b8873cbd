"""Rows, in blocks and one by one, and what a handler is given of them: shared by ``predict`` and ``headrace run``.

blocks.py     rows, blocks of rows and their places; what stands in for a row that cannot be read; what columns hold
examples.py   what a handler is given of a row, and the columns that its prediction adds
columns.py    blocks in columns: which rows fit, and what a handler is given of them
tables.py     what ``predict`` gives a handler of a data frame or an Arrow table
files.py      files as rows, whose contents are read ahead
values.py     Arrow's values as Python's and numpy's, and back

All but tables.py also run in model hosts. columns.py and values.py need pyarrow.
"""
