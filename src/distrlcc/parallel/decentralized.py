"""Many equal processes that train together: DD-PPO (https://arxiv.org/abs/1911.00357).

Every rank collects by itself and learns from it; gradients are averaged in each minibatch. Once per
update the ranks agree on who they are, each with its batch. If a rank is lost in the middle, all
undo the update and those that are left do it again; a rank with older weights receives the newest
by broadcast and learns from its next batch on. Read `ElasticGroup.update` top to bottom; the loop
around it is `distrlcc.runs.train.train`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from distrlcc.errors import GroupError
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.learner import InterruptedUpdateError
from distrlcc.learn.rollout import Rollout
from distrlcc.parallel.membership import Member
from distrlcc.parallel.process_group import PeerLostError, ProcessGroup, Quorum, RunEndedError
from distrlcc.runs.checkpoint import checksum, pack, unpack
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import DistributedConfig, RunConfig
from distrlcc.runs.run_state import RunState
from distrlcc.runs.source import EnvSource
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import Agreed

_TIME_IS_UP = -1.0
_FAILURES = 4
"""Times that an update is done again though nobody is gone."""

_INTERVAL_SECONDS = 0.005
_COST = 50.0
"""Time between two questions, in times of the last one's duration."""


@dataclass
class _Totals:
    """What ranks exchange after an update, in one exchange."""

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


class StragglerRule:
    """Cuts a rollout short when most others have finished theirs (DD-PPO, arXiv 1911.00357).

    The count of finished rollouts is asked of the master's store, but only once the others should
    have finished by the pace of their last rollouts, and for at most two percent of the time. So it
    costs nothing where no rank is slow.
    """

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
        self._begin = self._next = time.perf_counter()
        if paces and not self._off:
            others = sorted(pace for rank, pace in enumerate(paces) if rank != group.rank)
            self._next += length * others[self._needed - 1]
        self._deadline = math.inf

    def __call__(self, rows: int) -> bool:
        """Say whether to stop after this many rows."""
        if self._off or rows < self._least:
            return False
        now = time.perf_counter()
        if now >= self._next and self._deadline == math.inf:
            finished = self._group.others_finished()
            asked = time.perf_counter()
            self._next = asked + max(_INTERVAL_SECONDS, _COST * (asked - now))
            if finished >= self._needed:
                self._deadline = now + self._config.straggler_grace * (now - self._begin)
        return now >= self._deadline


