"""The checks of machines that SSH reaches, before they train together, and of the links between.

On each, ``distrlcc doctor --answer`` calls the functions that lines of JSON name, and answers
alike.
"""

import platform
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from subprocess import PIPE, Popen
from typing import Any

import msgspec

from distrlcc.doctor import machine, wire
from distrlcc.doctor.cluster import Survey, try_ports, wires
from distrlcc.doctor.findings import Finding, finding
from distrlcc.errors import DistrlccError, GroupError
from distrlcc.limits import limits
from distrlcc.parallel.hosts import ssh
from distrlcc.parallel.interface import interface_towards
from distrlcc.runs.identity import identity

_MARK = b"distrlcc doctor: "  # begins an answer: a shell may say other things


@dataclass(frozen=True)
class _Machine:
    address: str
    process: Popen[bytes]


def _identify(ip: str) -> tuple[str, dict[str, str]]:
    """Return this machine's address towards another, and what must be the same on both."""
    return interface_towards(ip).address, identity(None, python=platform.python_version())


_FUNCTIONS: dict[Callable[..., Any], Any] = {
    _identify: tuple[str, dict[str, str]],
    wire.listen: int,
    wire.reach: list[str],
    wire.measure: wire.Wire,
}
"""Functions that another machine may ask for, and the types of their results."""


def answer() -> int:
    """Call functions for the machine at the other end of our standard input, until that ends."""
    functions = {function.__name__: function for function in _FUNCTIONS}
    for line in sys.stdin.buffer:
        name, *arguments = msgspec.json.decode(line)
        try:
            said = "", functions[name](*arguments)
        except (DistrlccError, OSError) as error:
            said = str(error) or "it failed", None
        sys.stdout.buffer.write(_MARK + msgspec.json.encode(said) + b"\n")
        sys.stdout.buffer.flush()
    return 0


def _call(far: _Machine, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return a function's result there; GroupError: it failed, or nothing answers."""
    said = b"no answer"
    assert far.process.stdin is not None
    far.process.stdin.write(msgspec.json.encode([function.__name__, *arguments]) + b"\n")
    for line in far.process.stdout or ():
        said = line.strip() or said
        if said.startswith(_MARK):
            problem, result = msgspec.json.decode(said.removeprefix(_MARK))
            if problem:
                raise GroupError(problem)
            return msgspec.convert(result, _FUNCTIONS[function])
    raise GroupError(said.decode(errors="replace"))


def check_hosts(hosts: Iterable[str], ip: str, port: int, program: str) -> list[Finding]:
    """Check machines, as SSH knows them, and, at this ``ip`` and ``port``, links between all."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(256))
        survey = Survey([], lambda *words: pool.submit(_call, *words), str(port), (port, port))
        # Start a process on each, this one first.
        own = [sys.executable, "-P", "-m", "distrlcc", "doctor", "--answer"]
        processes = {"": Popen(own, stdin=PIPE, stdout=PIPE, bufsize=0)}
        for host in hosts:
            processes[host] = ssh(host, "sh", "-c", f"exec {program} doctor --answer")
        for process in processes.values():
            stack.callback(process.kill)
        # Reach all, and compare versions.
        calls = {name: (_Machine(name, each), _identify, ip) for name, each in processes.items()}
        versions = dict[str, str]()
        for name, found in survey.ask(limits().start, calls).items():
            if isinstance(found, GroupError):
                fail = f"'ssh {name}' must work without a question, and find {program!r} there"
                survey.add(calls[name][0], finding("SSH", str(found), fail=fail))
                continue
            survey.nodes.append(far := _Machine(found[0], processes[name]))
            versions = versions or found[1]
            if name:
                survey.add(far, finding("SSH", f"answers as {name}"))
                survey.add(far, machine.compare_versions("this machine", versions, found[1]))
        # Then the port of each, and what is between each two.
        if len(survey.nodes) > 1:
            wires(survey, try_ports(survey))
        return survey.findings
