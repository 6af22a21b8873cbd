"""Moves bytes between processes on one machine: messages, batches, exceptions, progress and model weights.

Request:   client (hosts/connection.py)                     host (hosts/host.py)

           codec.encode                                     codec.decode
             columns.RowEncoder     rows -> columns -> rows   columns.RowDecoder
             serialization.pickled  large buffers apart
           segment.SegmentPool ==== shared memory ========> segment.PeerSegments
           channel.Channel -------- pickles, descriptors,-> channel.Channel
                                    small messages whole

Response:  the same from right to left; serialization makes errors picklable in the host, and attaches their remote
           traceback in the client

progress.py      a host marks what it is doing; its clients read it, even when the host hangs or is dead
weights_file.py  a host moves a loaded model into a file; fork servers, other hosts and worker processes map it
"""
