"""Callers without an event loop share one; coroutines of one task may have contexts of their own."""

from __future__ import annotations

import asyncio
import contextvars
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.event_loop import in_context, result_of


async def running_loop():
    return asyncio.get_running_loop()


def double(number):
    async def doubled():
        await asyncio.sleep(0)
        return 2 * number

    return result_of(doubled())


def test_calls_of_all_threads_run_in_one_loop():
    with ThreadPoolExecutor(4) as threads:
        loops = set(threads.map(lambda _: result_of(running_loop()), range(8)))
    assert len(loops) == 1


def test_caller_may_have_a_loop_of_its_own():
    async def within():
        return double(4)

    assert asyncio.run(within()) == 8


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork, in a process that has threads
def test_forked_child_has_a_loop_of_its_own():
    double(1)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(double, (4,)).get(60) == 8


PLACE = contextvars.ContextVar("place", default="nowhere")


def test_what_is_raised_goes_into_a_coroutine_with_another_context_and_out_of_it():
    async def stubborn():
        try:
            await asyncio.Future()
        except asyncio.CancelledError as error:
            raise LookupError(PLACE.get()) from error

    async def cancelled():
        task = asyncio.current_task()
        PLACE.set("abroad")
        context = contextvars.copy_context()
        PLACE.set("home")
        asyncio.get_running_loop().call_soon(task.cancel)
        await in_context(context, stubborn())

    with pytest.raises(LookupError, match="abroad"):
        asyncio.run(cancelled())
