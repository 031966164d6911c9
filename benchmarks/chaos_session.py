"""A session of chaos: one run on hosts of its own, its faults, its ends, and what came of each."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random

from benchmarks.chaos_run import ChaosRun, name, resident_mb, wait_until
from benchmarks.fault import HOSTS, Fault, Promise, draw, promise
from benchmarks.stranger import scan
from tests.support.namespaces import Hosts
from tests.support.verdict import (
    file_faults,
    left_files,
    listening,
    log_faults,
    row_faults,
    shared_memory,
)

_START, _BACK, _GONE, _AIM = 120.0, 90.0, 20.0, 8.0
"""Within what a run begins, all of its ranks are back, all processes are gone, an aim is met, s."""
_GROWN, _CALM, _MAY_END, _LAST = 3, 3.0, 10.0, 5.0
"""Updates after which a run goes on, and s for which it is watched then, or where it may end: Ray's
ranks go on without its server while the launcher takes it down."""
_NEW = 30.0
"""A command that was started less than this ago, s, may not have found its run."""
_DISK_MB, _MOST_GROWTH_MB = 48, 60.0
_RUNS = -99
"""In place of an exit code."""


@dataclass
class Outcome:
    """What came of a fault, an end or a resumption."""

    topology: str
    session: int
    what: str
    kind: str
    hit: str = ""
    """The processes that were hit."""
    named: float | None = None
    """After how many seconds the others named them; None where nobody need."""
    seconds: float = 0.0
    """Until the run went on after the fault, or all of it had ended."""
    update_ms: float = 0.0
    """Time of an update once the run had gone on; 0: it had ended."""
    leader_mb: float = 0.0
    """Resident memory of the process that leads, then."""
    codes: dict[int, int] = field(default_factory=dict)
    """Exit codes of those that ended, by host."""
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        named = "" if self.named is None else f", named after {self.named:.1f} s"
        named += f", {self.hit}" if self.kind == "garbage" else ""
        codes = f", codes {list(self.codes.values())}" if self.codes else ""
        lines = "".join(f"\n    FAILED: {failure}" for failure in self.failures)
        return f"{self.topology}: {self.what}: {self.seconds:.1f} s{named}{codes}{lines}"


class Session:
    """One session; a context manager that leaves nothing but the folder of a failed one."""

    def __init__(self, topology: str, seed: int, faults: int, say: Callable[[str], None]) -> None:
        """Draw the session's faults."""
        self._dice = Random(f"{topology}-{seed}")
        self.topology, self.seed = topology, seed
        self.plan = draw(self._dice, topology, faults)
        self.outcomes = list[Outcome]()
        self._say, self._stack = say, ExitStack()
        self._may_leave = dict[int, set[int]]()
        self._expected = Promise()
        self._judged = dict[Path, int]()
        self._first_mb = dict[int, float]()
        """Each leader's resident memory when it was first looked at."""

    def __enter__(self) -> Session:
        with ExitStack() as stack:
            # Folders and hosts; the last host is the stranger's. A disk that is filled is small.
            self.folder = Path(tempfile.mkdtemp(prefix="chaos-"))
            stack.callback(self._clear)
            self._disk = self.folder / "disk"
            self._disk.mkdir()
            if any(fault.kind == "full disk" for fault in self.plan):
                disk = ("-t", "tmpfs", "-o", f"size={_DISK_MB}m", "none", str(self._disk))
                subprocess.run(["mount", *disk], check=True)
                stack.callback(self._unmount)
            self._shared = {path.name for path in Path("/dev/shm").iterdir()}
            self._hosts = stack.enter_context(Hosts(HOSTS.get(self.topology, 1) + 1))
            board = [] if self._dice.random() < 0.3 else ["--no-tensorboard"]
            self.run = ChaosRun(self.topology, self._hosts, self.folder, self._disk / "run", *board)
            stack.callback(self.run.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if left := [path.name for path in Path("/run/netns").glob(f"dl{os.getpid()}-*")]:
            self.outcomes[-1].failures.append(f"namespaces are left: {left}")

    def _clear(self) -> None:
        if not self.failures():
            shutil.rmtree(self.folder)

    def _unmount(self) -> None:
        kept = self.folder / "kept"
        with suppress(OSError):
            if self.failures():
                shutil.copytree(self._disk, kept)
        subprocess.run(["umount", "--lazy", str(self._disk)], check=True)

    def failures(self) -> list[str]:
        """Return all that failed."""
        return [failure for outcome in self.outcomes for failure in outcome.failures]

    def play(self) -> None:
        """Start the run and let each fault happen; end it, go on with it once, and end it again."""
        self._begin(again=False)
        for fault in self.plan:
            self._strike(fault)
            if self.topology == "actors" and len(self._workers()) < 2:
                self._strike(Fault("signal", "launcher", number=signal.SIGINT))
            elif self._serves and any(
                (each.kind, each.role, each.host) == ("kill", "server", 0)
                for each in (fault, fault.also)
                if each
            ):
                self._strike(Fault("kill", "launcher"))
        if not any(outcome.kind == "resumed" for outcome in self.outcomes):
            self._strike(Fault("signal", "launcher", number=signal.SIGTERM, pause=-1.0))
        end = Fault("signal", "launcher", number=signal.SIGINT, pause=-1.0)
        self._strike(end, last=True)

    @property
    def _serves(self) -> bool:
        """Whether node 0 only serves the others' ranks: its own do not come back."""
        return self.topology == "nodes" and not self.run.ranks(0)

    def _workers(self) -> list[int]:
        leader = self.run.leader()
        hosts = range(len(self.run.launched))
        return [pid for host in hosts for pid in self.run.ranks(host) if pid != leader]

    def _begin(self, *, again: bool) -> None:
        """Start the run, or go on with it.

        Raises:
            ChaosError: It does not begin; the session is over.
        """
        what = "resumed" if again else "started"
        outcome = Outcome(self.topology, self.seed, what, what)
        self.outcomes.append(outcome)
        self._may_leave.clear()
        begin, before = time.monotonic(), self.run.newest() if again else 0
        self.run.start(again=again)

        def begun() -> bool:
            return self.run.newest() >= before + _GROWN or bool(self.run.codes())

        in_time = wait_until(begun, _START)
        outcome.seconds, outcome.codes = time.monotonic() - begin, self.run.codes()
        if outcome.codes or not in_time:
            outcome.failures.append(f"it does not go on: {self._last_words()}")
        self._say(str(outcome))
        if outcome.failures:
            raise ChaosError

    def _last_words(self) -> str:
        return " | ".join(line[:200] for line in self.run.said().splitlines()[-3:])

    def _settle(self, fault: Fault) -> None:
        """Wait as long as a fault says; the run may end late, from what happened before."""
        run, before, patient = self.run, self.outcomes[-1], fault.pause < 0
        pause = _BACK if patient else fault.pause
        calm = wait_until(lambda: self._over(before) or (patient and run.complete()), pause)
        if 0 in run.codes():
            self._ended(before, self._expected, last=False)
        elif patient and not calm:
            before.failures.append(f"not all ranks are back after {_BACK:.0f} s")
            self._report(before)

    def _strike(self, fault: Fault, *, last: bool = False) -> None:
        """Let a fault happen, and see whether what is promised follows."""
        # Choose whom it hits, and wait for what it aims at.
        self._settle(fault)
        run = self.run
        faults = [fault, fault.also] if fault.also else [fault]
        hits = [run.find(one.role, one.host, one.pick) if one.role else [] for one in faults]
        pids = hits[0]
        if fault.role and not pids:
            return  # a host that has left, a rank that is being started again
        expected = self._expected = promise(self.topology, fault)
        for host in range(1, HOSTS.get(self.topology, 1)):
            self._may_leave.setdefault(host, set()).update(expected.leaves)
        outcome = Outcome(self.topology, self.seed, str(fault), fault.kind)
        outcome.hit = ", ".join(f"{pid} ({name(pid)[-60:]})" for pid in chain(*hits))
        self.outcomes.append(outcome)
        watch = _Watch(run, outcome, expected, _victims(run, fault, pids))
        if fault.aim:
            run.wait_for(fault.aim, _AIM)
        # Let it happen; then watch until the run has gone on for a while, or has ended.
        with ExitStack() as healing:
            for one, those in zip(faults, hits, strict=True):
                healing.enter_context(self._happening(one, outcome, those))
            watch.begin, seconds = time.monotonic(), max(one.seconds for one in faults)
            until = watch.begin + seconds
            wait_until(lambda: watch.look() or time.monotonic() > until, seconds + 1.0)
        low, healed = run.newest(), time.monotonic()
        watched = _MAY_END if expected.ends else _CALM

        def settled() -> bool:
            nonlocal low
            low, calm = min(low, run.newest()), time.monotonic() - healed
            if watch.look() or expected.must or self._over(outcome):
                return 0 in run.codes()
            if not outcome.seconds and run.newest() >= low + _GROWN:
                outcome.seconds = calm
            if run.newest() > low:
                outcome.update_ms = 1e3 * calm / (run.newest() - low)
            return calm > watched and outcome.seconds > 0.0 and not watch.waits

        in_time = wait_until(settled, max(expected.seconds, 3.0 * expected.named))
        if watch.late:
            outcome.failures.append(f"not named within {expected.named:.0f} s: {outcome.hit}")
        if not in_time and 0 not in run.codes():
            way = "ended" if expected.must else "gone on"
            outcome.failures.append(
                f"it has not {way} after {expected.seconds:.0f} s, update {run.newest()}: "
                f"{self._last_words()}"
            )
        if 0 in run.codes() or (expected.must and not in_time):
            outcome.seconds = time.monotonic() - healed
            outcome.update_ms = 0.0
            self._ended(outcome, expected, last=last)
        else:
            self._weigh(outcome)
            self._report(outcome)

    def _weigh(self, outcome: Outcome) -> None:
        """Note the leader's memory, which must not grow."""
        leader = self.run.leader()
        if leader is None:
            return
        outcome.leader_mb = resident_mb(leader)
        first = self._first_mb.setdefault(leader, outcome.leader_mb)
        if outcome.leader_mb > first + _MOST_GROWTH_MB:
            outcome.failures.append(f"rank 0 has {outcome.leader_mb:.0f} MB, and had {first:.0f}")

    def _report(self, outcome: Outcome) -> None:
        outcome.failures += log_faults(self.run.said(self._judged))
        self._judged = self.run.marks()
        self._say(str(outcome))

    def _over(self, outcome: Outcome) -> bool:
        """Judge nodes that left, and start those again that can join; say whether node 0 ended."""
        codes = self.run.codes()
        for host in set(codes) - {0}:
            if 0 in codes or wait_until(lambda: 0 in self.run.codes(), _LAST):
                return True
            if codes[host] not in self._may_leave.get(host, ()):
                outcome.failures.append(
                    f"host {host} left with {codes[host]}: {self._last_words()}"
                )
            outcome.codes[host] = codes[host]
            del self.run.launched[host]
            if self.topology == "nodes":
                self.run.start_host(host)
        return 0 in codes

    def _ended(self, outcome: Outcome, expected: Promise, *, last: bool) -> None:
        """Judge the end of a run: its exit codes, what it left, what is in its folder; resume."""
        # All end in time, with the codes that were promised; who was just started again may wait.
        run, begin = self.run, time.monotonic()
        for host, when in run.started.items():
            if host in run.launched and run.started[0] + _CALM < when > begin - _NEW:
                with run.launched.pop(host) as late:  # waits for its end
                    late.kill()
        wait_until(lambda: len(run.codes()) == len(run.launched), expected.seconds)
        for host in run.launched:
            code = outcome.codes[host] = run.codes().get(host, _RUNS)
            allowed = {*expected.others, *self._may_leave.get(host, ())}
            alone = "no worker is left" in run.said()  # faults before have taken them all
            if code not in (allowed if host else (*expected.ends, *(3,) * alone)):
                how = "still runs" if code == _RUNS else f"ended with {code}"
                outcome.failures.append(f"host {host} {how}: {self._last_words()}")
        outcome.seconds += time.monotonic() - begin
        # Nothing is left: no process, and with it no port, and no shared memory.
        clean = outcome.codes[0] > 128
        if not wait_until(lambda: not run.processes(), _GONE):
            found = {process.pid: name(process.pid) for process in run.processes()}
            outcome.failures.append(f"after {_GONE:.0f} s are left: {found}")
        else:  # those that are killed here cannot remove theirs
            outcome.failures += left_files(run.out, run.folder / "tmp", saved=clean)
        run.kill()
        if shared := shared_memory(self._shared):
            outcome.failures.append(f"shared memory is left: {shared}")
            self._shared |= shared
        # The folder is whole.
        if outcome.kind == "remove":
            shutil.rmtree(run.out, ignore_errors=True)
        outcome.failures += row_faults(run.out / "metrics.jsonl", whole=clean)
        outcome.failures += file_faults(run.out, run.newest(), saved=clean)
        for path in run.folder.glob("tmp/pymp-*"):  # told once
            shutil.rmtree(path, ignore_errors=True)
        # Go on with what was saved.
        self._report(outcome)
        if not last:
            self._begin(again=(run.out / "config.toml").exists())

    @contextmanager
    def _happening(self, fault: Fault, outcome: Outcome, pids: list[int]) -> Iterator[None]:
        """Let a fault begin, and end it."""
        with ExitStack() as healing:
            match fault.kind:
                case "kill" | "freeze" | "signal":
                    number = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}.get(fault.kind)
                    for pid in pids:
                        with suppress(ProcessLookupError):
                            (os.killpg if fault.group else os.kill)(pid, number or fault.number)
                        if fault.kind == "freeze":
                            healing.callback(_go_on, pid)
                case "cut":
                    self._hosts.cut(fault.host)
                    healing.callback(self._hosts.mend, fault.host)
                case "loss" | "one-way":
                    self._hosts.lose(fault.host, 0.3 if fault.kind == "loss" else 1.0)
                    healing.callback(self._hosts.lose, fault.host, 0.0)
                case "full disk":
                    healing.callback(self._fill().unlink)
                case "remove":
                    shutil.rmtree(self.run.out, ignore_errors=True)
                case "garbage":
                    outcome.hit = self._scan()
            yield

    def _fill(self) -> Path:
        path = self._disk / "filler"
        with suppress(OSError), path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**16))
        return path

    def _scan(self) -> str:
        """Scan every host from the stranger's, and what is open to a host alone from there."""
        accepted = ports = 0
        stranger = f"/run/netns/{self._hosts.names[-1]}"
        for host, command in self.run.launched.items():
            found = listening(command.pid)
            own = {(address, port) for address, port in found if address.startswith("127.")}
            there = self._hosts.address(host)
            others = {(there, port) for _, port in found - own}
            accepted += scan(stranger, others)
            accepted += scan(f"/proc/{command.pid}/ns/net", own)
            ports += len(found)
        return f"{ports} ports, {accepted} connections"


