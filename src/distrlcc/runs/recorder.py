"""What rank 0 does after an update: score, save, log and show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distrlcc.learn.collect_stats import CollectStats
from distrlcc.net.flow_record import MOST_LATE
from distrlcc.policy.policy_file import save_policy
from distrlcc.runs.progress import Display
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.training import Training


class Recorder:
    """Writes a run's directory and shows its progress."""

    def __init__(
        self,
        training: Training,
        run: RunDirectory,
        progress: Display,
        *,
        shared_only: bool = False,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take what to record and where.

        Args:
            training: What is trained.
            run: Where everything is written; closed by the caller.
            progress: Where the user looks.
            shared_only: Save only what all ranks share, as several processes do.
            leads: Asked after each scoring, before anything is written: another rank may have taken
                over while this one stood still.
        """
        self._training, self._run, self._progress = training, run, progress
        self._shared_only, self._leads = shared_only, leads
        self._shown: str | None = None
        self._noted_late = False

    def note(self, event: str) -> None:
        """Tell the user at once."""
        self._progress.note(event)

    def record(
        self, metrics: dict[str, float], stats: CollectStats, events: Sequence[str] = ()
    ) -> None:
        """Record the update that was just counted, and what happened before it."""
        training, config = self._training, self._training.config
        for line in self._run.storage_news():
            self.note(line)
        self._note_late(metrics.get("late_steps", 0.0))
        counters = training.counters
        metrics["seconds"] = counters.seconds
        alarm = training.rang
        self._shown = alarm or self._shown
        if training.restored:
            self.note(training.restored)
            self._shown = None
        texts = {"alarm": alarm, "events": [*events, *filter(None, [training.restored])]}
        row = metrics | {k: v for k, v in texts.items() if v}
        # At once: whoever takes over from a rank that is lost while it scores goes on after it.
        self._run.metrics.log(counters.update, row)
        if counters.update % config.held_out.every == 0:
            best_before = counters.best_update
            scores = training.score()
            if not self._leads():
                return
            self._run.metrics.log_more(counters.update, row, scores)
            metrics |= scores
            row |= scores
            if counters.best_update != best_before:
                self._save(best=True)
                save_policy(self._run.policy_path, training.policy())
        if not self._search(metrics, row):
            return
        self._progress.update(metrics, alarm=self._shown)
        if counters.update % config.checkpoint_every == 0:
            self._save()
            self._run.store()

    def _search(self, metrics: dict[str, float], row: dict[str, Any]) -> bool:
        """Search for the curriculum's next links if it is time; False: another rank leads now."""
        training = self._training
        proposal = training.search()
        if proposal is None:
            return True
        if not self._leads():
            return False
        assert training.curriculum is not None
        found = {"curriculum_gap": proposal.gap, "curriculum_baseline": proposal.baseline}
        row["events"] = [*row.get("events", []), str(proposal)]
        self._run.metrics.log_more(training.counters.update, row, found)
        self._run.write_json("curriculum.json", training.curriculum.table())
        self.note(str(proposal))
        metrics |= found
        return True

    def _note_late(self, share: float) -> None:
        if share > MOST_LATE and not self._noted_late:
            self._noted_late = True
            self.note(
                f"warning: {share:.0%} of this update's steps were late (more than "
                f"{MOST_LATE:.0%}): the machine is too slow for so many links; see late_steps in "
                "the metrics"
            )

    def finish(self, *, scored: bool = True) -> None:
        """Save, score once more unless there is no time for it, and write the policy."""
        # Saved before the closing score, so that stopping and resuming changes nothing.
        self._save()
        if scored:
            self._training.score()
            if not self._leads():
                return
        if self._training.counters.best_update == self._training.counters.update:
            self._save(best=True)
        save_policy(self._run.policy_path, self._training.policy())

    def _save(self, *, best: bool = False) -> None:
        training = self._training
        state = training.shared_state() if self._shared_only else training.state_dict()
        self._run.save(state, best=best)
