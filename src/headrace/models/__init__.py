"""Whether memory has room for one more model: admission by bytes, and memory figures.

::

    worker or host process                           manager process

    core/model_cache (of runtime/session)            machine/manager
       |                                                |
       v                                                v
    admission.MemoryBudget ----------------------> admission.admit    pure policy: go, evict, wait or refuse
       |      measures what models take here
       v
    memory          this process, others, control groups; read in every process (host, manager, ``headrace doctor``)
"""
