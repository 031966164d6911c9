"""The training loop of one among many equal processes: DD-PPO (https://arxiv.org/abs/1911.00357).

Every rank steps its own environments and learns from them; gradients are averaged each minibatch.
Ranks meet once per update, with their rollouts in hand. An update that fails because someone is
gone is undone by all and done again by those who are left; whoever has older weights is sent the
newest by broadcast and learns from its next rollout on. Read `train_together` top to bottom.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from distrlcc.errors import GroupError
from distrlcc.learn.collect import CollectStats
from distrlcc.parallel.membership import Member
from distrlcc.parallel.process_group import (
    Meeting,
    PeerLostError,
    ProcessGroup,
    RunEndedError,
)
from distrlcc.parallel.straggler import StragglerRule
from distrlcc.runs.checkpoint import checksum, pack, unpack
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.trainer import Trainer


class Records(Protocol):
    """What rank 0 does after an update; `distrlcc.runs.recorder.Recorder` is one."""

    def note(self, event: str) -> None:
        """Tell the user at once."""
        ...

    def record(
        self, metrics: dict[str, float], stats: CollectStats, events: Sequence[str] = ()
    ) -> None:
        """Record the update that was just counted."""
        ...

    def finish(self) -> None:
        """Record the run's end."""
        ...


OpenRecorder = Callable[[ExitStack, int], Records]
"""Opens run directory and progress on the stack, keeping the lines of so many updates; called by
whoever becomes rank 0."""

_TIME_IS_UP = -1.0
_FAILURES = 4
"""Times that an update is done again though nobody is gone."""


@dataclass
class _Totals:
    """What ranks tell each other after an update, in one exchange."""

    stats: CollectStats
    """Sums over ranks."""
    cut: int
    """Rollouts that were cut short."""
    flags: list[int]
    """For each rank 0, a signal that it heard, or `_TIME_IS_UP`."""
    checksums: list[int]
    """For each rank that of its weights, if they are compared this time."""
    paces: list[float]
    """For each rank the time that a row of its rollout took, s."""


def train_together(
    trainer: Trainer, group: ProcessGroup, open_recorder: OpenRecorder, stopper: Stopper
) -> int:
    """Train with the others until the steps, the time or rank 0's user say stop.

    Args:
        trainer: This rank's part; its learner's reducer is the group.
        group: Joined.
        open_recorder: See `OpenRecorder`.
        stopper: Hears of signals. Rank 0's ends the run; another's lets that rank leave, or ends
            the run as well where the group is not elastic.

    Returns:
        0, or the number of the signal that ended the run or this rank's part in it.

    Raises:
        GroupError: Weights differ between ranks, the master is out of reach, or someone is gone and
            the group is not elastic.
    """
    config = trainer.config
    recorder: Records | None = None
    stats, ready, events, failures = CollectStats(), False, list[str](), 0
    timer = _Timer(trainer, group)
    with ExitStack() as stack:
        while True:
            meeting = group.meet(trainer.counters.update, ready=ready)
            timer.met()
            news = _events(meeting, group, trainer)
            failures = 0 if news else failures
            events += _noted(news, recorder)
            safe = trainer.shared_state()
            try:
                if _catch_up(trainer, group, meeting, new=not ready):
                    safe, stats = trainer.shared_state(), CollectStats()
                    timer = _Timer(trainer, group)
                    recorder, events = None, [_joined([group.me], group, trainer)]
                if meeting.ready:
                    metrics = trainer.learner.update(trainer.rollout)
                    trainer.counters.seconds = timer.seconds()
                    totals = _exchange(trainer, group, stats, timer.pace(trainer), stopper)
            except PeerLostError as error:
                trainer.load_shared_state(safe)
                failures += 1
                _check_failures(failures, error)
                continue
            if meeting.ready:
                failures = 0
                _check_sync(totals.checksums, group, trainer.counters.update + 1)
                trainer.commit(totals.stats)
                metrics |= timer.metrics(stats, totals, trainer.counters.steps)
                if recorder is None or not group.leads:
                    stack.close()
                    recorder = (
                        open_recorder(stack, trainer.counters.update - 1) if group.leads else None
                    )
                    _noted(events, recorder)
                if recorder is not None and group.still_leads():
                    group.tell(trainer.counters.update)
                    recorder.record(totals.stats.metrics() | metrics, totals.stats, events)
                events = []
                if _ended(trainer, group, totals):
                    break
                if totals.flags[group.rank]:
                    return stopper.signal
            timer.start()
            # Rank 0 begins late where it has scored or searched, which is not being slow.
            late = group.leads and trainer.paused()
            rows = len(trainer.rollout.obs)
            paces = totals.paces if meeting.ready else ()
            rule = StragglerRule(group, config.distributed, rows, paces, exempt=late)
            stats, ready = trainer.collect(rule), True
            group.count_finished()
            timer.collected()
        _finish(trainer, group, lambda: recorder or open_recorder(stack, trainer.counters.update))
    return stopper.signal


