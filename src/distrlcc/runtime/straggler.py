"""Cuts a rollout short when most others have finished theirs (DD-PPO, arXiv 1911.00357).

The count of finished rollouts is asked of the master's store, at most every few milliseconds and
for at most two percent of the time, so that it costs nothing where nobody is slow.
"""

from __future__ import annotations

import math
from time import perf_counter

from distrlcc.runtime.process_group import ProcessGroup
from distrlcc.runtime.run_config import DistributedConfig

_INTERVAL_SECONDS = 0.005
_COST = 50.0
"""Time between two questions, in times of the last one's duration."""


class StragglerRule:
    """Says when to stop; one for each rollout."""

    def __init__(
        self, group: ProcessGroup, config: DistributedConfig, length: int, *, exempt: bool = False
    ) -> None:
        """Start the clock of a rollout of ``length`` rows; one that is exempt is never cut."""
        self._group, self._config = group, config
        self._needed = max(1, math.ceil(config.straggler_share * (group.size - 1) - 1e-9))
        self._least = max(1, math.ceil(config.straggler_minimum * length))
        self._off = exempt or config.straggler_share == 0.0 or group.size < 2
        self._begin = perf_counter()
        self._next = 0.0
        self._deadline = math.inf

    def __call__(self, rows: int) -> bool:
        """Say whether to stop after this many rows."""
        if self._off or rows < self._least:
            return False
        now = perf_counter()
        if now >= self._next and self._deadline == math.inf:
            finished = self._group.others_finished()
            asked = perf_counter()
            self._next = asked + max(_INTERVAL_SECONDS, _COST * (asked - now))
            if finished >= self._needed:
                self._deadline = now + self._config.straggler_grace * (now - self._begin)
        return now >= self._deadline
