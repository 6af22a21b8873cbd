"""Where a model lives: in the worker process, shared by its threads, or in a host, a process of its own beside it."""
