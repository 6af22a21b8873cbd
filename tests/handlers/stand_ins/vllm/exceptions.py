"""As vLLM has them: none is a ValueError."""


class VLLMError(Exception):
    pass


class VLLMServerError(VLLMError):
    pass


class VLLMValidationError(VLLMError):
    pass
