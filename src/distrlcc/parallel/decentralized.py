"""Many equal processes that train together: DD-PPO (https://arxiv.org/abs/1911.00357).

Every rank collects and learns by itself; gradients are averaged in each minibatch. Once per update
the ranks agree on their group. If one is lost in the middle, all undo the update and the others do
it again. A rank with older weights receives the newest, and learns from its next batch on.
"""

import math
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any

import msgspec
import numpy as np

from distrlcc.errors import LEFT_OUT, GroupError, reading
from distrlcc.learn.collect import MOST_LATE_LEARNED, CollectStats
from distrlcc.learn.learner import InterruptedUpdateError, NotFiniteError
from distrlcc.learn.model import Learner
from distrlcc.learn.rollout import Rollout
from distrlcc.limits import limits
from distrlcc.parallel.process_group import PeerLostError, ProcessGroup, Quorum, RunEndedError
from distrlcc.runs.checkpoint import checksum, pack, unpack
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import DistributedConfig, RunConfig
from distrlcc.runs.run_state import RunState, check_links
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import Agreed, late, updated

_TIME_IS_UP = -1.0
_FAILURES = 4  # times that an update is done again though no rank is gone
_OFFENCES = 2  # times that a rank may send what is not finite; with the last it is left out
_INTERVAL_SECONDS, _COST = 0.005, 50.0
"""Least time between two questions to the store; and in times of the last one's duration."""


