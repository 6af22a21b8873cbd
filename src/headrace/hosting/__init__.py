"""Where a model lives. In this version: in the worker process, one copy shared by its threads."""
