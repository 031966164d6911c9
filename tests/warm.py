"""Commands of tests that start warm: forked from a process that has loaded everything once.

A command takes 2.7 s to import what it needs and one more to load what numba compiled, and the
tests start hundreds. So each pytest process starts one server that loads all of it, and
``Popen([sys.executable, "-m", "distrlcc", ...])``, or that of the launcher's tests, asks that
server for a fork in place of an exec. The result is a child of the test like any other: pid,
signals, working directory, environment, files, network namespace and exit code are real.
Everything else starts as usual. The fork servers of multiprocessing are spared their imports in
the same way, those of the tests and those of the commands.

The test must be the parent of the fork. Therefore the server forks twice, and the test adopts
orphans while it waits for the answer.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import importlib.util
import inspect
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any

from distrlcc.processes import adopt_orphans, call_libc

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_NEW_NAMESPACE_OF_MOUNTS, _NEW_NAMESPACE_OF_NETWORK = 0x20000, 0x40000000
_SLAVE, _RECURSIVE, _DETACH = 1 << 19, 1 << 14, 2
_SOURCE = str(Path(__file__).parents[1] / "src")
_NETNS = ("ip", "netns", "exec")
_LAUNCHER = str(Path(__file__).with_name("parallel") / "group_targets.py")
_COLD = ("sitecustomize.py", "usercustomize.py", "distrlcc")
_SPECIAL = ("preexec_fn", "executable", "shell", "pass_fds")
_MODULES = (
    "distrlcc.cli.train",
    "distrlcc.cli.evaluate",
    "distrlcc.cli.node",
    "distrlcc.cli.collect",
    "distrlcc.cli.imitate",
    "distrlcc.cli.send",
    "distrlcc.cli.receive",
    "distrlcc.cli.emulate",
    "distrlcc.runs.train",
    "distrlcc.parallel.launcher",
    "distrlcc.actors.torch_rpc",
    "distrlcc.evaluation.emulated",
    "distrlcc.evaluation.report",
    "torch.distributed.rpc",
)


# The side of the tests


class WarmServer:
    """Starts commands for the process that made it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(120.0)
        self._socket, self._lock = ours, threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,  # a signal to the group of the tests is not for it
        )
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        """End the server; its commands live on."""
        self._socket.close()
        self._process.wait(10)

    def start(self, order: dict[str, Any], files: Sequence[int]) -> int:
        """Start a command with these files as its first ones; return its pid."""
        here = {"cwd": os.getcwd(), "environment": dict(os.environ), "parent": os.getpid()}
        message = json.dumps(here | order).encode()
        with self._lock:
            adopt_orphans()
            try:
                socket.send_fds(self._socket, [message], list(files))
                return int(self._socket.recv(64))
            finally:
                call_libc("prctl", _PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


_server = functools.cache(WarmServer)


def install() -> None:
    """Let `subprocess.Popen` and multiprocessing start warm what can be started so."""
    cold = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature, usual = inspect.signature(cold), os.environ.get("PYTHONPATH", "")

    def execute(self: Any, *args: Any) -> None:
        given = signature.bind(self, *args).arguments
        words = given["args"]
        words = [words] if isinstance(words, str | bytes) else [os.fspath(word) for word in words]
        namespace = ""
        if tuple(words[:3]) == _NETNS:
            namespace, words = words[3], words[4:]
        environment = dict(os.environ if given["env"] is None else given["env"])
        # Another path may hold other sources, or a hook of the interpreter.
        known = {"", _SOURCE, *usual.split(os.pathsep)}
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        added = [path for path in paths if path not in known]
        same = not any(Path(path, name).exists() for path in added for name in _COLD)
        program = words[1] if words[1:2] == [_LAUNCHER] else ""
        fits = words[0] == sys.executable and (program or words[1:3] == ["-m", "distrlcc"])
        if not (fits and same) or any(map(given.get, _SPECIAL)):
            cold(self, *args)
            return
        pairs = (("p2cread", 0), ("c2pwrite", 1), ("errwrite", 2))
        files = [given[name] if given[name] != -1 else number for name, number in pairs]
        order = {
            "program": program,
            "words": words[2 if program else 3 :],
            "cwd": os.fspath(given["cwd"] or os.getcwd()),
            "environment": environment,
            "path": added,
            "namespace": namespace,
            "session": bool(given.get("start_new_session", given.get("unused_start_new_session"))),
        }
        self.pid = _server().start(order, files)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in ends))

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]

    _start_fork_server_by(lambda order: _server().start(order, order["passed"]))


def _start_fork_server_by(start: Callable[[dict[str, Any]], int]) -> None:
    """Let multiprocessing start its fork server by a function, which returns its pid or 0."""
    spawn = util.spawnv_passfds

    def warm_spawn(path: Any, args: Any, passed: Any) -> int:
        order = {"code": args[-1], "passed": [0, 1, 2, *passed]}
        warm = start(order) if "forkserver" in str(args[-1]) else 0
        return warm or spawn(path, args, passed)

    util.spawnv_passfds = warm_spawn  # type: ignore[assignment]


