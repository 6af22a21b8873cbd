"""``device=`` of handlers, where it is written out and names no device."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst

from headrace.migrate.findings import Finding
from headrace.migrate.imports import FileImports
from headrace.migrate.names import find_counterpart

_DEVICE = re.compile(
    r"(?:cpu|gpu|cuda|ipu|xpu|mkldnn|opengl|opencl|ideep|hip|ve|fpga|maia|xla|lazy|vulkan|mps|meta|hpu|mtia|privateuseone)"
    r"(?::\d+)?",
    re.IGNORECASE,
)
"""Beam's names of devices, and PyTorch's."""


def device_findings(imports: FileImports) -> Iterator[Finding]:
    """Arguments of the handlers that move."""
    calls = {use.node: use for use in imports.uses if find_counterpart(use.path)}
    for call in imports.nodes_of(libcst.Call):
        if call.func not in calls:
            continue
        for argument in call.args:
            if argument.keyword is None or argument.keyword.value != "device":
                continue
            for literal in _literals(argument.value):
                text = literal.evaluated_value
                if isinstance(text, str) and not _DEVICE.fullmatch(text):
                    message = f"device={text!r} names no device: give 'CPU', 'GPU' or, say, 'cuda:1'."
                    yield imports.finding(literal, message)


def _literals(value: libcst.BaseExpression) -> Iterator[libcst.SimpleString]:
    """The texts that a value may be, as far as it says."""
    if isinstance(value, libcst.SimpleString):
        yield value
    elif isinstance(value, libcst.IfExp):
        yield from (*_literals(value.body), *_literals(value.orelse))
    elif isinstance(value, libcst.BooleanOperation):
        yield from (*_literals(value.left), *_literals(value.right))
