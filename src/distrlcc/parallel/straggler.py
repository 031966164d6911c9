"""Cuts a rollout short when most others have finished theirs (DD-PPO, arXiv 1911.00357).

The count of finished rollouts is asked of the master's store, but only once the others should have
finished by the pace of their last rollouts, and for at most two percent of the time. So it costs
nothing where nobody is slow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter

from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.runs.run_config import DistributedConfig

_INTERVAL_SECONDS = 0.005
_COST = 50.0
"""Time between two questions, in times of the last one's duration."""


class StragglerRule:
    """Says when to stop; one for each rollout."""

    def __init__(
        self,
        group: ProcessGroup,
        config: DistributedConfig,
        length: int,
        paces: Sequence[float] = (),
        *,
        exempt: bool = False,
    ) -> None:
        """Start the clock of a rollout.

        Args:
            group: Whose others are asked after.
            config: When to cut.
            length: Rows of a whole rollout.
            paces: Each rank's time per row in the last rollout, s; empty where it is not known.
            exempt: Never cut this one.
        """
        self._group, self._config = group, config
        self._needed = max(1, math.ceil(config.straggler_share * (group.size - 1) - 1e-9))
        self._least = max(1, math.ceil(config.straggler_minimum * length))
        self._off = exempt or config.straggler_share == 0.0 or group.size < 2
        self._begin = self._next = perf_counter()
        if paces and not self._off:
            others = sorted(pace for rank, pace in enumerate(paces) if rank != group.rank)
            self._next += length * others[self._needed - 1]
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
