"""The work of rank 0 after an update: score, save, log and show."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import takewhile
from typing import Any, Protocol

from distrlcc.errors import OutputError
from distrlcc.net.flow_record import MOST_LATE
from distrlcc.runs.leadership import SupersededError
from distrlcc.runs.metrics_log import CLOSING, GROUP, twice
from distrlcc.runs.progress import Display
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import RunState
from distrlcc.runs.source import Stop
from distrlcc.runs.stopper import Stopper

OpenRun = Callable[[ExitStack], tuple[RunDirectory, Display]]
"""Opens a run's directory and what shows its progress, both closed by the stack; called by a rank
that becomes rank 0. It takes the directory over, and loads what is saved where no rank has more."""

_MOST_ROWS = 1000
"""Rows that ranks keep at most: so many updates after a checkpoint there is another one."""


class Leader(Protocol):
    """Says whether this process is rank 0, which scores, logs and saves; one alone always is."""

    size: int = 1  # ranks, this one included
    leads: bool = True  # whether it was rank 0 at the newest update
    key: str = ""  # key that tells its group from all others; empty for one process
    epoch: int = 1  # greater than that of each rank 0 before

    def still_leads(self) -> bool:
        """Say whether it was not replaced while it was suspended."""
        return True

    def note_record(self, update: int) -> None:
        """Note for those who watch that the rows up to an update's are written."""
        return


