"""Ways of arrays through plain memory, with the codec of their framework."""

from __future__ import annotations

import copyreg
import pickle


def through_memory(codec, values):
    """Values stacked, and views on the memory in which they lie."""
    stacked = codec.stack(values)
    memory = bytearray(b"\xff" * stacked.nbytes)
    stacked.write(memoryview(memory))
    layout = pickle.loads(pickle.dumps(stacked.layout))
    return codec.unstack(layout, memoryview(memory), len(values)), memory


def pickled(codec, value):
    """An object that was pickled with the plug-in's reducers, and the sizes of the buffers beside the pickle."""
    return _pickled(codec.reducers(), value)


def moved(codec, value):
    """A value that was taken apart as whole models are, and put together on other memory; and the buffers' sizes."""
    return _pickled(codec.exporters(), value)


def _pickled(reducers, value):
    pieces, buffers = [], []
    file = type("File", (), {"write": pieces.append})
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = {**copyreg.dispatch_table, **reducers}
    pickler.dump(value)
    memories = [memoryview(bytearray(buffer.raw())) for buffer in buffers]
    return pickle.loads(b"".join(pieces), buffers=memories), list(map(len, memories))
