"""Model handlers, a file for each framework's; entry points find them by name, nothing imports them.

::

    <framework>_inference.py   the handlers; imports core and the framework, and names the extra that brings it
    <framework>_arrays.py      how the framework's arrays travel between processes (an ArrayCodec of core.arrays)
    base.py                    what handlers share: where the model is, model ids
    array_batches.py, torch_tensors.py, torch_devices.py       batches of examples, and where they go
    sklearn_models.py, sklearn_pandas.py, huggingface_classes.py, huggingface_tasks.py, tensorflow_files.py,
    tensorrt_engine.py, vllm_server.py, vllm_guard.py          parts of one framework's handlers
    cards.py                   the table that ``headrace handlers`` prints; imports no framework
"""