def _finish(trainer: Trainer, group: ProcessGroup, records: Callable[[], Records]) -> None:
    """Save as rank 0, or wait until it has: should it be gone by then, the next one saves."""
    checksums = np.zeros(group.size)
    checksums[group.rank] = checksum(trainer.learner.shared_state())
    with suppress(PeerLostError):  # whoever is gone by now has nothing to say
        total = group.sum(checksums).astype(int).tolist()
        _check_sync(total, group, trainer.counters.update)
    led = False
    with suppress(RunEndedError):  # the others have finished
        while not led:
            led = group.leads
            if led:
                records().finish()
            group.meet(trainer.counters.update, ready=False)
            if not group.leads:
                break
    if led:
        group.tell(trainer.counters.update, finished=True)


def _noted(events: list[str], recorder: Records | None) -> list[str]:
    """Show events at once where rank 0 has a recorder; return them for the metrics."""
    if recorder is not None:
        for event in events:
            recorder.note(event)
    return events


def _check_failures(failures: int, error: PeerLostError) -> None:
    """Bound how often an update is done again though nobody is gone.

    Raises:
        GroupError: It fails again and again.
    """
    reason = str(error).splitlines()[0] if str(error) else "no reason given"
    if failures >= _FAILURES:
        raise GroupError(
            f"exchanges fail though nobody is gone ({reason}); if minibatches take long, give more "
            "time with --set distributed.timeout_s=S"
        )
    if failures > 1:
        warnings.warn(f"an exchange failed and is done again: {reason}", stacklevel=2)


def _ended(trainer: Trainer, group: ProcessGroup, totals: _Totals) -> bool:
    """Say whether the run is over for all."""
    done = trainer.counters.steps >= trainer.config.total_steps
    asked = totals.flags[0] != 0 or (any(totals.flags) and not group.place.elastic)
    return done or asked


def _catch_up(trainer: Trainer, group: ProcessGroup, meeting: Meeting, *, new: bool) -> bool:
    """Send the newest state where someone's is older or rank 0's grew; say if own was older."""
    update, config = trainer.counters.update, trainer.config
    if not (meeting.behind or trainer.paused()):
        return False
    sends = group.rank == meeting.source
    state = group.broadcast(pack(trainer.shared_state()) if sends else b"", meeting.source)
    if sends:
        return False
    trainer.load_shared_state(unpack(state))
    if trainer.counters.update == update:
        return False
    trainer.rollout.steps = 0  # it was collected with older weights
    if new:  # its environments must not repeat what was seen
        trainer.collector.begin_at(trainer.counters.update * config.rollout_length)
    return True


