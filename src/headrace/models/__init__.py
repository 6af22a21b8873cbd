"""Which models are in memory: a cache per process, admission by bytes, and memory figures.

::

    worker or host process                           manager process

    runtime/session                                  machine/manager
       |                                                |
       v                                                |
    cache           loads each model once, shares it    |
       |            among threads, evicts by LRU        v
       |--> memory_budget ------------------------> admission    pure policy: go, evict, wait or refuse
       |      measures what models take here
       v
    memory          this process, others, control groups; read in every process (host, manager, ``headrace doctor``)
       |
       v
    procfs          reads /proc
"""
