"""A stand-in for an OpenTelemetry collector: an HTTP server on localhost that decodes what is exported to it."""

from __future__ import annotations

import gzip
import threading
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Collector(ThreadingHTTPServer):
    """Keeps the points of metrics by their name and the process that sent them, and spans."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.points = {}
        """The latest, by instrument, attributes, and instance of the service: temporality is cumulative."""
        self.spans = []
        self.services = set()
        self.received = b""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def total(self, name, **attributes):
        """The sum of a counter, or of a histogram's values, over all that sent it, with these attributes."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        return sum(
            point.sum if hasattr(point, "bucket_counts") else point.as_int or point.as_double
            for (found, having, _), point in self.points.items()
            if found == name and wanted.items() <= dict(having).items()
        )

    def names(self):
        return {name for name, *_ in self.points}

    def instances(self, name):
        """Who sent an instrument's values."""
        return {instance for found, _, instance in self.points if found == name}

    def trees(self):
        """Of each span without a parent here, its name with the sorted names of its children."""
        children = defaultdict(list)
        for span in self.spans:
            children[span.parent_span_id].append(span)
        return [(span.name, sorted(child.name for child in children[span.span_id])) for span in children[b""]]

    def take_metrics(self, content):
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        for of_resource in ExportMetricsServiceRequest.FromString(content).resource_metrics:
            instance = self._instance(of_resource.resource)
            for metric in (metric for scope in of_resource.scope_metrics for metric in scope.metrics):
                kind = metric.WhichOneof("data")
                for point in getattr(metric, kind).data_points:
                    self.points[metric.name, attributes_of(point), instance] = point

    def take_traces(self, content):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for of_resource in ExportTraceServiceRequest.FromString(content).resource_spans:
            self._instance(of_resource.resource)
            self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]

    def _instance(self, resource):
        found = dict(attributes_of(resource))
        self.services.add(found["service.name"])
        return found["service.instance.id"]


def attributes_of(message):
    """The attributes of a message, sorted, as plain values."""
    return tuple(sorted((one.key, getattr(one.value, one.value.WhichOneof("value"))) for one in message.attributes))


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        with self.server.lock:
            self.server.received += content
            {"/v1/metrics": self.server.take_metrics, "/v1/traces": self.server.take_traces}[self.path](content)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""


@contextmanager
def collecting():
    """A collector that listens while the context is open."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()
