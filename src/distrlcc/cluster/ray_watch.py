"""How a member of a cluster notices that the head is gone."""

from __future__ import annotations

import time

from distrlcc.cluster.ray_gate import gate_answers
from distrlcc.cluster.ray_state import Plan

SILENT_SECONDS = 20.0
"""A member whose head is out of reach for this long ends; the head has given it up by then."""
_LOOK_SECONDS = 2.0
_REFUSALS = 2


class HeadWatch:
    """Looks at the head's gate now and then; Ray itself may wait for a head for ever."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._heard = self._looked = time.monotonic()
        self._refused = 0

    def look(self) -> str:
        """Return why the head is to be given up; nothing while it is not."""
        now = time.monotonic()
        if self._plan.is_head or now - self._looked < _LOOK_SECONDS:
            return ""
        self._looked = now
        try:
            if gate_answers(self._plan.head, self._plan.ports.gate):
                self._heard, self._refused = time.monotonic(), 0
        except ConnectionRefusedError:
            self._refused += 1
        if self._refused >= _REFUSALS:
            return "the head has ended the cluster"
        if time.monotonic() - self._heard > SILENT_SECONDS:
            return f"the head was out of reach for {SILENT_SECONDS:.0f} s"
        return ""