class ChaosError(Exception):
    """The session cannot go on; what failed was noted."""


class _Watch:
    """Watches a run from the begin of a fault on: its end, and who was named when."""

    def __init__(
        self, run: ChaosRun, outcome: Outcome, expected: Promise, words: list[str]
    ) -> None:
        self._run, self._outcome, self._bound = run, outcome, expected.named
        self._words = words if expected.named and run.complete() else []
        self._heard, self.begin = run.marks(), time.monotonic()

    @property
    def waits(self) -> bool:
        """Whether somebody is still to be named, and there is time for it."""
        late = time.monotonic() - self.begin > 3.0 * self._bound
        return bool(self._words) and self._outcome.named is None and not late

    @property
    def late(self) -> bool:
        """Whether nobody was named in time."""
        named = self._outcome.named
        return bool(self._words) and (named is None or named > self._bound)

    def look(self) -> bool:
        """Note who was named; say whether the run has ended."""
        if self.waits:
            told = self._run.told(self._heard)
            if any(word in told for word in self._words):
                self._outcome.named = time.monotonic() - self.begin
        return 0 in self._run.codes()


def _victims(run: ChaosRun, fault: Fault, pids: list[int]) -> list[str]:
    """Return what names those that are hit, unless they have been named before."""
    if fault.kind in ("cut", "one-way") or fault.role in ("launcher", "tunnel"):
        hosts = [fault.host] if fault.host else [host for host in run.launched if host]
        pids = [pid for host in hosts for pid in run.ranks(host)]
    words = [f"process {pid}" for pid in pids]
    if run.topology.endswith("actors"):  # those that are lost do not come back
        lost = run.told()
        words = [word for word in words if word not in lost]
    # Ray may know a rank or the trainer, and not its process.
    return [*words, " is gone: "] if words and run.topology.startswith("ray") else words


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
