"""Decides when a batch leaves, and what is in it. Pure: starts no threads, and gets every time as an argument.

::

    worker or host process

    runtime/queues   elements of one bundle         beam/buffer   elements kept in Beam's state
       |--> batcher     in order, by count or weight <---'
       |--> lookahead   sorted by length
       |--> columnar    rows of columnar elements
       v
    size         the target size: fixed, or learned from the model's times
"""
