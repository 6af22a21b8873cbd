"""The plain-Python adapter: runs a handler over any iterable, without an engine.

predict.py   predict(handler, iterable)
    -> rows/frames.py           the rows of a table, where one is given; rows/examples.py: what the handler gets of them
    -> runtime/prepare.py       checks the arguments at once
    -> runtime/open_worker.py   loads the model when the first item is requested
    -> runtime/bundle.py        one bundle for the whole iterable; isolated models run in their hosts
and, by default, puts the outcomes back into the order of the elements.
"""
