"""What rank processes of the tests run; as a program it is a launcher: KIND FOLDER PLACE...."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from distrlcc.errors import GroupError, OutputError
from distrlcc.parallel import process_group
from distrlcc.parallel.gate import TunnelStore
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.process_group import PeerLostError, ProcessGroup
from distrlcc.runs.identity import identity
from distrlcc.runs.options import RankSpec
from distrlcc.runs.stopper import Stopper


@dataclass(frozen=True)
class Settings:
    lr: float = 0.1
    hidden: tuple[int, ...] = (4, 4)


@dataclass(frozen=True)
class Job:
    kind: str
    folder: Path
    resume: bool = False


def simple(spec: RankSpec, job: Job) -> Any:
    """Do what ``job.kind`` says, without a group."""
    (job.folder / f"{spec.slot}-{spec.attempt}.pid").write_text(str(os.getpid()))
    return globals()[f"_{job.kind}"](spec, job)


def _answer(spec: RankSpec, job: Job) -> dict[str, Any]:
    place_in = (os.environ.get("DISTRLCC_TEST_PLACE"), str(Path.cwd()))
    return {"slot": spec.slot, "large": np.arange(100_000) + spec.slot, "place": place_in}


def _refuse(spec: RankSpec, job: Job) -> int:
    if spec.slot == 1:
        raise GroupError("this rank would rather not", exit_code=2)
    return _sleep(spec, job)


def _crash(spec: RankSpec, job: Job) -> int:
    if spec.slot == 1:
        raise ZeroDivisionError("a bug\nof two lines")
    return _sleep(spec, job)


def _sleep(spec: RankSpec, job: Job) -> int:
    time.sleep(60)
    return 0


def _stop(spec: RankSpec, job: Job) -> int:
    with Stopper(launched=True) as stopper:
        (job.folder / f"{spec.slot}.ready").touch()
        while not stopper.signal:
            time.sleep(0.01)
        (job.folder / f"{spec.slot}.saved").touch()
    return stopper.signal


def _cannot_save(spec: RankSpec, job: Job) -> int:
    """Be asked to stop, and find the disk full."""
    _stop(spec, job)
    raise OutputError("cannot write the checkpoint: no space left")


def _deaf(spec: RankSpec, job: Job) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (job.folder / f"{spec.slot}.ready").touch()
    return _sleep(spec, job)


def _freeze(spec: RankSpec, job: Job) -> int:
    if spec.slot == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return 0


def _late_error(spec: RankSpec, job: Job) -> int:
    """Fail on rank 0 after rank 1 was done, as a last save on a full disk does."""
    if spec.slot == 0:
        time.sleep(1.0)
        raise GroupError("no space left", exit_code=2)
    return 0


def _die_once(spec: RankSpec, job: Job) -> int:
    """Kill rank 1 the first time; say whether it was told to resume."""
    if spec.slot == 0 and not spec.elastic and spec.attempt == 0:
        return _sleep(spec, job)
    if spec.slot == 1 and spec.attempt == 0 and not (job.folder / "died").exists():
        (job.folder / "died").touch()
        _die()
    (job.folder / f"{spec.slot}.resumed").write_text(str(job.resume))
    deadline = time.monotonic() + 60.0  # the run ends with the first that has done
    while not (job.folder / "1.resumed").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return 0


def exercise(spec: RankSpec, job: Job) -> dict[str, Any]:
    """Exchange, miss one, lose one, and go on until the folder says stop."""
    with ProcessGroup(spec, identity(Settings(), processes=spec.size)) as group:
        # What all do together, in this order.
        found: dict[str, Any] = {
            "first": (group.agree(0, ready=spec.slot == 1), group.rank, group.size),
            "sum": group.sum(np.array([1.0, 10.0**group.rank, 1e300])).tolist(),
            "means": [_mean(group, weights) for weights in ((1, 3, 0), (0, 0, 5), (0, 0, 0))],
            "broadcasts": [
                group.broadcast(payload if group.rank == source else b"mine", source) == payload
                for source, payload in enumerate([b"x", b"yz", bytes(range(256)) * 4096])
            ],
            "steps": group.agree(5 if spec.slot == 2 else 1, ready=False),
            "counts": _counts(group),
        }
        # Rank 2 misses an exchange, and is still of the group.
        begin = time.monotonic()
        try:
            if spec.slot == 2:
                time.sleep(3 * spec.timeout_seconds)
            else:
                group.sum(np.ones(1))
        except PeerLostError:
            found["missed after"] = time.monotonic() - begin
        found["agreed again"] = group.agree(6, ready=False)
        found["sum again"] = group.sum(np.ones(1)).tolist()
        # Rank 2 dies: the others go on without it.
        if spec.slot == 2:
            _die()
        try:
            group.sum(np.ones(1))
        except PeerLostError:
            found["lost"] = group.agree(7, ready=False)
        (job.folder / f"{spec.slot}.alone").touch()
        found["later"] = go_on(group, job.folder, 7)
    return found


def _mean(group: ProcessGroup, weights: tuple[float, ...]) -> list[float]:
    gradient = torch.tensor([group.rank + 1.0, 8.0])
    group.mean_gradient(gradient, weights[group.rank])
    return gradient.tolist()


def _counts(group: ProcessGroup) -> list[int]:
    counts = []
    for finisher in (None, 0, 1, 2, 1):
        if group.rank == finisher:
            group.count_finished()
        group.sum(np.zeros(1))
        counts.append(group.others_finished())
        group.sum(np.zeros(1))
    return counts


def go_on(group: ProcessGroup, folder: Path, step: int, missed: Any = None) -> list[Any]:
    """Agree and exchange until the folder says stop; return the quorums that changed the group."""
    seen: list[Any] = []
    stop = 0.0
    while not stop:
        step, quorum, missed = step + 1, missed or group.agree(step + 1, ready=False), None
        if quorum.left or quorum.joined:
            seen.append((quorum, group.size))
        try:
            if quorum.behind:
                payload = b"the newest" if group.rank == 0 else b""
                assert group.broadcast(payload, 0) == b"the newest"
                step = group.members[0].step
            stop = float(group.sum(np.array([float((folder / "stop").exists())]))[0])
        except PeerLostError:
            continue
        time.sleep(0.05)
    return seen


@dataclass(frozen=True)
class Disturbed:
    """A training run in which something happens."""

    train: Any
    what: str
    update: int = 0


def disturbed(spec: RankSpec, job: Disturbed) -> int:
    """Train; ``job.what`` says what goes wrong meanwhile."""
    from distrlcc.parallel.start import train_rank

    globals()[f"_{job.what}"](spec, job)
    warnings.warn(f"odd on {spec.slot}", stacklevel=1)
    return train_rank(spec, job.train)


def _before(module: str, owner: str, name: str, act: Callable[..., object]) -> None:
    """Call a function each time before a method of a class, with what the method gets."""
    found = getattr(importlib.import_module(f"distrlcc.{module}"), owner)
    method = getattr(found, name)

    def both(*words: Any, **named: Any) -> Any:
        act(*words)
        return method(*words, **named)

    setattr(found, name, both)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _score_slowly(spec: RankSpec, job: Disturbed) -> None:
    def slow(*_: Any) -> None:
        assert spec.slot == 0, "only rank 0 scores"
        time.sleep(5.0)

    _before("runs.held_out", "HeldOut", "score", slow)


def _slow_steps(spec: RankSpec, job: Disturbed) -> None:
    _before("env.vector", "LinkVectorEnv", "step", lambda *_: time.sleep(0.01 * spec.slot))


def _flip_a_bit(spec: RankSpec, job: Disturbed) -> None:
    def flip(state: Any, _: Any) -> None:
        if spec.slot == 1 and state.counters.update + 1 == job.update:
            state.learner.optimizer.flat.data.view(torch.int32)[7] ^= 1 << 10

    _before("runs.run_state", "RunState", "commit", flip)


def _send_nan(spec: RankSpec, job: Disturbed) -> None:
    """Rank 1's gradients are no numbers in two updates, rank 2's statistics in one."""
    update = 0

    def note(group: Any, step: int) -> None:
        nonlocal update
        update = step

    def spoil_gradient(group: Any, gradient: torch.Tensor, weight: float) -> None:
        if (spec.slot, update) in ((1, job.update), (1, job.update + 3)):
            gradient[3] = torch.inf

    def spoil_statistics(group: Any, state: Any, safe: Any, batch: Any, stats: Any, _: Any) -> None:
        if (spec.slot, update) == (2, job.update + 1):
            stats.reward = np.nan

    _before("parallel.process_group", "ProcessGroup", "agree", note)
    _before("parallel.process_group", "ProcessGroup", "mean_gradient", spoil_gradient)
    _before("parallel.decentralized", "ElasticGroup", "_learn", spoil_statistics)


def _die_later(spec: RankSpec, job: Disturbed) -> None:
    """Rank 1 dies in the middle of an update."""
    update = 0

    def note(group: Any, step: int) -> None:
        nonlocal update
        update = step

    def die(*_: Any) -> None:
        if spec.slot == 1 and update == job.update:
            _die()

    _before("parallel.process_group", "ProcessGroup", "agree", note)
    _before("parallel.process_group", "ProcessGroup", "mean_gradient", die)


def _be_late(spec: RankSpec, job: Disturbed) -> None:
    """Too many of rank 1's steps are late in one update, and of all ranks' in the next."""

    def mark(group: Any, state: Any, batch: Any, stats: Any) -> None:
        late = state.counters.update - job.update
        stats.timed_steps = stats.steps
        stats.late_steps = stats.steps * (0.4 if late == 1 or (late, spec.slot) == (0, 1) else 0.2)

    _before("parallel.decentralized", "ElasticGroup", "update", mark)


def _die_unrecorded(spec: RankSpec, job: Disturbed) -> None:
    """Rank 0 dies when an update is agreed on, and nothing of it is written."""

    def die(state: Any, _: Any) -> None:
        if spec.slot == 0 and state.counters.update + 1 == job.update:
            _die()

    _before("runs.run_state", "RunState", "commit", die)


def _die_saving(spec: RankSpec, job: Disturbed) -> None:
    if spec.slot == 0:
        _before("runs.recorder", "Recorder", "finish", lambda _: _die())


def lose_one(spec: RankSpec, slot: int) -> float:
    """Exchange while a rank dies that had not yet begun; return the time until that fails."""
    with ProcessGroup(spec, {"config": ""}) as group:
        group.agree(0, ready=True)
        group.sum(np.ones(1))
        if spec.slot == slot:
            time.sleep(1.0)
            _die()
        begin = time.monotonic()
        with suppress(PeerLostError):
            group.sum(np.ones(1))
        seconds = time.monotonic() - begin
        group.agree(1, ready=True)
    return seconds


class _Freezing(TunnelStore):
    """A store whose member freezes once the others know its address, before it knows theirs."""

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        with subprocess.Popen(["sh", "-c", f"sleep 10; kill -KILL {os.getpid()}"]):
            os.kill(os.getpid(), signal.SIGSTOP)
        return b""


def freeze_while_building(spec: RankSpec, slot: int) -> tuple[float, int]:
    """Agree while a rank freezes; return how long the rest took to exchange, and their number."""
    if spec.slot == slot:
        prefixed, kept = process_group.at_master.PrefixStore, list[_Freezing]()  # type: ignore[attr-defined]

        def freezing(key: str, store: Any) -> Any:
            kept.append(_Freezing(store, None))  # type: ignore[arg-type]
            return prefixed(key, kept[-1])

        process_group.at_master.PrefixStore = freezing  # type: ignore[attr-defined]
    with ProcessGroup(spec, {"config": ""}) as group:
        begin = time.monotonic()
        while True:
            group.agree(0, ready=True)
            with suppress(PeerLostError):
                group.sum(np.ones(1))
                return time.monotonic() - begin, group.size


def freeze_between_collectives(spec: RankSpec, seconds: float) -> list[float]:
    """Rank 2 freezes where no exchange fails; return the times between two steps."""
    gaps: list[float] = []
    step, last, ready = 0, 0.0, False
    with ProcessGroup(spec, {"config": ""}) as group:
        while step < 45:
            quorum = group.agree(step, ready=ready)
            try:
                if quorum.behind:
                    step = int(group.broadcast(str(step).encode(), quorum.source))
                group.sum(np.ones(1))
            except PeerLostError:
                continue
            if ready:
                gaps.append(time.monotonic() - last)
            last = time.monotonic()
            step, ready = step + 1, True
            if spec.slot == 2 and step == 10:
                command = f"sleep {seconds}; kill -CONT {os.getpid()}"
                with subprocess.Popen(["sh", "-c", command]):
                    os.kill(os.getpid(), signal.SIGSTOP)
                    last = time.monotonic()
            time.sleep(0.2)
    return gaps


def main() -> None:
    """Launch two ranks, elastic if a third word says so, or a node's with its slot and a port."""
    kind, folder, *more = sys.argv[1:]
    specs = [RankSpec("127.0.0.1", 0, slot, 2, elastic=bool(more)) for slot in range(2)]
    if len(more) == 2:
        specs = [RankSpec("127.0.0.1", int(more[1]), int(more[0]), 2)]
    try:
        outcome = Launcher(simple, Job(kind, Path(folder)), specs).run()
    except KeyboardInterrupt:
        sys.exit(130)
    except GroupError as error:
        sys.stderr.write(f"distrlcc: error: {error}\n")
        sys.exit(error.exit_code)
    sys.exit(outcome.code)


if __name__ == "__main__":
    main()
