"""As vLLM has them: none is a ValueError."""


class EngineGenerateError(Exception):
    pass


class EngineDeadError(Exception):
    def __init__(self, *args, suppress_context: bool = False, **kwargs):
        super().__init__("EngineCore encountered an issue. See stack trace (above) for the root cause.", *args)
