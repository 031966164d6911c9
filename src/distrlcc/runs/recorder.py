"""What rank 0 does after an update: score, save, log and show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from distrlcc.net.flow_record import MOST_LATE
from distrlcc.policy.policy_file import save_policy
from distrlcc.runs.progress import Display
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import RunState
from distrlcc.runs.source import Stop
from distrlcc.runs.stopper import Stopper

OpenRun = Callable[[ExitStack, int], tuple[RunDirectory, Display]]
"""Opens a run's directory and what shows its progress, both closed by the stack; called by a rank
that becomes rank 0, with the number of updates whose lines are kept."""


class Leader(Protocol):
    """Says whether this process is rank 0, which scores, logs and saves; one alone always is."""

    @property
    def leads(self) -> bool:
        """Whether it was rank 0 at the newest update."""
        return True

    def still_leads(self) -> bool:
        """Say whether it was not replaced while it was suspended."""
        return True

    def note_record(self, update: int) -> None:
        """Note for a later rank 0 that an update's row is written."""
        return

    def newest_record(self) -> int:
        """Return the newest update whose row a rank 0 has written."""
        return 0


class Recorder:
    """Writes a run's directory and shows its progress while this process is rank 0."""

    def __init__(
        self, state: RunState, group: Leader, open_run: OpenRun, *, shared_only: bool = False
    ) -> None:
        """Record a state's updates; a context manager.

        The group is asked before and after each scoring, before anything is written: another rank
        may have taken over while this one was suspended. Several processes save ``shared_only``
        what all ranks share.
        """
        self._state, self._group, self._open_run = state, group, open_run
        self._shared_only = shared_only
        self._files = ExitStack()
        self._opened: tuple[RunDirectory, Display] | None = None
        self._newest = -1
        """The newest update that was recorded here."""
        self._unwritten: dict[int, dict[str, Any]] = {}
        """Rows of the newest two updates, which rank 0 may be lost before it writes."""
        self._shown: str | None = None
        self._noted_late = False
        self.policy_path = ""
        """Where this process has written the run's policy."""

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; the next update that is recorded here opens them again."""
        self._files.close()
        self._opened = None

    def interruption(
        self, stopper: Stopper, agree: Callable[[int], int] = lambda number: number
    ) -> Stop:
        """Return what shows the steps in the middle of an update, and breaks it off on a signal.

        All ranks call ``agree`` with the signal that they have heard; it returns one of any rank.
        """

        def interrupted(steps: int) -> bool:
            if self._opened is not None:
                self._opened[1].update({"steps": steps})
            stopper.request(agree(stopper.signal))
            return bool(stopper.signal)

        return interrupted

    def record(self, metrics: dict[str, Any], events: Sequence[str] = ()) -> None:
        """Record the update that was just counted, and what happened before it.

        Args:
            metrics: What is logged and shown; ``events`` among them were shown already.
            events: What is shown at once, and logged.
        """
        # Keep the row of this update and of the one before.
        state, update = self._state, self._state.counters.update
        metrics["seconds"] = state.counters.seconds
        happened = [*metrics.pop("events", ()), *events, *filter(None, [state.restored])]
        texts = {"alarm": state.rang, "events": happened}
        row = metrics | {key: value for key, value in texts.items() if value}
        self._unwritten = {k: r for k, r in self._unwritten.items() if k == update - 1} | {
            update: row
        }
        # Where another rank wrote updates that were missed here, read again what it left.
        if not self._group.leads or self._newest != update - 1:
            self.close()
        if not self._group.leads or not self._group.still_leads():
            return
        run, shown = self._open_after(update - 1)
        # Tell the user what happened; an alarm is shown until the state is restored.
        for line in (*events, *run.storage_news(), *filter(None, [state.restored])):
            shown.note(line)
        self._note_late(metrics.get("late_steps", 0.0), shown)
        self._shown = None if state.restored else state.rang or self._shown
        # Log at once: a rank that takes over from one that is lost while it scores goes on after.
        run.metrics.log(update, row)
        self._group.note_record(update)
        self._newest = update
        # Score; write the policy if it is the best so far.
        if state.config.scores_at(update):
            best_before = state.counters.best_update
            scores = state.score()
            if not self._group.still_leads():
                return
            run.metrics.log_more(update, row, scores)
            metrics |= scores
            if state.counters.best_update != best_before:
                self._save(run, best=True)
                save_policy(run.policy_path, state.policy())
        shown.update(metrics, alarm=self._shown)
        if update % state.config.checkpoint_every == 0:
            self._save(run)
            if not state.counters.best_update:  # so that a run that is killed leaves one, too
                save_policy(run.policy_path, state.policy())
            run.store()

    def finish(self, *, scored: bool = True) -> None:
        """Save, score the newest weights unless there is no time for it, and write the policy."""
        state, update = self._state, self._state.counters.update
        run, _ = self._open_after(update)
        # Saved before the closing score, so that stopping and resuming changes nothing.
        self._save(run)
        if scored and state.scored_update != state.counters.update:
            state.score()
            if not self._group.still_leads():
                return
        if state.counters.best_update == state.counters.update:
            self._save(run, best=True)
        save_policy(run.policy_path, state.policy())
        self.policy_path = str(run.policy_path)

    def _open_after(self, update: int) -> tuple[RunDirectory, Display]:
        """Open the files if they are not open; they hold the rows up to this update.

        Another rank 0 may have been lost between the update and its row, which every rank has.
        """
        missed = self._newest != update and update in self._unwritten
        missed = missed and self._group.newest_record() < update
        if self._opened is None:
            self._opened = self._open_run(self._files, update - 1 if missed else update)
        if missed:
            self._opened[0].metrics.log(update, self._unwritten[update])
        return self._opened

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
        run.save(state.shared_state() if self._shared_only else state.state_dict(), best=best)
