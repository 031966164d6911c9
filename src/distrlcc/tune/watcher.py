"""Ray Tune's callback: hands reports and checkpoints to the recorder, and hears the user's stop.

Imports Ray: import this module where Ray is known to be installed. Ray pickles callbacks with the
tuner and brings them back when it resumes, so this one holds nothing: the recorder is the one of
the tuner that runs.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ray import tune

from distrlcc.runs.stopper import Stopper
from distrlcc.tune.member import POLICY, REPORT
from distrlcc.tune.recorder import Recorder
from distrlcc.tune.report import decode

SNAPSHOT_SECONDS = 1.0
"""Time between two snapshots of Ray Tune's state."""


class Interrupted(KeyboardInterrupt):
    """The user or the system said stop, and Ray Tune's state was saved after that."""


@dataclass
class Watch:
    """What a tuner that runs is watched with."""

    recorder: Recorder
    stopper: Stopper
    heard: float | None = None
    """When the stop was first seen."""


WATCH: ContextVar[Watch] = ContextVar("WATCH")
"""Of the tuner that runs in this process."""


class Watcher(tune.Callback):
    """A callback for `ray.tune.RunConfig`."""

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a report."""
        if "report" in result:
            WATCH.get().recorder.record(decode(result["report"]))

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        """Keep the checkpoint's policy if it is the best."""

        def read(name: str) -> bytes:
            with checkpoint.filesystem.open_input_stream(f"{checkpoint.path}/{name}") as file:
                return bytes(file.read())

        WATCH.get().recorder.keep(decode(read(REPORT)), lambda: read(POLICY))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """End the tuner after a stop, once a snapshot has been taken.

        Raises:
            Interrupted: Then.
        """
        watch = WATCH.get()
        if not watch.stopper.signal:
            return
        now = time.monotonic()
        watch.heard = watch.heard or now
        if now - watch.heard > 1.3 * SNAPSHOT_SECONDS:
            raise Interrupted
