"""As vLLM has them."""

from vllm.exceptions import VLLMServerError


class EngineGenerateError(VLLMServerError):
    pass


class EngineDeadError(VLLMServerError):
    def __init__(self, *args, suppress_context: bool = False, **kwargs):
        super().__init__("EngineCore encountered an issue. See stack trace (above) for the root cause.", *args)
