"""A server on localhost that speaks the KServe protocol over HTTP and gRPC, with small models and the faults of a test.

It reads and writes tensors itself: what it has in common with Triton's client are the messages of gRPC.
"""

from __future__ import annotations

import json
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any, NamedTuple

import grpc
import numpy
from tritonclient.grpc import service_pb2, service_pb2_grpc

from http_endpoint import Answer, Replying, running

DTYPES = {
    "BOOL": "bool",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    **{f"{sign.upper()}INT{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
NAMES = {numpy.dtype(name): datatype for datatype, name in DTYPES.items()}


class Refusal(NamedTuple):
    """What the server answers in place of a prediction."""

    status: int
    code: str = "UNKNOWN"
    headers: dict[str, str] = {}


class Served(NamedTuple):
    """A model: its inputs as (name, datatype, shape), and a function from arrays by name to such."""

    inputs: list[tuple[str, str, list[int]]]
    predict: Any


def total(arrays):
    return {"total": arrays["x"].sum(axis=1)}


def shouted(arrays):
    words = [word.decode().upper().encode() for word in arrays["text"].ravel()]
    return {"shout": numpy.array(words, dtype=object).reshape(arrays["text"].shape)}


def mixed(arrays):
    return {"sum": arrays["a"] + arrays["b"], "first": arrays["a"]}


MODELS = {
    "total": Served([("x", "FP32", [-1, 3])], total),
    "unsaid": Served([], lambda arrays: {"same": next(iter(arrays.values()))}),
    "shout": Served([("text", "BYTES", [-1, 1])], shouted),
    "mixed": Served([("a", "INT64", [-1]), ("b", "INT64", [-1])], mixed),
    "single": Served([("x", "FP32", [1, 3])], total),
    "unbatched": Served([("x", "FP32", [3])], lambda arrays: {"y": arrays["x"] * 2}),
    "short": Served([("x", "FP32", [-1, 3])], lambda arrays: {"y": arrays["x"][:1]}),
    "silent": Served([("x", "FP32", [-1, 3])], lambda arrays: {}),
    **{
        f"same-{name}": Served([("x", name, [-1, 2])], lambda arrays: {"y": arrays["x"]}) for name in (*DTYPES, "BYTES")
    },
}


def texts_from(data):
    texts, start = [], 0
    while start < len(data):
        (length,) = struct.unpack_from("<I", data, start)
        texts.append(data[start + 4 : start + 4 + length])
        start += 4 + length
    return texts


def array_from(data, datatype, shape):
    """A tensor as it is in memory."""
    if datatype != "BYTES":
        return numpy.frombuffer(data, DTYPES[datatype]).reshape(shape)
    array = numpy.empty(int(numpy.prod(shape)), dtype=object)
    array[:] = texts_from(data)
    return array.reshape(shape)


def data_of(array):
    if array.dtype != object:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(text)) + text for text in array.ravel())


def datatype_of(array):
    return "BYTES" if array.dtype == object else NAMES[array.dtype]


class KServeServer:
    """Answers over HTTP and gRPC.

    Args:
        fault: from (model, shapes of its inputs, how many requests came before) to a Refusal; None: all is well.
        binary: whether it takes tensors as they are in memory over HTTP.
        typed: whether it answers over gRPC with numbers.
    """

    def __init__(self, fault=lambda model, shapes, before: None, binary=True, typed=False):
        self.fault, self.binary, self.typed = fault, binary, typed
        self.requests = []
        self.headers = []
        self.parameters = []
        self.lock = threading.Lock()

    def predict(self, model, arrays, headers, parameters, wanted):
        """The outputs, or a Refusal."""
        shapes = {name: array.shape for name, array in arrays.items()}
        with self.lock:
            before = len(self.requests)
            self.requests.append(shapes)
            self.headers.append({name.lower(): value for name, value in headers})
            self.parameters.append(parameters)
        refusal = self.fault(model, shapes, before)
        if refusal is not None:
            return refusal
        outputs = MODELS[model].predict(arrays)
        return {name: array for name, array in outputs.items() if not wanted or name in wanted}