class Recorder(AbstractContextManager["Recorder"]):
    """Writes a run's directory and shows its progress while this process is rank 0."""

    def __init__(
        self,
        state: RunState,
        group: Leader,
        open_run: OpenRun,
        *,
        shared_only: bool = False,
        resume: bool = False,
    ) -> None:
        """Record a state's updates; a context manager. Another rank may take over meanwhile.

        Several processes save ``shared_only`` the state that all ranks share, and the first rank 0
        goes on from it. If they ``resume`` and nothing is saved, a line says so.
        """
        self._state, self._group, self._open_run = state, group, open_run
        self._shared_only, self._resume = shared_only, resume
        self.rows: dict[int, dict[str, Any]] = {}
        """Rows since the newest checkpoint, by update. Each rank keeps them: one that was left
        behind may have put its own in their place, or gone back to that checkpoint."""
        self.saved = 0, ""
        """The newest checkpoint of this history that is known: its update, and `Leader.key`."""
        self._files = ExitStack()
        self._opened: tuple[RunDirectory, Display] | None = None
        self._epoch = 0
        self._shown: str | None = None
        self._noted_late = self._unsaved = False
        self.policy_path = ""  # where this process has written the run's policy

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; `lead` opens them again."""
        self._files.close()
        self._opened = None

    def confirm(self, saved: int) -> None:
        """Note that a checkpoint speaks for the rows up to this update."""
        self.saved = saved, self._key(saved) or self.saved[1]
        self.rows = {update: row for update, row in self.rows.items() if update > saved}

    def lead(self, *, may_go_back: bool = False) -> bool:
        """Open the run if this process is rank 0, and write what is not there of its rows.

        Ranks call it whenever their group is another one, before anything is exchanged: so the rank
        0 of a group can write each of its updates. If it ``may_go_back`` it goes back to a saved
        state that is no part of its own history; it says whether it has. Raises OutputError.
        """
        went_back = False
        if not self._group.leads or self._epoch != self._group.epoch:
            self.close()
        if self._group.leads and self._opened is None:
            self._epoch = self._group.epoch
            with self._unless_replaced():
                run, shown = self._opened = self._open_run(self._files)
                other = self._others(run, shown)
                if other is not None and not may_go_back:
                    self.close()
                elif other is not None:
                    self._go_back(run, other, shown)
                    went_back = True
                else:
                    # Keep the rows that led to this state: those up to the checkpoint before it,
                    # and after it those of the same groups.
                    kept = min(self.rows, default=self._state.counters.update + 1) - 1
                    run.go_on(kept, {u: str(row.get(GROUP)) for u, row in self.rows.items()})
                    self._write_rows()
        return went_back

    def _others(self, run: RunDirectory, shown: Display) -> dict[str, Any] | None:
        """Return what is saved, if that is of another history than this process's."""
        begins = self._resume and not self._state.counters.update
        saves = map(run.checkpoint_path, ("latest", "previous"))
        if not self._shared_only or not (begins or any(path.exists() for path in saves)):
            return None
        if (saved := run.load(shown.note)) is None:
            return None
        update, key = saved["counters"]["update"], saved.get(GROUP, "")
        # An older one is from a time when other machines wrote to folders of their own.
        same = update < self.saved[0] or (update, key) == self.saved or key == self._key(update)
        return None if same else saved

    def _go_back(self, run: RunDirectory, saved: dict[str, Any], shown: Display) -> None:
        state = self._state
        state.load_state_dict(saved)
        state.start_clock()
        self.rows, self.saved = {}, (state.counters.update, saved.get(GROUP, ""))
        run.rewind(state.counters.update, shown.note)

    def _key(self, update: int) -> str | None:
        """Return the key of the group that made an update since the newest checkpoint."""
        return self.rows[update].get(GROUP, "") if update in self.rows else None

    @contextmanager
    def _unless_replaced(self) -> Iterator[None]:
        """Drop what cannot be written because another rank has become rank 0: that one writes."""
        try:
            yield
        except SupersededError:
            self.close()
        except OutputError:
            if self._group.still_leads():
                raise
            self.close()

    def _write_rows(self) -> None:
        assert self._opened is not None
        run, _ = self._opened
        newest = run.metrics.newest
        for update in reversed([*takewhile(lambda update: update > newest, reversed(self.rows))]):
            run.log(update, self.rows[update])
            self._group.note_record(update)
        if not self._shared_only:  # no other process could have to write them
            self.rows.clear()

    def interruption(
        self, stopper: Stopper, agree: Callable[[int], int] = lambda number: number
    ) -> Stop:
        """Return what shows steps amid an update, and stops it at a signal that ranks agree on."""

        def interrupted(steps: int) -> bool:
            if self._opened is not None:
                self._opened[1].update({"steps": steps})
            stopper.request(agree(stopper.signal))
            return bool(stopper.signal)

        return interrupted

    def record(self, metrics: dict[str, Any], events: Sequence[str] = ()) -> None:
        """Record the update that was just counted, and show ``events``; its own were shown."""
        # Keep the row until it is written.
        state, update = self._state, self._state.counters.update
        metrics["seconds"] = state.counters.seconds
        happened = [*metrics.pop("events", ()), *events, *filter(None, [state.restored])]
        texts = {"alarm": state.rang, "events": happened, GROUP: self._group.key}
        row = metrics | {key: value for key, value in texts.items() if value}
        self.rows[update] = row
        self.lead()
        if self._opened is not None:
            with self._unless_replaced():
                self._record(*self._opened, metrics, events)

    def _record(
        self, run: RunDirectory, shown: Display, metrics: dict[str, Any], events: Sequence[str]
    ) -> None:
        """Write and show the newest update; score and save where it is time to."""
        state, update = self._state, self._state.counters.update
        # Tell the user what happened; an alarm is shown until it has passed.
        for line in (*events, *run.storage_news(), *filter(None, [state.restored])):
            shown.note(line)
        self._note_late(metrics.get("late_steps", 0.0), shown)
        stands = state.alarm is not None and state.alarm.on
        self._shown = (state.rang or self._shown) if stands else None
        # Log at once: a rank that takes over from one that is lost while it scores goes on after.
        self._write_rows()
        # Score; write the policy if it is the best so far.
        if state.config.scores_at(update):
            best_before = state.counters.best_update
            scores = state.score()
            run.log(update, scores)
            metrics |= scores
            if update in self.rows:
                self.rows[update] |= scores
            if state.counters.best_update != best_before:
                self._try_to_save(run, shown, self._save_best)
        shown.update(metrics, alarm=self._shown)
        if update % state.config.checkpoint_every == 0 or len(self.rows) >= _MOST_ROWS:
            self._try_to_save(run, shown, self._save_newest)
            run.store()

    def _save_best(self, run: RunDirectory) -> None:
        if not run.checkpoint_path("latest").exists():
            self._save(run)  # a run with a policy can be resumed
        self._save(run, best=True)
        run.save_policy(self._state.policy())

    def _save_newest(self, run: RunDirectory) -> None:
        self._save(run)
        if not self._state.counters.best_update:  # so that a run that is killed leaves one, too
            run.save_policy(self._state.policy())

    def _try_to_save(
        self, run: RunDirectory, shown: Display, save: Callable[[RunDirectory], None]
    ) -> None:
        """Save; where a file system does not answer twice, go on without and say so once."""
        try:
            twice(lambda: save(run))
            if self._unsaved:
                shown.note(f"{run.path}: saved again")
            self._unsaved = False
        except OutputError as error:
            if not error.passing:
                raise
            if not self._unsaved:
                shown.note(f"warning: {error}; training goes on without this checkpoint")
            self._unsaved = True

    def finish(self, *, scored: bool = True) -> bool:
        """Save, score unless there is no time, write the policy; say whether this rank 0 did so."""
        state, update = self._state, self._state.counters.update
        self.lead()
        if self._opened is None:
            return False
        run, _ = self._opened
        with self._unless_replaced():
            # Saved before the closing score, so that stopping and resuming changes nothing.
            twice(lambda: self._save(run))
            if scored and state.scored_update != update:
                scores = state.score()
                if state.over or state.time_is_up:
                    run.log(update, scores | {CLOSING: "at its end"})
            if state.counters.best_update == update:
                twice(lambda: self._save(run, best=True))
            twice(lambda: run.save_policy(state.policy()))
            self.policy_path = str(run.policy_path)
        return self._opened is not None

    def _note_late(self, share: float, shown: Display) -> None:
        if share > MOST_LATE and not self._noted_late:
            self._noted_late = True
            shown.note(
                f"warning: {share:.0%} of this update's steps were late (more than "
                f"{MOST_LATE:.0%}): the machine is too slow for so many links; see late_steps in "
                "the metrics"
            )

    def _save(self, run: RunDirectory, *, best: bool = False) -> None:
        state = self._state
        if not self._shared_only:
            run.save(state.state_dict(), best=best)
            return
        update = state.counters.update
        key = self._key(update) or self.saved[1]
        run.save(state.shared_state() | {GROUP: key}, best=best)
        if not best:
            self.saved = update, key
