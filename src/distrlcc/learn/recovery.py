"""What is done about a collapse: the last good state comes back, and exploration with it.

Every rank sees the same sums of all ranks' statistics, so each decides alike and in the same
update, and nothing has to be exchanged. What counts a run's progress goes on: the weights' version,
which names draws and which actors compare, and the environment steps, by which schedules go.
"""

from __future__ import annotations

from typing import Any, Protocol

from distrlcc.learn.alarm import CollapseAlarm
from distrlcc.learn.alarm_config import AlarmConfig


class Recovering(Protocol):
    """A learner that explores, so that it can find its way back."""

    def shared_state(self) -> dict[str, Any]:
        """Return what is the same on all ranks."""
        ...

    def recover(self, good: dict[str, Any], alarm: AlarmConfig) -> None:
        """Take an earlier :meth:`shared_state`, but for what counts progress; explore more."""
        ...


class Recovery:
    """Keeps copies of a learner's state, and gives one back where the alarm stays on."""

    def __init__(self, config: AlarmConfig, learner: Recovering) -> None:
        """Take the learner as it begins for the first good state."""
        self._config, self._learner = config, learner
        self._good = self._newest = learner.shared_state()
        self._in_a_row = 0
        self._rests_until = 0
        self.restores = 0
        """How often the learner was restored in this run."""

    def watch(self, alarm: CollapseAlarm, update: int) -> str | None:
        """Act on the alarm as it is after an update; return a line if the state was restored.

        Args:
            alarm: Has checked the update's statistics.
            update: Updates so far.
        """
        config = self._config
        self._in_a_row = self._in_a_row + int(alarm.confirmed) if alarm.on else 0
        if not alarm.on:
            if update % config.keep_every == 0 and update >= self._rests_until:
                self._good, self._newest = self._newest, self._learner.shared_state()
            return None
        patience = 1 if alarm.diverged else config.patience
        due = self._in_a_row >= patience and update >= self._rests_until
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
        return {
            "good": self._good,
            "newest": self._newest,
            "in_a_row": self._in_a_row,
            "rests_until": self._rests_until,
            "restores": self.restores,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        self._good, self._newest = state["good"], state["newest"]
        self._in_a_row = int(state["in_a_row"])
        self._rests_until = int(state["rests_until"])
        self.restores = int(state["restores"])