class _OverHttp(Replying):
    def answer(self, data):
        if self.command == "POST":
            return self.predicted(data)
        if self.path == "/v2":
            extensions = ["binary_tensor_data"] if self.server.kserve.binary else []
            return Answer(body={"name": "test", "version": "1", "extensions": extensions})
        model = MODELS.get(self.path.split("/")[3])
        if model is None:
            return Answer(404, {"error": "Request for unknown model"})
        inputs = [dict(zip(("name", "datatype", "shape"), one, strict=True)) for one in model.inputs]
        return Answer(body={"name": "m", "platform": "test", "inputs": inputs, "outputs": []})

    def predicted(self, body):
        server = self.server.kserve
        size = int(self.headers.get("Inference-Header-Content-Length", len(body)))
        asked, data, arrays = json.loads(body[:size]), body[size:], {}
        for tensor in asked["inputs"]:
            length = tensor.get("parameters", {}).get("binary_data_size")
            assert (length is not None) == server.binary
            if length is not None:
                arrays[tensor["name"]] = array_from(data[:length], tensor["datatype"], tensor["shape"])
                data = data[length:]
            elif tensor["datatype"] == "BYTES":
                texts = numpy.array([text.encode() for text in tensor["data"]], dtype=object)
                arrays[tensor["name"]] = texts.reshape(tensor["shape"])
            else:
                numbers = numpy.array(tensor["data"], DTYPES[tensor["datatype"]])
                arrays[tensor["name"]] = numbers.reshape(tensor["shape"])
        parameters = {name: value for name, value in asked.get("parameters", {}).items() if "binary" not in name}
        wanted = [one["name"] for one in asked.get("outputs", [])]
        model = self.path.split("/")[3]
        found = server.predict(model, arrays, self.headers.items(), parameters, wanted)
        if isinstance(found, Refusal):
            return Answer(found.status, {"error": "refused"}, found.headers)
        return self.with_outputs(found)

    def with_outputs(self, outputs):
        described, data = [], []
        for name, array in outputs.items():
            one = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
            if self.server.kserve.binary:
                data.append(data_of(array))
                one["parameters"] = {"binary_data_size": len(data[-1])}
            else:
                flat = array.ravel().tolist()
                one["data"] = [item.decode() if isinstance(item, bytes) else item for item in flat]
            described.append(one)
        text = json.dumps({"model_name": "m", "outputs": described}).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))} if data else {}
        return Answer(200, text + b"".join(data), headers)


class _OverGrpc(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, server):
        self.server = server

    def ModelMetadata(self, request, context):
        model = MODELS.get(request.name)
        if model is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "Request for unknown model")
        answer = service_pb2.ModelMetadataResponse(name=request.name)
        for name, datatype, shape in model.inputs:
            answer.inputs.add(name=name, datatype=datatype, shape=shape)
        return answer

    def ModelInfer(self, request, context):
        raw = zip(request.inputs, request.raw_input_contents, strict=True)
        arrays = {one.name: array_from(data, one.datatype, list(one.shape)) for one, data in raw}
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in request.parameters.items()
        }
        wanted = [one.name for one in request.outputs]
        metadata = [(item.key, item.value) for item in context.invocation_metadata()]
        found = self.server.predict(request.model_name, arrays, metadata, parameters, wanted)
        if isinstance(found, Refusal):
            context.abort(getattr(grpc.StatusCode, found.code), "refused")
        answer = service_pb2.ModelInferResponse(model_name=request.model_name)
        for name, array in found.items():
            output = answer.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
            if self.server.typed:
                field = {"f": f"fp{8 * array.itemsize}", "i": "int", "u": "uint", "b": "bool", "O": "bytes"}[
                    array.dtype.kind
                ]
                field += "64" if field.endswith("int") and array.itemsize == 8 else ""
                getattr(output.contents, f"{field}_contents").extend(array.ravel().tolist())
            else:
                answer.raw_output_contents.append(data_of(array))
        return answer


@contextmanager
def serving(protocol="http", port=0, **options):
    """A server and where it is."""
    kserve = KServeServer(**options)
    kserve.protocol = protocol
    if protocol == "grpc":
        sizes = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0), *sizes])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_OverGrpc(kserve), server)
        kserve.url = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        server.start()
        try:
            yield kserve
        finally:
            server.stop(None).wait()
        return
    server = ThreadingHTTPServer(("127.0.0.1", port), _OverHttp)
    server.kserve, server.daemon_threads = kserve, True
    kserve.url = f"http://127.0.0.1:{server.server_port}"
    with running(server):
        yield kserve