# The side of the server


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for each order; return, in the fork, what it shall do."""
    while True:
        message, files, _, _ = socket.recv_fds(connection, 1 << 18, 64)
        if not message:
            sys.exit(0)
        order: dict[str, Any] = json.loads(message)
        reader, writer = os.pipe()
        middle = os.fork()
        if middle == 0:
            pid = os.fork()
            if pid:
                os.write(writer, str(pid).encode())
                os._exit(0)
            connection.close()
            _become(order, files)
            return order
        os.close(writer)
        os.waitpid(middle, 0)  # now the fork has its new parent
        connection.send(os.read(reader, 64))
        os.close(reader)
        for file in files:
            os.close(file)


def _become(order: dict[str, Any], files: list[int]) -> None:
    """Take over an order's surroundings."""
    deadline = time.monotonic() + 10.0
    while os.getppid() != order["parent"]:
        if time.monotonic() > deadline:
            os._exit(70)
        time.sleep(0.0005)
    if order.get("session"):
        os.setsid()
    else:
        os.setpgid(0, os.getpgid(order["parent"]))
    # Files: those of the order at their numbers, and no others.
    _take_files(files, order.get("passed", [0, 1, 2]))
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[:0] = order.get("path", [])
    if order.get("namespace"):
        _enter(order["namespace"])
    random.seed()
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", 1 if os.isatty(1) else -1, closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)  # type: ignore[misc]


def _enter(name: str) -> None:
    """Enter a network namespace as ``ip netns exec`` does, with its own /sys."""
    with open(f"/run/netns/{name}") as file:
        call_libc("setns", file.fileno(), _NEW_NAMESPACE_OF_NETWORK)
    call_libc("unshare", _NEW_NAMESPACE_OF_MOUNTS)
    call_libc("mount", b"", b"/", b"none", _SLAVE | _RECURSIVE, 0)
    with contextlib.suppress(OSError):
        call_libc("umount2", b"/sys", _DETACH)
    call_libc("mount", name.encode(), b"/sys", b"sysfs", 0, 0)


def _nursery() -> None:
    """Fork a process that waits to be this command's fork server: later, threads forbid a fork."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()

        def order_it(order: dict[str, Any]) -> int:
            if ours.fileno() < 0:
                return 0
            socket.send_fds(ours, [json.dumps(order).encode()], order["passed"])
            ours.close()
            return pid

        _start_fork_server_by(order_it)
        return
    ours.close()
    # A launcher starts its fork server like this: a signal to all must not end it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    message, files, _, _ = socket.recv_fds(theirs, 1 << 16, 64)
    theirs.close()
    if message:
        order = json.loads(message)
        _take_files(files, order["passed"])
        _run_code(order["code"])
        atexit._run_exitfuncs()
    os._exit(0)


def _take_files(files: list[int], numbers: list[int]) -> None:
    """Give files their numbers, and close all others."""
    high = max([*files, *numbers]) + 1
    for k, file in enumerate(files):
        os.dup2(file, high + k)
    os.closerange(0, high)
    for k, number in enumerate(numbers):
        os.dup2(high + k, number, inheritable=number <= 2)
    os.closerange(high, high + 4096)


def _run_code(code: str) -> None:
    call_libc("prctl", _PR_SET_NAME, b"forkserver", 0, 0, 0)
    with contextlib.suppress(SystemExit):
        exec(code, {"__name__": "__main__"})


def _load_compiled() -> None:
    """Load what numba compiled of the simulator: about a second for each command that trains."""
    from distrlcc.library import make_vec

    env = make_vec(num_envs=2)
    env.reset(seed=0)
    env.step(env.action_space.sample())


def _main() -> int:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # it may be made while signals are held back
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.path.pop(0)  # the tests' folder, whose benchmarks are not the project's
    for module in _MODULES:
        importlib.import_module(module)
    _load_compiled()
    gc.freeze()
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    if "code" in order:
        _run_code(order["code"])
        os._exit(0)
    if order["program"] or {"--processes", "node", "parity"} & set(order["words"]):
        _nursery()
    if order["program"]:
        sys.argv = [order["program"], *order["words"]]
        runpy.run_path(order["program"], run_name="__main__")
        return 0
    # The command's own main module, which multiprocessing may ask for.
    spec = importlib.util.find_spec("distrlcc.__main__")
    assert spec is not None
    own = types.ModuleType("__main__")
    own.__spec__, own.__file__, own.__package__ = spec, spec.origin, "distrlcc"
    sys.modules["__main__"] = own
    sys.argv = [str(Path(str(spec.origin))), *order["words"]]
    from distrlcc.cli.main import main

    return main()


def _exit(code: object) -> None:
    """Exit as the interpreter does, but do not take its hundreds of modules apart: 0.3 s."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    result: object = 1
    try:
        result = _main()
    except SystemExit as error:
        result = error.code
    except BaseException:
        traceback.print_exc()
    _exit(result)
