"""A policy that collapses: `CollapseAlarm` sees it, `Restorer` brings the last good state back.

Every rank sees the same sums of all ranks' statistics, so each decides alike in the same update and
nothing is exchanged. The counts of a run's progress go on: the weights' version, which names draws
and which actors compare, and the environment steps, which schedules follow.
"""

import math
from typing import Any

from distrlcc.learn.collect import CollectStats
from distrlcc.learn.config import AlarmConfig
from distrlcc.learn.ppo import PPO
from distrlcc.types import copy_state, restore_state

_NAMES = ("entropy", "silent", "weights")
_EPISODES = 10  # that must have ended before their silence is judged
_RESTORER = "good newest in_a_row rests_until restores"


class CollapseAlarm:
    """Says once when a collapse starts, and again only after it has passed.

    A sender at the least window sees nothing that would tell it to grow, and a policy without
    entropy tries nothing else. A policy with both never comes back.
    """

    def __init__(self, entropy_bound: float = 0.02, silent_share_bound: float = 0.2) -> None:
        """Set the bounds, see `AlarmConfig`; an entropy's of ``-inf`` turns that alarm off."""
        self._entropy_bound = entropy_bound
        self._silent_share_bound = silent_share_bound
        self._active: set[str] = set()
        self._episodes = self._silent = 0.0  # since silence was judged last
        self.diverged = False  # whether the newest collection's entropy was not a number
        self.confirmed = False
        """Whether the newest collection itself showed a collapse: silence shows once enough
        episodes have ended, and until then nothing was learned of it."""

    @property
    def on(self) -> bool:
        """Whether a collapse was seen that has not passed."""
        return bool(self._active)

    def check(self, stats: CollectStats, *, finite: bool = True) -> str | None:
        """Look at one collection; return a line to show, or None."""
        entropy = stats.entropy / max(stats.steps, 1.0)
        self.diverged = not (finite and math.isfinite(entropy))
        seen = {"weights": not finite}
        if stats.steps:  # an entropy that is not a number, as after divergence, rings as well
            seen["entropy"] = not entropy >= self._entropy_bound
        # A few episodes say little.
        self._episodes += stats.episodes
        self._silent += stats.silent_episodes
        share = self._silent / max(self._episodes, 1.0)
        if judged := self._episodes >= _EPISODES:
            seen["silent"] = share > self._silent_share_bound
            self._episodes = self._silent = 0.0
        told = {
            "weights": "training diverged: weights or gradients are no numbers any more; lower lr",
            "entropy": f"the policy's entropy fell to {entropy:.3g} nats (bound "
            f"{self._entropy_bound:.3g}): it no longer explores; raise entropy_coeff or lower lr",
            "silent": f"{share:.0%} of episodes kept the window at its minimum nearly throughout "
            f"(bound {self._silent_share_bound:.0%}): the policy has fallen silent; lower the "
            "reward's weight on delay and loss",
        }
        lines = [told[name] for name, on in seen.items() if on and name not in self._active]
        self._active = {name for name in _NAMES if seen.get(name, name in self._active)}
        self.confirmed = bool({"entropy", "weights"} & self._active) or (self.on and judged)
        return "; ".join(lines) or None

    def reset(self) -> None:
        """Ring again for a collapse that goes on."""
        self._active.clear()
        self._episodes = self._silent = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return which alarms are on, and how many episodes are still to be judged."""
        sums = {"episodes": self._episodes, "silent_episodes": self._silent}
        return {name: int(name in self._active) for name in _NAMES} | sums

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        self._active = {name for name in _NAMES if state[name]}
        self._episodes, self._silent = state.get("episodes", 0.0), state.get("silent_episodes", 0.0)


class Restorer:
    """Keeps copies of a learner's state, and gives one back where the alarm stays on."""

    def __init__(self, config: AlarmConfig, learner: PPO) -> None:
        self._config, self._learner = config, learner
        self._good = self._newest = learner.shared_state()
        self._in_a_row = self._rests_until = 0
        self.restores = 0  # how often the learner was restored in this run

    def watch(self, alarm: CollapseAlarm, update: int) -> str | None:
        """Act on the alarm as it is after an update; return a line if the state was restored."""
        config = self._config
        self._in_a_row = self._in_a_row + int(alarm.confirmed) if alarm.on else 0
        if not alarm.on:
            if update % config.keep_every == 0 and update >= self._rests_until:
                self._good, self._newest = self._newest, self._learner.shared_state()
            return None
        patience = 1 if alarm.diverged else config.patience
        due = self._in_a_row >= patience and (alarm.diverged or update >= self._rests_until)
        if not due or self.restores >= config.most_restores:
            return None
        self._learner.recover(self._good, config)
        self._newest = self._good
        self.restores += 1
        self._in_a_row = 0
        # Episodes that the collapsed policy began are still to end.
        self._rests_until = update + config.keep_every
        left = config.most_restores - self.restores
        return (
            f"collapse: restored the last good state and raised the entropy's weight for "
            f"{config.decay_updates} updates (restore {self.restores} of {config.most_restores}"
            + ("; from now on the alarm only warns)" if not left else ")")
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, the copies included."""
        return copy_state(self, _RESTORER)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        restore_state(self, _RESTORER, state)