class ElasticGroup:
    """A `distrlcc.runs.train.Group` of ranks that may leave and join, where it is elastic."""

    def __init__(self, group: ProcessGroup, stopper: Stopper) -> None:
        """Take the ranks and what hears of signals.

        Rank 0's signal ends the run; another's lets that rank leave, or ends the run as well where
        the group is not elastic.

        Args:
            group: Joined by the time of the first update.
            stopper: This process's.
        """
        self._group, self._stopper = group, stopper
        self._started = time.perf_counter()
        self._paces: Sequence[float] = ()
        self._events: list[str] = []
        self._ended = self._leaves = False

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self._group.leads

    def still_leads(self) -> bool:
        """Say whether rank 0 was not replaced while it was suspended."""
        return self._group.still_leads()

    def note_record(self, update: int) -> None:
        """Note for a later rank 0 that an update's row is written."""
        self._group.note_record(update)

    def newest_record(self) -> int:
        """Return the newest update whose row a rank 0 has written."""
        return self._group.newest_record()

    def ended(self, state: RunState) -> bool:
        """Say whether rank 0's user or the time ends the run, or a user this rank's part."""
        return self._ended or self._leaves

    def stop(self, state: RunState) -> StragglerRule:
        """Return the rule by which slow ranks are cut short, and start its clock."""
        self._started = time.perf_counter()
        # Rank 0 begins late where it has scored, which is not being slow.
        late = self._group.leads and state.paused()
        config = state.config
        rows = config.rollout_length if isinstance(config, RunConfig) else 1
        return StragglerRule(self._group, config.distributed, rows, self._paces, exempt=late)

    def update(self, state: RunState, batch: Any, stats: CollectStats) -> Agreed | None:
        """Learn with the others; see `distrlcc.runs.train.Group`.

        Raises:
            GroupError: Weights differ between ranks, the master is out of reach, or a rank is gone
                and the group is not elastic.
        """
        group, collected, failures = self._group, time.perf_counter(), 0
        if batch is not None:
            group.count_finished()
        while True:
            # Agree on the group: ranks that are gone are left out, new ones are let in.
            quorum = group.agree(state.counters.update, ready=batch is not None)
            met, exchanged = time.perf_counter(), group.exchange_seconds
            news = _events(quorum, group, state)
            failures = 0 if news else failures
            self._events += news
            safe = state.shared_state()
            try:
                # Take the newest weights where one's own are older; the batch is then of no use.
                if self._catch_up(state, batch, quorum):
                    safe, stats, collected = state.shared_state(), CollectStats(), met
                    self._events = [_joined([group.me], group, state)]
                    state.start_clock()
                if not quorum.ready:
                    self._paces = ()
                    return None
                # Learn; a rank without a batch takes part in every exchange.
                metrics = state.learner.update(_nothing(state) if batch is None else batch)
                state.count_time()
                totals = self._exchange(state, batch, stats, collected - self._started)
            except InterruptedUpdateError:
                state.learner.undo_update(safe["learner"])
                return None
            except PeerLostError as error:
                state.load_shared_state(safe)
                failures += 1
                _check_failures(failures, error)
                continue
            return self._commit(state, metrics, totals, (collected, met, exchanged))

    def _commit(
        self,
        state: RunState,
        metrics: dict[str, float],
        totals: _Totals,
        times: tuple[float, float, float],
    ) -> Agreed:
        """Return what all have agreed on, and note which ranks stop."""
        group, (collected, met, exchanged) = self._group, times
        update = state.counters.update + 1
        check_sync(totals.checksums, group, update)
        self._paces, flags = totals.paces, totals.flags
        self._ended = flags[0] != 0 or (any(flags) and not group.spec.elastic)
        self._leaves = flags[group.rank] != 0
        events, self._events = self._events, []
        if group.leads:
            group.announce(update)
        metrics |= {"ranks": float(group.size), "rollouts_cut_short": float(totals.cut)}
        waited = {"wait": met - collected, "exchange": group.exchange_seconds - exchanged}
        return Agreed(totals.stats, metrics, waited, events)

    def greatest(self, number: int) -> int:
        """Return the greatest of all ranks' numbers."""
        numbers = np.zeros(self._group.size)
        numbers[self._group.rank] = number
        return int(self._group.sum(numbers).max())

    def finish(self, state: RunState, recorder: Recorder) -> None:
        """Rank 0 saves; the others wait for it. If it dies meanwhile, the next rank saves."""
        group = self._group
        if self._leaves and not self._ended and not state.over:
            return
        checksums = np.zeros(group.size)
        checksums[group.rank] = checksum(state.learner.shared_state())
        with suppress(PeerLostError):  # a rank that is gone by now has nothing to say
            total = group.sum(checksums).astype(int).tolist()
            check_sync(total, group, state.counters.update)
        led = False
        with suppress(RunEndedError):  # the others have finished
            while not led:
                led = group.leads
                if led:
                    recorder.finish()
                group.agree(state.counters.update, ready=False)
                if not group.leads:
                    break
        if led:
            group.announce(state.counters.update, finished=True)

    def _catch_up(self, state: RunState, batch: Any, quorum: Quorum) -> bool:
        """Broadcast the newest state where a rank's is older or rank 0's grew.

        Returns:
            Whether this rank's was older: its batch, collected with older weights, is empty then.
        """
        group, update = self._group, state.counters.update
        if not (quorum.behind or state.paused()):
            return False
        sends = group.rank == quorum.source
        packed = group.broadcast(pack(state.shared_state()) if sends else b"", quorum.source)
        if sends:
            return False
        newest = unpack(packed)
        state.load_shared_state(newest)
        if state.counters.update == update:
            return False
        if batch is None:  # its environments must not repeat what was seen
            state.source.load_state_dict(newest)
        else:
            batch.steps = 0
        return True

    def _exchange(
        self, state: RunState, batch: Any, stats: CollectStats, seconds: float
    ) -> _Totals:
        """Sum the statistics; exchange cuts, wishes to stop, checksums and times of a row."""
        group, config, update = self._group, state.config, state.counters.update + 1
        flags, checksums, paces = np.zeros((3, group.size))
        rows, length = _rows(batch)
        flags[group.rank], paces[group.rank] = self._stopper.signal, seconds / rows if rows else 0.0
        if group.leads and state.time_is_up:
            flags[0] = flags[0] or _TIME_IS_UP
        intervals = (config.distributed.sync_check_every, config.checkpoint_every)
        if config.scores_at(update) or any(update % interval == 0 for interval in intervals):
            checksums[group.rank] = checksum(state.learner.shared_state())
        own = np.array(astuple(stats))
        total = group.sum(np.concatenate([own, [0 < rows < length], flags, checksums, paces]))
        by_rank = total[len(own) + 1 :].reshape(3, group.size)
        return _Totals(
            CollectStats(*total[: len(own)].tolist()),
            int(total[len(own)]),
            by_rank[0].astype(int).tolist(),
            by_rank[1].astype(int).tolist(),
            by_rank[2].tolist(),
        )


def _nothing(state: RunState) -> Rollout:
    """Return an empty batch of a rank that has none yet."""
    assert isinstance(state.source, EnvSource)  # other sources' ranks all begin together
    return state.source.nothing()


def _rows(batch: Any) -> tuple[int, int]:
    """Return how many rows of a rollout were collected, and of how many."""
    return (batch.steps, len(batch.obs)) if isinstance(batch, Rollout) else (0, 0)


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


def check_sync(checksums: list[int], group: ProcessGroup, update: int) -> None:
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


def _events(quorum: Quorum, group: ProcessGroup, state: RunState) -> list[str]:
    """Name the ranks that left and those that joined."""
    lines = []
    if quorum.left:
        update = state.counters.update
        names = ", ".join(map(str, quorum.left))
        lines.append(f"gone: {names}; going on with {group.size} after update {update}")
    if quorum.joined:
        lines.append(_joined(quorum.joined, group, state))
    return lines


def _joined(members: Sequence[Member], group: ProcessGroup, state: RunState) -> str:
    names = ", ".join(map(str, members))
    return f"joined: {names}; going on with {group.size} after update {state.counters.update}"