class StragglerRule:
    """Cuts a rollout short when most others have finished theirs (DD-PPO, arXiv 1911.00357).

    It asks the master's store only once the others should have finished, by the pace of their last
    rollouts, and for at most two percent of the time.
    """

    def __init__(
        self,
        group: ProcessGroup,
        config: DistributedConfig,
        length: int,
        paces: Sequence[float] = (),
    ) -> None:
        """Start the clock of a rollout; ``paces``: each rank's last s per row, or empty."""
        self._group, self._config = group, config
        self._needed = max(1, math.ceil(config.straggler_share * (group.size - 1) - 1e-9))
        self._least = max(1, math.ceil(config.straggler_minimum * length))
        self._begin = self._next = time.perf_counter()
        if paces:
            others = sorted(pace for rank, pace in enumerate(paces) if rank != group.rank)
            self._next += length * others[self._needed - 1]
        self._deadline = math.inf

    def __call__(self, rows: int) -> bool:
        """Say whether to stop after this many rows."""
        if rows < self._least:
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

    def __init__(self, group: ProcessGroup, stopper: Stopper, recorder: Recorder) -> None:
        """Take the ranks to join; rank 0's signal ends the run, others' their part if elastic."""
        self._group, self._stopper, self._recorder = group, stopper, recorder
        self._started = time.perf_counter()
        self._paces: Sequence[float] = ()
        self._events: list[str] = []
        self._offences: Counter[str] = Counter()
        self._files = 0  # files of links whose digests all ranks have
        self._ended = self._leaves = self._signalled = self._learned = False

    def ended(self, state: RunState) -> bool:
        """Say whether the run or this rank's part ends; GroupError: not finite again."""
        own = self._group.members[self._group.rank]
        if self._offences[own.name] >= _OFFENCES:
            raise GroupError(
                f"{own} is left out: {_OFFENCES} times it sent numbers that are not finite; look "
                "for bad memory or changed code, then start it again",
                exit_code=LEFT_OUT,
            )
        return self._ended or self._leaves

    def stop(self, state: RunState) -> StragglerRule | None:
        """Return the rule by which slow ranks are cut short, if any, and start its clock."""
        self._started = time.perf_counter()
        # Rank 0 begins late where it has scored, which is not being slow.
        group, config = self._group, state.config
        late = group.leads and state.paused()
        if late or group.size == 1 or not config.distributed.straggler_share:
            return None
        assert isinstance(config, RunConfig)  # an imitation run's share is 0
        return StragglerRule(group, config.distributed, config.rollout_length, self._paces)

    def update(self, state: RunState, batch: Any, stats: CollectStats) -> Agreed | None:
        """See `Group.update`; GroupError: weights differ, or the master or a needed rank gone."""
        group, collected, failures = self._group, time.perf_counter(), 0
        if batch is not None:
            group.count_finished()
            if stats.late_share > MOST_LATE_LEARNED:
                batch.steps, stats = 0, replace(stats, late_batches=1.0)
        while True:
            # Agree on the group: ranks that are gone are dropped, new ones are admitted.
            quorum = group.agree(state.counters.update, ready=batch is not None)
            met, exchanged = time.perf_counter(), group.exchange_seconds
            after = f"going on with {group.size} after update {state.counters.update}"
            news = [
                f"{what}: {', '.join(map(str, members))}; {after}"
                for what, members in (("gone", quorum.left), ("joined", quorum.joined))
                if members
            ]
            failures = 0 if news else failures
            self._events += news
            safe = None
            try:
                # Go on from the newest weights; a batch of older ones is then empty.
                if self._go_on_together(state, batch, quorum):
                    stats, collected = CollectStats(), met
                    state.start_clock()
                safe = state.shared_state()
                self._ended |= any(member.ends for member in group.members)
                if self._ended or state.over or not quorum.ready:
                    self._paces = ()
                    return None
                # Learn; a rank without a batch takes part in every exchange.
                agreed = self._learn(state, safe, batch, stats, collected - self._started)
                # Nobody has a row: they end. Those that went back will have. In rows without a step
                # no agent ran.
                found = agreed.stats.steps or any(self._paces)
                if agreed.finite and not found and not quorum.anew:
                    return None
                self._learned = True
            except InterruptedUpdateError:
                assert safe is not None
                state.learner.undo_update(safe["learner"])
                return None
            except PeerLostError as error:
                if safe is not None:
                    state.load_shared_state(safe)
                failures += 1
                reason = (str(error) or "no reason given").splitlines()[0]
                if failures >= _FAILURES:
                    raise GroupError(
                        f"exchanges fail though no rank is gone ({reason}); if minibatches take "
                        "long, give more time with --set distributed.timeout_s=S"
                    ) from None
                if failures > 1:
                    warnings.warn(f"an exchange failed and is done again: {reason}", stacklevel=2)
                continue
            exchanged = group.exchange_seconds - exchanged
            agreed.seconds.update(wait=met - collected, exchange=exchanged)
            return agreed

    def greatest(self, number: int) -> int:
        """Return the greatest of all ranks' numbers."""
        return int(max(self._by_rank(number)))

    def _by_rank(self, number: float) -> list[float]:
        numbers = np.zeros(self._group.size)
        numbers[self._group.rank] = number
        return list(self._group.sum(numbers))

    def finish(self, state: RunState, recorder: Recorder, *, failed: bool) -> None:
        """Rank 0 saves; the others wait for it. If it dies meanwhile, the next rank saves."""
        group = self._group
        if failed:  # the others, if any, go on without this rank
            recorder.finish(scored=group.size == 1)
            return
        if self._leaves and not self._ended and not state.over:
            return
        if self._learned:
            with suppress(PeerLostError):  # the weights of one that is gone by now do not matter
                checksums = self._by_rank(checksum(state.learner.shared_state()))
                check_sync(checksums, group, state.counters.update)
        led, update = False, state.counters.update
        with suppress(RunEndedError):  # the others have finished
            while True:
                led = group.leads and recorder.finish()
                quorum = group.agree(state.counters.update, ready=False, ends=True)
                # Where nobody left or came, rank 0 has saved. Else bring those up who came, as one
                # of them may be rank 0 now.
                together = all(member.ends for member in group.members)
                if together and not (quorum.anew or quorum.behind):
                    if led or not group.leads:
                        break
                    time.sleep(limits().tick)
                with suppress(PeerLostError):
                    self._go_on_together(state, None, quorum)
                if state.counters.update < update:
                    raise GroupError(
                        f"others have saved update {state.counters.update} of the run, and not "
                        "what this process has done since; it joins them when it is started again"
                    )
        if led:
            group.note_end()

    def _go_on_together(self, state: RunState, batch: Any, quorum: Quorum) -> bool:
        """Have all ranks go on from one state; say whether this rank's was another.

        A new rank 0 opens the run, and writes the rows that the last one did not write. The saved
        state may be of another history, if another group saved it meanwhile or this one has just
        begun. So may be that of a rank that learned as much apart. Then all go on from one: only
        one history of a run goes on.
        """
        other = False
        if quorum.behind or (quorum.ready and state.paused()):
            other = self._receive(state, batch, quorum.source)
        if not quorum.anew:
            return other
        other = self._take_one_history(state, batch, quorum) or other
        went_back = self._recorder.lead(may_go_back=True)
        if went_back and batch is not None:
            batch.steps = 0
        if self.greatest(went_back):
            other = self._receive(state, batch, 0) or went_back or other
        return other

    def _take_one_history(self, state: RunState, batch: Any, quorum: Quorum) -> bool:
        """Go on from what most have, if some learned as much apart; say whether this rank did.

        Raises GroupError where weights differ among those who were together all the time.
        """
        group, joined = self._group, self.greatest(bool(quorum.joined))
        sums = self._by_rank(checksum(state.learner.shared_state()))
        if not joined or len(set(sums)) == 1:
            check_sync(sums, group, state.counters.update)
            return False
        source = sums.index(Counter(sums).most_common(1)[0][0])
        apart = [str(m) for m, k in zip(group.members, sums, strict=True) if k != sums[source]]
        other = self._receive(state, batch, source)
        taken = f"{', '.join(apart)}; all go on from those of {group.members[source]}"
        self._events.append(f"other weights: {taken}")
        return other

    def _receive(self, state: RunState, batch: Any, source: int) -> bool:
        """Broadcast a rank's state; say whether this rank's was another, and empty its batch then.

        With it go the rows since the newest checkpoint, and who left and joined: a receiver may be
        the next rank 0. Raises GroupError at an invalid state; CheckpointError at another run's.
        """
        group, recorder = self._group, self._recorder
        before = checksum(state.learner.shared_state())
        if group.rank == source:
            own: dict[str, Any] = {"rows": recorder.rows, "saved": list(recorder.saved)}
            own["events"] = self._events
            group.broadcast(pack(state.shared_state() | own), source)
            return False
        packed = group.broadcast(b"", source)
        with reading(GroupError, f"{group.members[source]} sent an invalid state"):
            newest = unpack(packed)
            rows = msgspec.convert(newest.pop("rows"), dict[int, dict[str, Any]])
            saved = msgspec.convert(newest.pop("saved"), tuple[int, str])
            events = msgspec.convert(newest.pop("events"), list[str])
        state.load_shared_state(newest)
        recorder.rows, recorder.saved, self._events = rows, saved, events
        recorder.close()  # one that leads may have written rows of its own
        if checksum(state.learner.shared_state()) == before:
            return False
        if batch is None:  # its environments must not repeat what was seen
            state.source.load_state_dict(newest)
        else:
            batch.steps = 0
        return True

    def _learn(
        self, state: RunState, safe: Any, batch: Any, stats: CollectStats, seconds: float
    ) -> Agreed:
        """Learn, or undo an update that is refused; a rank without a batch gives nothing."""
        group, learned = self._group, False
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused
                metrics = updated(state, state.source.nothing() if batch is None else batch)
            state.count_time()
            agreed = self._exchange(state, batch, stats, seconds)
            learned = agreed.stats.late_batches < group.size and agreed.stats.steps > 0
        except NotFiniteError as error:
            # Who sent what is not finite? Where all did, training has diverged: none is to blame.
            idle = batch is None or (isinstance(batch, Rollout) and not batch.steps)
            sent = self._by_rank(-1.0 if not group.gave_finite else 0.0 if idle else 1.0)
            blamed = [
                m for m, sign in zip(group.members, sent, strict=True) if sign < 0 < max(sent)
            ]
            # What was seen still counts, where it is finite.
            state.learner.undo_update(safe["learner"])
            stats = CollectStats() if stats.flaw else stats
            agreed = replace(self._exchange(state, batch, stats, seconds), finite=False)
            self._offences.update(member.name for member in blamed)
            agreed.events.append(f"refused: {', from '.join([str(error), *map(str, blamed)])}")
            out = [str(m) for m in blamed if self._offences[m.name] >= _OFFENCES]
            agreed.events += [
                f"left out: {who}, the second time that it was refused" for who in out
            ]
        if agreed.stats.late_batches:
            for member, share in zip(group.members, self._by_rank(stats.late_share), strict=True):
                if share > MOST_LATE_LEARNED:
                    agreed.events.append(f"refused: {late(share, str(member))}")
        if learned:
            agreed.metrics |= metrics
            if isinstance(state.learner, Learner):  # a user's may be anything
                agreed.metrics |= state.learner.optimizer.noise.metrics()
        else:
            state.learner.undo_update(safe["learner"])
            agreed.learned = False
        return agreed

    def _exchange(self, state: RunState, batch: Any, stats: CollectStats, seconds: float) -> Agreed:
        """Sum the statistics over ranks, and compare weights and wishes to stop."""
        group, config, update = self._group, state.config, state.counters.update + 1
        # Each rank fills its own column: its wish to stop (a signal or `_TIME_IS_UP`), a checksum
        # of its weights if they are compared this time, the time for a row of its rollout, s.
        flags, checksums, paces = columns = np.zeros((3, group.size))
        rows = length = 0
        if isinstance(batch, Rollout) and batch.steps:
            rows, length = batch.steps, len(batch.obs)
            paces[group.rank] = seconds / rows
        flags[group.rank] = self._stopper.signal
        if group.leads and state.time_is_up:
            flags[0] = flags[0] or _TIME_IS_UP
        intervals = (config.distributed.sync_check_every, config.checkpoint_every)
        if config.scores_at(update) or any(update % interval == 0 for interval in intervals):
            checksums[group.rank] = checksum(state.learner.shared_state())
        saved = self._recorder.saved[0] if group.leads else 0
        own, more, new = astuple(stats), state.source.counts(), len(state.links) > self._files
        total = group.sum(np.concatenate([own, [rows < length, saved, new], *columns, more]))
        seen, (cut, saved, new), of_ranks = np.split(total, [len(own), len(own) + 3])
        self._recorder.confirm(int(saved))
        if new:  # rank 0 saves what files all ranks' workers have
            files: dict[str, str] = {}
            for rank in range(group.size):
                check_links(files, unpack(group.broadcast(pack(dict(state.links)), rank)))
            check_links(state.links, files)
            self._files = len(files)
        # Do any weights differ, and which ranks stop?
        columns, counts = np.split(of_ranks, [columns.size])
        flags, checksums, paces = columns.reshape(3, group.size)
        check_sync(checksums.tolist(), group, update)
        self._paces = paces.tolist()
        self._ended = bool(flags[0]) or (bool(flags.any()) and not group.spec.elastic)
        if not group.spec.elastic:  # whoever has heard it, all say how the run ended
            self._stopper.request(int(max(flags.max(), 0)))
        # A signal to all may have reached this rank before rank 0: leave only if the next update
        # does not end the run.
        signalled = bool(flags[group.rank])
        self._leaves, self._signalled = signalled and self._signalled, signalled
        metrics = {"ranks": float(group.size), "rollouts_cut_short": float(cut)}
        events, self._events = self._events, []
        found = CollectStats(*seen.tolist())
        return Agreed(found, metrics, counts=counts.tolist(), events=events)


def check_sync(checksums: Sequence[float], group: ProcessGroup, update: int) -> None:
    """Compare checksums; raises GroupError if they differ; the odd ones out are named."""
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