def _exchange(
    trainer: Trainer, group: ProcessGroup, stats: CollectStats, pace: float, stopper: Stopper
) -> _Totals:
    """Sum the statistics; tell who was cut short, wants to stop, has which weights, how fast."""
    config, update = trainer.config, trainer.counters.update + 1
    flags, checksums, paces = np.zeros((3, group.size))
    flags[group.rank], paces[group.rank] = stopper.signal, pace
    if group.leads and config.max_seconds and trainer.counters.seconds >= config.max_seconds:
        flags[0] = flags[0] or _TIME_IS_UP
    intervals = (
        config.distributed.sync_check_every,
        config.checkpoint_every,
        config.held_out.every,
    )
    if any(update % interval == 0 for interval in intervals):
        checksums[group.rank] = checksum(trainer.learner.shared_state())
    cut = 0 < trainer.rollout.steps < len(trainer.rollout.obs)
    own = stats.to_vector()
    total = group.sum(np.concatenate([own, [cut], flags, checksums, paces]))
    by_rank = total[len(own) + 1 :].reshape(3, group.size)
    return _Totals(
        CollectStats.from_vector(total[: len(own)]),
        int(total[len(own)]),
        by_rank[0].astype(int).tolist(),
        by_rank[1].astype(int).tolist(),
        by_rank[2].tolist(),
    )


def _check_sync(checksums: list[int], group: ProcessGroup, update: int) -> None:
    """Compare checksums.

    Raises:
        GroupError: They differ; the odd ones out are named.
    """
    if len(set(checksums)) == 1:
        return
    (usual, count), *_ = Counter(checksums).most_common()
    odd = [
        str(member)
        for member, value in zip(group.members, checksums, strict=True)
        if value != usual or 2 * count <= group.size
    ]
    raise GroupError(
        f"weights or optimizer differ between ranks after update {update}: {', '.join(odd)}; "
        "training stopped, nothing of it was saved; look for bad memory or code that differs, and "
        "go on from the last checkpoint with --resume",
        exit_code=1,
    )


def _events(meeting: Meeting, group: ProcessGroup, trainer: Trainer) -> list[str]:
    """Say who left and who joined."""
    lines = []
    if meeting.left:
        update = trainer.counters.update
        names = ", ".join(map(str, meeting.left))
        lines.append(f"gone: {names}; going on with {group.size} after update {update}")
    if meeting.joined:
        lines.append(_joined(meeting.joined, group, trainer))
    return lines


def _joined(members: Sequence[Member], group: ProcessGroup, trainer: Trainer) -> str:
    names = ", ".join(map(str, members))
    return f"joined: {names}; going on with {group.size} after update {trainer.counters.update}"


class _Timer:
    """Where an update's time goes on this rank."""

    def __init__(self, trainer: Trainer, group: ProcessGroup) -> None:
        now = time.perf_counter()
        self._group = group
        self._begin = now - trainer.counters.seconds
        self._start = self._collected = self._met = now
        self._exchanged = group.exchange_seconds

    def seconds(self) -> float:
        return time.perf_counter() - self._begin

    def start(self) -> None:
        self._start = time.perf_counter()

    def collected(self) -> None:
        self._collected = time.perf_counter()

    def pace(self, trainer: Trainer) -> float:
        """Return the time that a row of the last rollout took, s; 0 if there was none."""
        return (self._collected - self._start) / max(trainer.rollout.steps, 1)

    def met(self) -> None:
        """Note that all have met: what was exchanged so far, to meet, is part of waiting."""
        self._met = time.perf_counter()
        self._exchanged = self._group.exchange_seconds

    def metrics(self, own: CollectStats, totals: _Totals, steps: int) -> dict[str, float]:
        """Return the update's figures: steps of all ranks, shares of this rank's time."""
        now = time.perf_counter()
        seconds = now - self._start
        exchange = self._group.exchange_seconds - self._exchanged
        return {
            "steps": float(steps),
            "steps_per_second": totals.stats.steps / seconds,
            "share_environment": own.environment_seconds / seconds,
            "share_inference": own.inference_seconds / seconds,
            "share_wait": (self._met - self._collected) / seconds,
            "share_exchange": exchange / seconds,
            "share_update": (now - self._met - exchange) / seconds,
            "ranks": float(self._group.size),
            "rollouts_cut_short": float(totals.cut),
        }
