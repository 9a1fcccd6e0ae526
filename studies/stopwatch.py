"""Wall and CPU seconds of calls, added up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Stopwatch:
    """Seconds spent in the functions it was put around; CPU seconds are the whole process's."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """The same function, timed."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            wall, cpu = time.monotonic(), time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.wall += time.monotonic() - wall
                self.cpu += time.process_time() - cpu

        return timed
