"""Watches for a policy that collapses: certain of everything, or fallen silent."""

from __future__ import annotations

import math
from typing import Any

from distrlcc.learn.collect_stats import CollectStats

_NAMES = ("entropy", "silent", "weights")


class CollapseAlarm:
    """Says once when a collapse starts, and again only after it has passed.

    A sender that has shrunk its window to the minimum sees nothing that would tell it to grow, and
    a policy without entropy tries nothing else: there is no way back from the two together.
    """

    def __init__(self, entropy_bound: float = 0.02, silent_share_bound: float = 0.2) -> None:
        """Set the bounds.

        Args:
            entropy_bound: Mean entropy below this is an alarm, nats; ``-inf`` turns it off, as
                imitation needs, whose entropy is meant to vanish.
            silent_share_bound: More than this share of ended episodes with the window at its
                minimum nearly throughout is an alarm.
        """
        self._entropy_bound = entropy_bound
        self._silent_share_bound = silent_share_bound
        self._active: set[str] = set()
        self.diverged = False
        """Whether the newest collection's entropy was not a number."""
        self.confirmed = False
        """Whether the newest collection itself showed a collapse: silence shows in episodes that
        end, and where none does nothing was learned of it."""

    @property
    def on(self) -> bool:
        """Whether a collapse was seen that has not passed."""
        return bool(self._active)

    def check(self, stats: CollectStats, *, finite: bool = True) -> str | None:
        """Look at one collection; return a line to show, or None.

        Args:
            stats: What was seen.
            finite: Whether the weights that were learned from it are numbers.
        """
        lines = []
        entropy = stats.entropy / max(stats.steps, 1.0)
        self.diverged = not (finite and math.isfinite(entropy))
        if self._starts("weights", not finite):
            lines.append("the weights are not numbers any more: training diverged; lower lr")
        # Written so that an entropy that is not a number, as after divergence, rings as well.
        if self._starts("entropy", stats.steps > 0 and not entropy >= self._entropy_bound):
            lines.append(
                f"the policy's entropy fell to {entropy:.3g} nats (bound "
                f"{self._entropy_bound:.3g}): it no longer explores; raise entropy_coeff or lower "
                "lr"
            )
        if stats.episodes > 0:
            share = stats.silent_episodes / stats.episodes
            if self._starts("silent", share > self._silent_share_bound):
                lines.append(
                    f"{share:.0%} of episodes kept the window at its minimum nearly throughout "
                    f"(bound {self._silent_share_bound:.0%}): the policy has fallen silent; lower "
                    "the reward's weight on delay and loss"
                )
        self.confirmed = bool({"entropy", "weights"} & self._active) or (
            self.on and stats.episodes > 0
        )
        return "; ".join(lines) or None

    def reset(self) -> None:
        """Ring again for a collapse that goes on."""
        self._active.clear()

    def _starts(self, name: str, active: bool) -> bool:
        started = active and name not in self._active
        if active:
            self._active.add(name)
        else:
            self._active.discard(name)
        return started

    def state_dict(self) -> dict[str, Any]:
        """Return which alarms are on."""
        return {name: int(name in self._active) for name in _NAMES}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        self._active = {name for name, active in state.items() if active}
