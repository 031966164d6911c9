"""COMMAND's processes, and those of a command that runs outside the link meanwhile.

They are started, signalled, waited for, and ended to the last one. A guard stands between the
emulator and COMMAND. It adopts COMMAND's orphans, and when the emulator ends, even by SIGKILL, it
reads the end of a pipe and ends all of them. If the guard is killed, too, a keeper is left, which
knows COMMAND's processes by a variable.
"""

import fcntl
import os
import secrets
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from distrlcc import processes
from distrlcc.errors import LinkError
from distrlcc.limits import limits

_STATUS = struct.Struct("=Bi")
_EXITED, _NOT_STARTED = 0, 1
ENDED = "ended before COMMAND"  # of an outer command that failed by itself, as an unstarted server
_FOUND_BUT_NOT_RUN = (13, 8, 21)  # EACCES, ENOEXEC, EISDIR


class SignalDescriptor:
    """Signals as a readable descriptor; they are blocked from then on, in children too."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = frozenset(numbers)
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        mask = struct.pack("=QQ", sum(1 << (number - 1) for number in self._numbers), 0)
        self._descriptor = processes.call_libc("signalfd", -1, mask, os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._descriptor

    def read(self) -> list[signal.struct_siginfo]:
        """Return the signals received."""
        found = iter(lambda: signal.sigtimedwait(self._numbers, 0), None)
        return [info for info in found if info is not None]

    def restore_mask(self) -> None:
        """Let signals through again as before; for children, before exec."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def close(self) -> None:
        """Close the descriptor, drop what is pending, and let signals through again."""
        self.read()
        os.close(self._descriptor)
        self.restore_mask()


class Guard:
    """A command and all that it starts, in our namespaces, on our terminal; use from one thread."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], signals: SignalDescriptor
    ) -> None:
        self._status, status = os.pipe()
        control, self._control = os.pipe()
        self.exit_code: int | None = None
        """As a shell gives it; 128 + number where a signal ended it; None while it runs."""
        self.start_error: OSError | None = None  # why it could not be started
        self._pid = os.fork()
        if self._pid == 0:
            _run_guard(command, environment, signals, status, control)
        os.close(status)
        os.close(control)

    def fileno(self) -> int:
        """Return a descriptor that is readable when COMMAND has ended."""
        return self._status

    def read_status(self) -> None:
        """Read how COMMAND ended, when `fileno` is readable."""
        data = os.read(self._status, _STATUS.size)
        kind, value = _STATUS.unpack(data) if data else (_EXITED, 128 + signal.SIGKILL)
        if kind == _NOT_STARTED:
            self.start_error = OSError(value, os.strerror(value))
            self.exit_code = 126 if value in _FOUND_BUT_NOT_RUN else 127
        else:
            self.exit_code = value

    def send(self, number: signal.Signals) -> None:
        """Send COMMAND a signal, if it still runs."""
        with suppress(BrokenPipeError):
            os.write(self._control, bytes([number]))

    def end(self) -> None:
        """End what is left of COMMAND's processes and wait until they are gone."""
        os.close(self._control)
        os.waitpid(self._pid, 0)
        os.close(self._status)


def _run_guard(
    command: Sequence[str],
    environment: Mapping[str, str],
    signals: SignalDescriptor,
    status: int,
    control: int,
) -> NoReturn:
    try:
        _close_private({status, control})
        processes.adopt_orphans()
        children = SignalDescriptor([signal.SIGCHLD])
        child = _start(command, environment, signals, status)
        while True:
            readable, _, _ = select.select([children.fileno(), control], [], [])
            if children.fileno() in readable:
                children.read()
                child = _reap(child, status)
            if control in readable:
                data = os.read(control, 1)
                if not data:
                    break
                if child:
                    os.kill(child, data[0])
        _end_all()
    finally:
        os._exit(0)


def _close_private(keep: set[int]) -> None:
    """Close what COMMAND would not get either, such as devices, which last while one is open."""
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(entry) not in keep and fcntl.fcntl(int(entry), fcntl.F_GETFD):
                os.close(int(entry))


def _start(
    command: Sequence[str], environment: Mapping[str, str], signals: SignalDescriptor, status: int
) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        processes.die_with_parent(signal.SIGKILL, parent=guard)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signals.restore_mask()
        os.execvpe(command[0], [*command], environment)
    except OSError as error:
        os.write(status, _STATUS.pack(_NOT_STARTED, error.errno or 0))
    finally:
        os._exit(127)


def _reap(child: int, status: int) -> int:
    """Wait for all that have ended; report COMMAND's end; return its pid while it runs."""
    with suppress(ChildProcessError):
        while True:
            pid, result = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(result)
                with suppress(BrokenPipeError):
                    os.write(status, _STATUS.pack(_EXITED, code if code >= 0 else 128 - code))
                child = 0
    return child


def _end_all() -> None:
    deadline = time.monotonic() + limits().kill
    _signal_all(signal.SIGTERM)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        late = time.monotonic() - deadline
        if late > limits().stop:  # it waits for a device, and dies once that answers
            return
        if late > 0.0:
            _signal_all(signal.SIGKILL)
        time.sleep(0.01)


def _signal_all(number: signal.Signals) -> None:
    for process in processes.descendants(os.getpid()):
        with suppress(PermissionError):
            process.signal(number)
            process.signal(signal.SIGCONT)


@contextmanager
def running_outside(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Run a command, ``prepare`` before exec, and end it afterwards; raises LinkError."""

    def before_exec() -> None:
        processes.die_with_parent(signal.SIGKILL)
        prepare()

    with kept() as name:
        try:
            # A session of its own: Ctrl-C and the terminal's input are COMMAND's.
            own = {**(os.environ if environment is None else environment), name: "1"}
            none = subprocess.DEVNULL
            process = subprocess.Popen(
                command, env=own, preexec_fn=before_exec, stdin=none, start_new_session=True
            )
        except OSError as error:
            raise LinkError(
                f"--outside: {command[0]} cannot be started ({error.strerror}); check its path"
            ) from None
        try:
            yield
        finally:
            if code := process.poll():
                said = f"--outside: {command[0]} {ENDED}, with exit code {code}"
                sys.stderr.write(f"distrlcc: {said}\n")
            _end_outside(process, f"{name}=1")


@contextmanager
def kept() -> Iterator[str]:
    """Yield a variable: what begins with it set to 1 is killed at the end, however that comes."""
    name = f"DISTRLCC_KEPT_{secrets.token_hex(8)}"  # what is nested has several
    words = processes.keeper(f"{name}=1", limits().kill)
    process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    try:
        yield name
    finally:
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(limits().stop)


def _end_outside(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a command and what it started, daemons too: in good order, then by force."""
    # Ask all, as what it started may outlive it; a daemon has left its group.
    group, deadline = process.pid, time.monotonic() + limits().kill
    _signal_group(group, signal.SIGTERM)
    for daemon in processes.marked(mark):
        with suppress(ProcessLookupError):
            if os.getpgid(daemon.pid) != group:
                daemon.signal(signal.SIGTERM)
    while (_signal_group(group, 0) or processes.marked(mark)) and time.monotonic() < deadline:
        process.poll()
        time.sleep(limits().tick)
    # Kill what is left; one that waits for a device dies once that answers.
    _signal_group(group, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(limits().stop)


def _signal_group(group: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
        return True
    return False
