"""Model handlers, a file for each framework's; entry points find them by name, nothing imports them.

::

    <framework>_inference.py   the handlers; imports core and the framework, and names the extra that brings it
    <framework>_generation.py, <framework>_engine.py   the same for language models, over engines (core.engine)
    <framework>_arrays.py      how the framework's arrays travel between processes (an ArrayCodec of core.arrays)
    base.py                    what handlers share: where the model is, how batches and columns are run
    unmappable_arrays.py       codecs of frameworks whose models processes cannot map
    model_recognition.py       which handler runs a model's file; imports no framework
    array_batches.py, data_frames.py, torch_models.py                            batches of examples, and where they go
    huggingface_models.py, huggingface_engines.py, vllm_server.py, vllm_guard.py  parts of one framework's handlers
    generation.py, prompts.py  what handlers of language models share: prompts, what is generated, restarts
    text_endpoints.py, chat_endpoints.py                                         language models behind an API
    batch_jobs.py, batch_store.py                                                providers' Batch APIs
    cards.py                   the table that ``headrace handlers`` prints; imports no framework
"""
