"""Decides when a batch leaves, and what is in it. Pure: starts no threads, and gets every time as an argument.

::

    worker or host process

    runtime/queues   elements of one bundle         runtime/cross_bundle   what concurrent bundles leave over
       |--> batcher     in order, by count or weight    |
       |--> lookahead   sorted by length  <-------------'
       |--> columnar    rows of columnar elements   beam/buffer   elements kept in Beam's state
       |--> resident_models   whose queue leaves        '--> gather
       v
    size         the target size: fixed, or learned from the model's times
"""
