"""Real Ray with members that pretend to train: their pace, scores and ends are the test's to say.

Run as ``python -m tests.tune.members OUT TIME_ATTR KEEP ENDS``; `ENDS` is how member 1 ends in its
sixth update, if it does. Member 0 is the best and takes three times as long as the other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from ray import tune

from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.tune import ray_tune
from distrlcc.tune.outcome import POLICY, write_outcome
from distrlcc.tune.report import Report, Segment
from distrlcc.tune.tune_config import PBTConfig, TuneConfig, steps_per_update
from tests.hosts import wait_until

UPDATES, SECONDS = 12, 0.15
INTERVALS = {"update": 2.0, "steps": 200.0, "training_iteration": 2.0, "time_total_s": 0.4}


def member_process(config: TuneConfig, folder: str, end: str) -> Any:
    """Return what a member runs: it notes what it went on from."""

    def train(values: dict[str, Any]) -> None:
        number = int(tune.get_context().get_trial_name()[-5:])
        update, found = 0, tune.get_checkpoint()
        if found is not None:
            with found.as_directory() as place:
                state = json.loads((Path(place) / "state").read_text())
            update = state["update"]
            with (Path(folder) / "restored").open("a") as file:
                file.write(f"{number} {state['member']} {update}\n")
        # They begin together, however long a busy host takes to start one of them.
        (Path(folder) / f"begun-{number}").touch()
        wait_until((Path(folder) / f"begun-{1 - number}").exists, 120.0, "the other member")
        while update < UPDATES:
            time.sleep(SECONDS if number else 3 * SECONDS)
            update += 1
            if number and update == 6:
                ENDS.get(end, int)(1)
            score, schedule = 1.0 - number, (Segment(0, number, values),)
            report = Report(
                number,
                update,
                100 * update,
                *(score, score, 0.9, 0.1, 0.0),
                "argmax",
                1.0,
                schedule,
            )
            told: dict[str, Any] = {"score": score, "update": update, "steps": 100 * update}
            told |= {"report": msgspec.json.encode(report).decode(), "done": update == UPDATES}
            with tempfile.TemporaryDirectory() as place:
                (Path(place) / "report.json").write_bytes(msgspec.json.encode(report))
                (Path(place) / POLICY).write_bytes(b"weights")
                (Path(place) / "state").write_text(json.dumps({"member": number, "update": update}))
                tune.report(told, checkpoint=tune.Checkpoint.from_directory(place))

    return train


def raise_(_: int) -> None:
    raise ValueError("no luck")


def kill(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


ENDS: dict[str, Any] = {"raise": raise_, "exit": sys.exit, "_exit": os._exit, "kill": kill}


def main() -> None:
    folder, time_attr, keep, end = sys.argv[1:]
    pbt: Any = PBTConfig(2, INTERVALS[time_attr], time_attr, quantile=0.5, log_config=False)  # type: ignore[arg-type]
    recipe_ = replace(recipe("quickstart"), max_seconds=0.0)
    run = replace(recipe_, total_steps=UPDATES * steps_per_update(recipe_))
    space = ("ppo.lr=loguniform:1e-5:1e-2",)
    config = TuneConfig(
        run, space, report_every=1, keep=int(keep), failures=0, cpus_per_trial=0.5, pbt=pbt
    )
    ray_tune._member_process = lambda tuner: member_process(tuner, folder, end)
    out = Path(folder) / "out"
    with RunDirectory.create(out, config, tensorboard=False) as directory:
        stopped, failures = ray_tune.run(config, directory, cpus=1, resume=False, show=print)
        write_outcome(out, config, failures, draw=False)
    assert not stopped


if __name__ == "__main__":
    main()
