"""What is due when: tasks with one time each, run in order of time by a loop that has the clock."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from distrlcc.sim.link import NEVER


class Task:
    """Something that an `Agenda` runs with the time, ns."""

    __slots__ = ("planned", "run")

    def __init__(self, run: Callable[[int], None]) -> None:
        """Take what is to be run."""
        self.run = run
        self.planned = NEVER
        """When it runs; whoever drops a task sets `NEVER`."""


class Agenda:
    """Tasks by their times."""

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[tuple[int, int, Task]] = []
        self._count = itertools.count()

    def plan(self, task: Task, time: int) -> None:
        """Run a task at a time, ns, unless it runs before that already."""
        if time < task.planned:
            task.planned = time
            heapq.heappush(self._heap, (time, next(self._count), task))

    def next_time(self) -> int:
        """Return when `run` has something to do, ns; it may turn out to be nothing."""
        return self._heap[0][0] if self._heap else NEVER

    def run(self, *, now: int) -> None:
        """Run what is due at a time, but not what is planned for it meanwhile."""
        heap, due = self._heap, []
        while heap and heap[0][0] <= now:
            time, _, task = heapq.heappop(heap)
            if task.planned == time:
                task.planned = NEVER
                due.append(task)
        for task in due:
            task.run(now)
