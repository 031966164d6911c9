"""The training loop, which every way of training runs: read `train` from top to bottom.

docs/architecture.md has a table of which `Source`, `Learner` and `Group` make each way.
"""

import numbers
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from distrlcc.errors import ConfigError
from distrlcc.learn.collect import MOST_LATE_LEARNED, CollectStats
from distrlcc.learn.learner import InterruptedUpdateError, NotFiniteError
from distrlcc.plugins import short
from distrlcc.runs.options import Watch
from distrlcc.runs.recorder import Leader, Recorder
from distrlcc.runs.run_state import RunState
from distrlcc.runs.source import Stop
from distrlcc.runs.stopper import Stopper


@dataclass
class Agreed:
    """Results of an update that all took part in."""

    stats: CollectStats  # sums over ranks
    metrics: dict[str, float]
    seconds: dict[str, float] = field(default_factory=dict)
    """Parts of the update's time that were not spent learning, s, by name."""
    counts: Sequence[float] = ()  # sums over ranks of `Source.counts`
    events: list[str] = field(default_factory=list)
    """Which ranks left and joined, and why the update was refused."""
    learned: bool = True  # whether anything was learned; else the update was refused and undone
    finite: bool = True  # whether all numbers were finite


class Group(Protocol):
    """The ranks that learn together."""

    def stop(self, state: RunState) -> Stop | None:
        """Return what cuts the next batch short where the others wait for it."""
        return None

    def update(self, state: RunState, batch: Any, stats: CollectStats) -> Agreed | None:
        """Learn from all ranks' batches; None if there was none, or it was broken off and undone.

        The state changes on all ranks alike. A rank with older weights takes the others' and
        discards its batch, which is None if it has none yet; ``stats`` are its own.
        """

    def ended(self, state: RunState) -> bool:
        """Say whether a user or the time ends this rank's part."""

    def finish(self, state: RunState, recorder: Recorder, *, failed: bool) -> None:
        """Have rank 0 record the run's end; this rank's part may have ``failed``."""


class Alone(Group, Leader):
    """A `Group` of one, which leads."""

    def __init__(
        self, stopper: Stopper, *, score_stopped: bool = True, watch: Watch = lambda stopper: None
    ) -> None:
        """Take what hears of signals, and whether a run that one has ended is scored once more."""
        self._stopper, self._score_stopped, self._watch = stopper, score_stopped, watch

    def update(self, state: RunState, batch: Any, stats: CollectStats) -> Agreed | None:
        """See `Group`."""
        return None if batch is None else learn(state, batch, stats)

    def ended(self, state: RunState) -> bool:
        """See `Group`."""
        self._watch(self._stopper)
        return bool(self._stopper.signal) or state.time_is_up

    def finish(self, state: RunState, recorder: Recorder, *, failed: bool) -> None:
        """See `Group`."""
        recorder.finish(scored=self._score_stopped or not self._stopper.signal)


def learn(state: RunState, batch: Any, stats: CollectStats) -> Agreed | None:
    """Learn alone from a batch, or refuse it; None if a user broke the update off."""
    before, counts = state.learner.shared_state(), state.source.counts()
    agreed = Agreed(stats, {}, counts=counts)
    try:
        if stats.late_share > MOST_LATE_LEARNED:
            agreed = replace(agreed, stats=replace(stats, late_batches=1.0), learned=False)
            agreed.events.append(f"refused: {late(stats.late_share)}")
        elif stats.flaw:
            raise NotFiniteError(f"a statistic is not finite: {stats.flaw}")
        elif stats.steps:
            with np.errstate(all="ignore"):  # what is not finite is refused
                agreed.metrics = updated(state, batch)
        else:
            agreed.learned = False  # no agent has begun, or all have ended
    except InterruptedUpdateError:
        state.learner.undo_update(before)
        return None
    except NotFiniteError as error:
        state.learner.undo_update(before)
        seen = CollectStats() if stats.flaw else stats
        refused = [f"refused: {error}"]
        agreed = Agreed(seen, {}, counts=counts, events=refused, learned=False, finite=False)
    state.count_time()
    return agreed


