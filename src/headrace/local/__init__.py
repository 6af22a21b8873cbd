"""The plain-Python adapter: runs a handler over any iterable, without an engine.

predict.py   predict(handler, iterable)
    -> rows/tables.py           what the handler gets of a table, where one is given
    -> runtime/prepare.py       checks the arguments at once
    -> runtime/open_worker.py   loads the model when the first item is requested
    -> runtime/bundle.py        one bundle for the whole iterable; isolated models run in their hosts
and, by default, puts the outcomes back into the order of the elements.
"""
