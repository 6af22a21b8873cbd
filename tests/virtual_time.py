"""An event loop and threads under a clock of their own: time goes on when nobody has anything to do."""

from __future__ import annotations

import asyncio
import math
import selectors
import threading

_LATEST_SECS = 3600.0
"""When every request is over, by the loop's clock."""


class Stuck(Exception):
    """Nothing will ever happen again."""


class Turns:
    """Has one thread run at a time; chance decides which one."""

    def __init__(self, chance):
        self.chance = chance
        self.now = 0.0
        self.due = {threading.current_thread(): 0.0}
        """When each thread has something to do."""
        self._may_run = {threading.current_thread(): threading.Semaphore(0)}

    def start(self, function):
        """Has a function run in a thread, in turn."""

        def run():
            self._may_run[thread].acquire()
            function()
            del self.due[thread]
            self._pass_on()

        thread = threading.Thread(target=run, daemon=True)
        self.due[thread], self._may_run[thread] = 0.0, threading.Semaphore(0)
        thread.start()
        return thread

    def switch(self):
        """Lets another thread run, perhaps; returns when it is the caller's turn again."""
        me = threading.current_thread()
        if me is not self._pass_on():
            self._may_run[me].acquire()

    def sleep(self, secs):
        """Lets the others run for so long."""
        self.due[threading.current_thread()] = self.now + secs
        self.switch()

    def _pass_on(self):
        chosen = self.chance.choice([thread for thread, due in self.due.items() if due <= self.now])
        if chosen is not threading.current_thread():
            self._may_run[chosen].release()
        return chosen


class Selector(selectors.DefaultSelector):
    """Where a loop waits: the clock goes on to whatever comes next."""

    def __init__(self, turns):
        super().__init__()
        self.turns = turns
        self.loop = None

    def select(self, timeout=None):
        turns = self.turns
        turns.switch()
        others = [due for thread, due in turns.due.items() if thread is not threading.current_thread()]
        wait = min(math.inf if timeout is None else timeout, min(others, default=math.inf) - turns.now)
        if not self.loop._ready:
            if math.isinf(wait) or turns.now > _LATEST_SECS:
                raise Stuck
            turns.now += max(0.0, wait)
        return []


class Loop(asyncio.SelectorEventLoop):
    def __init__(self, turns):
        self.turns = turns
        selector = Selector(turns)
        super().__init__(selector)
        selector.loop = self

    def time(self):
        return self.turns.now


class EventLoopInTurn:
    """Has what an ``Dispatcher`` uses of an ``EventLoop``."""

    def __init__(self, turns):
        self.turns = turns
        self.loop = Loop(turns)

    def is_busy(self):
        return False

    def call(self, function, *args):
        self.turns.switch()
        self.loop.call_soon(function, *args)