def updated(state: RunState, batch: Any) -> dict[str, float]:
    """Let the learner learn from a batch; return its metrics, or raise ConfigError at a user's."""
    metrics: Any = state.learner.update(batch)
    named = metrics if isinstance(metrics, dict) else {"metrics": metrics}
    for name, value in named.items():
        if not isinstance(value, numbers.Real):
            learner = short(getattr(state.config, "learner", ""))
            raise ConfigError(
                f"learner {learner} returned {name} = {value!r:.60}; expected numbers by name"
            )
    return named


def late(share: float, whose: str = "the update") -> str:
    """Return why a batch in real time is refused."""
    return (
        f"{share:.0%} of the steps of {whose} were late (more than {MOST_LATE_LEARNED:.0%}); the "
        "machine is too slow for so many links"
    )


def train(state: RunState, group: Group, recorder: Recorder, stopper: Stopper) -> int:
    """Train until the steps, the time or a user say stop, and save.

    The group is joined, and the stopper entered. Returns 0, or the signal that ended the run or
    this rank's part in it. Raises DatasetError at damaged data, OutputError, and GroupError where
    ranks' weights differ, no worker is left, or a rank of a group that is not elastic is gone.
    """
    source, batch, stats = state.source, None, CollectStats()
    state.start_clock()
    begin = collected = time.perf_counter()
    while True:
        # Learn from what every rank has collected. At first a rank has no batch: it joins the
        # others, and takes their state if they are ahead.
        agreed = group.update(state, batch, stats)
        if agreed is not None:
            learned = time.perf_counter()
            # Count the update, and restore earlier weights where the policy has collapsed.
            state.commit(agreed.stats, learned=agreed.learned, finite=agreed.finite)
            # Rank 0 scores, logs and saves; the others go on, and wait for it at the next update.
            recorder.record(_figures(state, agreed, begin, collected, learned), agreed.events)
        elif batch is not None:
            break  # a user's signal broke the update off
        if state.over or group.ended(state):
            break
        # Collect with the newest weights, until there is enough or the others wait.
        begin = time.perf_counter()
        found = source.next(state.learner.weights(), group.stop(state))
        if found is None:
            break
        batch, stats = found
        collected = time.perf_counter()
    state.count_time()  # of what it waited for in vain, too
    failure = source.close(state.counters.update)
    group.finish(state, recorder, failed=failure is not None)
    if failure is not None:
        raise failure
    return 0 if state.over else stopper.signal


def _figures(
    state: RunState, agreed: Agreed, begin: float, collected: float, learned: float
) -> dict[str, Any]:
    """Return an update's metrics; times are when it began, had its batch and had learned, s."""
    seconds = learned - begin
    learning = learned - collected - sum(agreed.seconds.values())
    found = state.source.metrics(agreed.stats, seconds, agreed.counts)
    shares = {f"share_{name}": part / seconds for name, part in agreed.seconds.items()}
    return {
        **found,
        **agreed.metrics,
        "steps": float(state.counters.steps),
        "steps_per_second": agreed.stats.steps / seconds,
        "share_update": learning / seconds,
        # A rank may wait for its segments, and then for the others.
        **{name: share + found.get(name, 0.0) for name, share in shares.items()},
    }


def iterate(state: RunState) -> tuple[dict[str, Any], CollectStats]:
    """Make one update alone, without a record; return its metrics and what was seen."""
    begin = time.perf_counter()
    found = state.source.next(state.learner.weights(), None)
    assert found is not None
    batch, stats = found
    collected = time.perf_counter()
    agreed = learn(state, batch, stats)
    assert agreed is not None
    learned = time.perf_counter()
    state.commit(agreed.stats, learned=agreed.learned, finite=agreed.finite)
    return _figures(state, agreed, begin, collected, learned), stats
