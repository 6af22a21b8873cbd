"""The contract of a handler whose engine takes requests one by one, and batches them itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from headrace.core.answer import wrong_count
from headrace.core.errors import ConfigurationError
from headrace.core.event_loop import result_of
from headrace.core.handler import ExampleT, ModelHandler, ModelT, PredictionT

_NOTHING = object()


class EngineModelHandler(ABC, ModelHandler[ExampleT, PredictionT, ModelT]):
    """Runs a model in an engine that takes requests one by one and batches them itself, as language models' engines do.

    A subclass implements ``load_model``, which returns the engine, and ``submit``. ``RunInference`` and ``predict``
    submit each element by itself, and keep as many with the engine as it takes, whichever bundle they are of; batching
    options have no effect. A prediction leaves as soon as it is ready. If an element fails, the others do not.

    Args:
        max_concurrent: how many requests an engine is given at a time: more than it computes together, so that it
            always finds one to go on with, and few enough for memory.
        options: those of ``headrace.ModelHandler``; with ``large_model=True`` all worker processes of the machine use
            one engine, in its own process, and with ``model_copies=N`` they share N, each on its own GPUs.

    Raises:
        ConfigurationError: ``max_concurrent`` is not a positive int; or an option about batches, which engines do not
            take.
    """

    mappable = False
    takes_batching_options: ClassVar[bool] = False
    """Whether options about batches are no error; they have no effect but in Beam's own RunInference."""
    gen_ai: tuple[str, str] = ("", "")
    """As that of a ``RemoteModelHandler``."""

    def __init__(self, *, max_concurrent: int = 256, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(max_concurrent, int) or isinstance(max_concurrent, bool) or max_concurrent < 1:
            raise ConfigurationError(f"max_concurrent must be an int, at least 1, not {max_concurrent!r}.")
        if self._batching_kwargs and not self.takes_batching_options:
            raise ConfigurationError(
                f"{type(self).__qualname__} takes elements one by one, and its engine batches them: leave out "
                f"{', '.join(sorted(self._batching_kwargs))}; max_concurrent says how many it is given at a time."
            )
        self.max_concurrent = max_concurrent

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """Each element leaves at once."""
        return {"max_batch_size": 1}

    @abstractmethod
    def load_model(self) -> Any:
        """Starts the engine and returns it; may be ``async def``, and then runs where ``submit`` does.

        An engine ends when nothing refers to it any longer: give it a finalizer if it has threads or processes.
        """

    @abstractmethod
    def submit(
        self, example: ExampleT, model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> Awaitable[PredictionT] | concurrent.futures.Future[PredictionT] | AsyncIterator[PredictionT]:
        """Gives the engine one example; runs in an event loop and must not block. Usually ``async def``.

        Args:
            example: one element.
            model: the engine.
            inference_args: extra arguments, given to ``RunInference``.

        Returns:
            What to wait for: an awaitable or a future of the prediction, or an asynchronous iterator whose last item
            is the prediction. It is cancelled when the time limit of the request is over, and when its bundle is
            abandoned: the engine should then drop the request.

        Raises:
            Exception: the example fails; the others are not affected.
        """

    def prefix(self, example: ExampleT) -> str | None:
        """What requests that wait are sorted by, so that those that begin alike go together; None: they are not.

        Engines compute a common prefix of prompts once if they still have it in memory: so it also decides which of
        several copies of an engine gets a request.
        """
        return None

    def run_inference(
        self, batch: Sequence[ExampleT], model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionT]:
        """Submits a batch and waits for all predictions. The transforms do not call it.

        Raises:
            Exception: that of the first example that failed.
        """
        predictions: list[PredictionT] = result_of(predict_each(self, batch, model, inference_args))
        return predictions


async def predict_each(
    handler: EngineModelHandler[Any, Any, Any], examples: Iterable[Any], engine: Any, inference_args: Any
) -> list[Any]:
    """Submits examples and waits for all predictions; raises the error of the first that failed."""
    tasks = [_predict(handler, example, engine, inference_args) for example in examples]
    found = await asyncio.gather(*tasks, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


async def _predict(handler: EngineModelHandler[Any, Any, Any], example: Any, engine: Any, inference_args: Any) -> Any:
    submitted: Any = handler.submit(example, engine, inference_args)
    if isinstance(submitted, concurrent.futures.Future):
        return await asyncio.wrap_future(submitted)
    if inspect.isawaitable(submitted):
        return await submitted
    caller = f"{type(handler).__qualname__}.submit"
    if not isinstance(submitted, AsyncIterator):
        raise ConfigurationError(
            f"{caller} must return an awaitable, a future or an asynchronous iterator, not {submitted!r:.80}; write "
            "async def submit."
        )
    prediction: Any = _NOTHING
    async for one in submitted:
        prediction = one
    if prediction is _NOTHING:
        raise wrong_count(caller, 1, 0)
    return prediction
