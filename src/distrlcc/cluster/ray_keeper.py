"""The process that keeps this machine's part in a Ray cluster: starts it, watches it, ends it all.

``python -m distrlcc.cluster.ray_keeper PLAN`` is what ``distrlcc cluster`` starts. Whatever Ray
starts stays below the keeper, even when its parent dies, so that nothing is left when it ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from distrlcc.cluster.ray_gate import Gate, ask_gate
from distrlcc.cluster.ray_identity import check_node, node_identity
from distrlcc.cluster.ray_ports import DASHBOARD_PORT
from distrlcc.cluster.ray_session import TOO_SLOW
from distrlcc.cluster.ray_state import Plan, State, log_path, state_folder, write_state
from distrlcc.cluster.ray_token import token_path, without_secrets
from distrlcc.cluster.ray_watch import HeadWatch
from distrlcc.errors import DistrlccError, GroupError
from distrlcc.processes import descendants, find_process

STOP_SECONDS = 15.0
"""Time that Ray has to end in good order."""
START_SECONDS = 120.0
"""Time that Ray has to start, again if it gave itself up, s."""
_TICK = 0.2
_KILL_SECONDS = 5.0
_HURRY_SECONDS = 2.0
_AGAIN_SECONDS = 3.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STARTED = "Ray runtime started."
_POINTER = Path("/tmp/ray/ray_current_cluster")
"""Where Ray notes which cluster ``ray.init(address="auto")`` finds."""

HEALTH = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
}
"""Five checks without an answer of 3 s, 1 s apart: a machine that was cut is given up after 20 s;
by Ray's defaults it is 67 s."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def ray_command(plan: Plan) -> list[str]:
    """Return the command line of a plan."""
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
        f"--node-ip-address={plan.address}", *plan.ports.flags(head=plan.is_head),
    ]  # fmt: skip
    if plan.is_head:
        command += [
            "--head",
            f"--include-dashboard={str(plan.dashboard).lower()}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={DASHBOARD_PORT}",
        ]
    else:
        command.append(f"--address={plan.ray_address}")
    if plan.cpus is not None:
        command.append(f"--num-cpus={plan.cpus}")
    if plan.gpus is not None:
        command.append(f"--num-gpus={plan.gpus}")
    if plan.resources:
        command.append(f"--resources={json.dumps(plan.resources)}")
    if plan.object_store_mb is not None:
        command.append(f"--object-store-memory={plan.object_store_mb * 1_000_000}")
    if plan.autoscaling_config:
        command.append(f"--autoscaling-config={plan.autoscaling_config}")
    return command


