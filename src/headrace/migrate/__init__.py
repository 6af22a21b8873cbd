"""Moves code over from ``apache_beam.ml.inference``: what ``headrace migrate`` runs.

Nothing here imports Beam, a framework or the code that it rewrites.

::

    files          a tree: reads each file, or a notebook's code cells, hands it on, writes what changed
      -> source      one Python file: text in; text, and what a person has to know, out
           -> imports    import statements, and the uses of the names that they bind
           -> rewriting  what becomes of each import and use, as edits of the text
    names          where each of Beam's names is in Headrace, read from the source of both
"""
