"""What the errors of the official clients of endpoints have in common, and what they say of single examples."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from headrace.core.errors import ConfigurationError, EndpointError, PredictionCountError, as_type_name
from headrace.core.remote import ElementFailure, ElementRetry
from headrace.handlers.json_answers import InvalidAnswerError

BAD = (400, 413, 422)
WRONG = (401, 403, 404)
REFUSED = (*BAD, *WRONG)
"""Either the example is at fault, or what all requests have: the arguments, the key, the URL, the model."""
_OWN = (InvalidAnswerError, PredictionCountError, UnicodeError)
"""About what is in an answer, which was paid for, or about a prompt that cannot be sent."""

NO_KEY = "none"
"""What servers are sent that need no key, by clients that want one."""

_PASSING = (408, 409, 425, 429)
"""Those of the statuses 400 to 499 that may pass."""


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an endpoint's answer; None: there was none."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def is_final(status: int | None) -> bool:
    """Whether the same request would get this status again."""
    return status is not None and 400 <= status < 500 and status not in _PASSING


def explain(error: BaseException) -> None:
    """Lets an error of a client say why, where it only says "Error code: 422", or "Connection error."."""
    body = getattr(error, "body", None)
    if status_of(error) is not None and body and str(error) == f"Error code: {status_of(error)}":
        said = body.get("detail", body) if isinstance(body, Mapping) else body  # as FastAPI words it
        error.args = (f"{error} - {said!s:.300}",)
    root = error
    while (cause := root.__cause__ or (None if root.__suppress_context__ else root.__context__)) is not None:
        root = getattr(cause, "exceptions", (cause,))[0]  # of several addresses, the first says enough
    if root is not error and status_of(error) is None and hasattr(error, "request") and str(root) not in str(error):
        error.args = (f"{error} {as_type_name(root)}: {root}",)


async def settled(examples: Sequence[Any], answer: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """The answers for examples that are asked for side by side; an error in the place of one that failed."""
    if len(examples) != 1:
        return await asyncio.gather(*map(answer, examples), return_exceptions=True)
    try:
        return [await answer(examples[0])]
    except Exception as error:
        return [error]


def outcomes_of(found: Sequence[Any], *, others_are_accepted: bool = False) -> list[Any]:
    """What to answer for examples with a request each: their answers, and what stands for those that failed.

    Raises the error of the only example, and one that concerns all: unless ``others_are_accepted``, also 401, 403 and
    404 for every one of these.
    """
    errors = [one for one in found if isinstance(one, BaseException)]
    if errors and len(errors) == len(found):
        are_wrong = all(status_of(error) in WRONG for error in errors)
        is_alone = len(found) == 1 and not are_wrong and not isinstance(errors[0], _OWN)
        if is_alone or (are_wrong and not others_are_accepted):
            raise errors[0]
    return [outcome_of(one) for one in found]


def outcome_of(answer: Any, *, may_pass: bool = True) -> Any:
    """What became of one of several examples: its answer, or what stands for it if its request failed.

    Raises an error that concerns all. ``may_pass``: whether to send requests again whose errors may pass.
    """
    if not isinstance(answer, BaseException):
        return answer
    if not isinstance(answer, Exception) or isinstance(answer, EndpointError | ConfigurationError):
        raise answer
    is_lasting = not may_pass or isinstance(answer, _OWN) or is_final(status_of(answer))
    return ElementFailure(answer) if is_lasting else ElementRetry(answer)