class Keeper:
    """Runs a plan until it is told to stop, or Ray ends."""

    def __init__(self, plan: Plan) -> None:
        keeper = find_process(os.getpid())
        assert keeper is not None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._state = State(plan, keeper, since)
        self._plan, self._asked, self._started, self._patient = plan, False, False, True
        self._child: Any = None
        self._code: int | None = None

    def run(self) -> None:
        """Keep Ray running; nothing is left below this process when this returns."""
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._note()
        try:
            reason = self._once()
            while self._plan.rejoin and self._started and not self._asked:
                self._note(phase="waiting", reason=reason, processes=[])
                self._await_head()
                if not self._asked:
                    self._note(phase="starting", reason="")
                    reason = self._once()
        except (DistrlccError, OSError) as error:
            reason = str(error)
        self._note(phase="ended", reason=reason, processes=[])

    def _once(self) -> str:
        """Start Ray, and keep it until it ends; return why it did, nothing if it was asked to."""
        gate = None
        try:
            deadline = time.monotonic() + START_SECONDS
            reason = self._begin(deadline)
            while TOO_SLOW in reason and not self._asked:
                self._end()
                reason = self._begin(deadline)
            if not reason:
                if self._plan.is_head:
                    gate = self._open_gate()
                self._started = True
                self._note(phase="running")
                reason = self._watch()
            return reason
        finally:
            if gate is not None:
                gate.close()
            self._end()
            _forget_pointer(self._plan.ray_address)

    def _begin(self, deadline: float) -> str:
        """Start Ray; return why it does not run, nothing if it does."""
        self._code = None
        with log_path().open("rb") as log:
            log.seek(0, os.SEEK_END)
            self._start()
            return self._await_start(log.read, deadline)

    def _await_head(self) -> None:
        """Wait until the head is back, or we are told to stop.

        Raises:
            GroupError: It is, but with other versions.
        """
        plan, token = self._plan, token_path().read_text().strip()
        while not self._asked:
            time.sleep(_AGAIN_SECONDS)
            try:
                welcome = ask_gate(plan.head, plan.ports.gate, token, source=plan.address)
            except (GroupError, OSError):
                continue
            check_node(welcome.identity)
            return

    def _open_gate(self) -> Gate:
        token = token_path().read_text().strip()
        return Gate(self._plan.address, self._plan.ports.gate, token, node_identity())

    def _start(self) -> None:
        environment = {
            **without_secrets(os.environ.items()),
            **HEALTH,
            **self._plan.ports.environment(),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token_path()),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",
        }
        self._child = subprocess.Popen(
            ray_command(self._plan),
            env=environment,
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_keeper,  # no thread runs yet
        )

    def _await_start(self, read: Any, deadline: float) -> str:
        """Wait until Ray says that it runs; return why it does not."""
        said = b""
        while _STARTED.encode() not in said:
            said += read()
            if self._asked:
                return "it was stopped"
            if not self._child_lives():
                return _last_words((said + read()).decode(errors="replace"))
            if time.monotonic() > deadline:
                return f"Ray did not start within {START_SECONDS:.0f} s; see {log_path()}"
            time.sleep(_TICK)
        return ""

    def _watch(self) -> str:
        """Wait for the end; return its reason, nothing if it was asked for."""
        head = HeadWatch(self._plan)
        while not self._asked:
            if not self._child_lives():
                return (
                    f"Ray ended here (exit code {self._code}), as it also does when the head gave "
                    f"this machine up; see {log_path()}"
                )
            if reason := head.look():
                self._patient = False  # Ray would tell the head in vain
                return reason
            below = descendants(os.getpid())
            if below != self._state.processes:
                self._note(processes=below)
            time.sleep(1.0)
        return ""

    def _end(self) -> None:
        """End all that is below this process: in good order, then by force."""
        deadline = time.monotonic() + (STOP_SECONDS if self._patient else _HURRY_SECONDS)
        self._patient = True
        if self._child is not None and self._child_lives():
            os.kill(self._child.pid, signal.SIGTERM)
            while self._child_lives() and time.monotonic() < deadline:
                time.sleep(_TICK)
        deadline = time.monotonic() + _KILL_SECONDS
        while (below := descendants(os.getpid())) and time.monotonic() < deadline:
            for process in below:
                process.signal(signal.SIGKILL)
            time.sleep(_TICK)
            self._child_lives()

    def _child_lives(self) -> bool:
        """Take in whoever ended below us; say whether ``ray start`` is there."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if self._child is not None and pid == self._child.pid:
                self._code = self._child.returncode = os.waitstatus_to_exitcode(status)
        return self._code is None

    def _note(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)
        write_state(self._state)

    def _ask(self, *_: object) -> None:
        self._asked = True


def _last_words(text: str) -> str:
    """Return the line of Ray's that says why it failed."""
    lines = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "error" in line or "failed" in line]
    return (telling or lines or ["Ray said nothing"])[-1]


def _forget_pointer(address: str) -> None:
    """Remove Ray's note of a cluster that is gone from here."""
    try:
        if _POINTER.read_text().strip() == address:
            _POINTER.unlink()
    except OSError:
        return


def _die_with_keeper() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if hasattr(_libc, "prctl"):
        _libc.prctl(option, value)


def main() -> None:
    """Keep the plan that the command line gives."""
    with (state_folder() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit("distrlcc: another keeper runs on this machine")
        Keeper(msgspec.json.decode(sys.argv[1].encode(), type=Plan)).run()


if __name__ == "__main__":
    main()
