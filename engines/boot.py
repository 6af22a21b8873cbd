"""Starts one SDK worker for an engine that starts its workers as processes (``--environment_type=PROCESS``).

It does what the program of that name does in Beam's containers, except for installing packages: the worker uses this
Python and its packages. This process becomes the worker, so killing it leaves no worker behind.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys

import grpc
from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
from google.protobuf.json_format import MessageToDict

_WORKER = "apache_beam.runners.worker.sdk_worker_main"
_PATIENCE_SECS = 60


def main() -> None:
    """Asks the engine what to do, and becomes the worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    known, _ = parser.parse_known_args()  # the other endpoints are told again
    info = _provisions(known.provision_endpoint, known.id)
    os.environ.update(_variables(info), WORKER_ID=known.id)
    sys.argv = [_WORKER]
    runpy.run_module(_WORKER, run_name="__main__", alter_sys=True)


def _provisions(endpoint: str, worker: str) -> beam_provision_api_pb2.ProvisionInfo:
    with grpc.insecure_channel(endpoint) as channel:
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        metadata = [("worker_id", worker)]
        return service.GetProvisionInfo(request, _PATIENCE_SECS, metadata, wait_for_ready=True).info


def _variables(info: beam_provision_api_pb2.ProvisionInfo) -> dict[str, str]:
    variables = {
        "PIPELINE_OPTIONS": json.dumps(MessageToDict(info.pipeline_options)),
        "LOGGING_API_SERVICE_DESCRIPTOR": str(info.logging_endpoint),
        "CONTROL_API_SERVICE_DESCRIPTOR": str(info.control_endpoint),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    if info.HasField("status_endpoint"):
        variables["STATUS_API_SERVICE_DESCRIPTOR"] = str(info.status_endpoint)
    return variables


if __name__ == "__main__":
    main()
