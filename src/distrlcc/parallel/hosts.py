"""Starts a program on other machines by SSH: OpenSSH's client, with its user's configuration.

The program reads the token from its standard input, and ends when that closes.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from threading import Thread

from distrlcc.errors import ConfigError, NoGroupError, printable, reading
from distrlcc.limits import limits, wait_until
from distrlcc.parallel.admission import TOKEN

SSH = "DISTRLCC_SSH"
"""Environment variable with another client, or with options, as in ``ssh -F FILE``."""
_HOST = re.compile(
    r"(?:[\w.][\w.-]*@)?(\w[\w.-]*|[\da-f]*:[\da-f.]*:[\da-f:.]*(?:%\w+)?)(?:\s+([1-9]\d{0,3}))?",
    re.ASCII | re.I,
)
_READY, _LIMITS = "distrlcc: ready", "DISTRLCC_LIMITS"
_SCRIPT = (
    # Is the program there? Then it waits for the token.
    'v=$({program} --version 2>&1 </dev/null) || {{ echo "$v"; exit 127; }}; '
    f"echo {_READY}; IFS= read -r {TOKEN} || exit 0; export {TOKEN}; exec 3<&0; "
    '(exec {program} "$@" 3<&- </dev/null) & p=$!; '
    # When the standard input ends, so does the program, in the end by force. It is the socket of
    # the standard output, too: sshd waits while anything, as a cat would, has it open.
    "(while read -r n; do :; done <&3; exec 3<&-; kill $p; n={seconds:.0f}; "
    "while kill -0 $p && [ $n -gt 0 ]; do sleep 1; n=$((n-1)); done; "
    "kill -0 $p && kill -9 0) >/dev/null 2>&1 & w=$!; "
    "exec 3<&- </dev/null; wait $p 2>/dev/null; c=$?; kill $w; exit $c"
)


def read_hosts(path: str) -> dict[str, int]:
    """Read a file of hosts, each with its number of processes, 0 if none; raises ConfigError."""
    hosts, machines = dict[str, int](), set[str]()
    with reading(ConfigError, f"cannot read {path}"):
        lines = Path(path).read_text("utf-8-sig").splitlines()
    for number, line in enumerate(lines, 1):
        if text := line.partition("#")[0].strip():
            found = _HOST.fullmatch(text)
            # The same machine, whoever logs in there and however its name is written.
            machine = found[1].casefold().rstrip(".") if found else ""
            if found is None or machine in machines:
                raise ConfigError(
                    f"{path}, line {number}: {text!r}: expected a host as SSH knows it, each once, "
                    "such as user@10.0.0.2, and after a space a number of processes or nothing (a "
                    "port stands in SSH's configuration)"
                )
            machines.add(machine)
            hosts[text.split()[0]] = int(found[2] or 0)
    if not hosts:
        raise ConfigError(f"{path} names no host: expected one on each line, without this machine")
    return hosts


def ssh(host: str, *words: str) -> Popen[bytes]:
    """Run a command on a host, with pipes as its input and output; ConfigError: no SSH client."""
    client = shlex.split(os.environ.get(SSH, "")) or ["ssh"]
    options = f"-T -x -oBatchMode=yes -oConnectTimeout={2 * limits().call:.0f}"
    options += f" -oServerAliveCountMax=3 -oServerAliveInterval={limits().absence / 3:.0f}"
    line = [*client, *options.split(), "--", host, shlex.join(words)]
    try:  # Ctrl-C is for the run, which ends as a whole
        return Popen(
            line, stdin=PIPE, stdout=PIPE, stderr=STDOUT, bufsize=0, start_new_session=True
        )
    except OSError as error:
        raise ConfigError(f"{SSH}: {client[0]}: {error.strerror}; install OpenSSH's") from None


class _Remote(Thread):
    """A program on a host, which first waits there for a token."""

    def __init__(self, host: str, program: str, words: Sequence[str]) -> None:
        super().__init__(daemon=True)
        script = _SCRIPT.format(program=program, seconds=limits().stop)
        longer = [f"{_LIMITS}={os.environ[_LIMITS]}"] if _LIMITS in os.environ else []
        self.host, self.said, self.ready, self.leaving = host, "no answer", False, False
        self.process = ssh(host, "env", *longer, "sh", "-c", script, "sh", *words)
        self.start()

    def run(self) -> None:
        """Show what it says, with its name; before it is ready, keep the last line."""
        with self.process:
            for data in self.process.stdout or ():
                line = printable(data.decode(errors="replace").rstrip())
                if self.ready:
                    sys.stderr.write(f"{self.host}: {line}\n")
                self.said, self.ready = line or self.said, self.ready or line == _READY
        if (code := self.process.returncode) and self.ready and not self.leaving:
            sys.stderr.write(f"{self.host}: ended with exit code {code}\n")

    def tell(self, token: str | None) -> None:
        """Let it begin with a token, or with None end."""
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended
            if token is None:
                self.leaving = True
                self.process.stdin.close()
            else:
                self.process.stdin.write(f"{token}\n".encode())


@contextmanager
def started(hosts: Sequence[str], program: str, words: Sequence[Sequence[str]]) -> Iterator[None]:
    """Run a program, as a shell takes it, on each host with its words and our token.

    It ends with this context, or is ended. Raises NoGroupError, before any has begun, if a host
    lacks it or cannot be reached without a question.
    """
    remotes = list[_Remote]()

    def ended() -> bool:
        return not any(remote.is_alive() for remote in remotes)

    try:
        for host, each in zip(hosts, words, strict=True):
            remotes.append(_Remote(host, program, each))
        wait_until(lambda: all(r.ready or not r.is_alive() for r in remotes), limits().start)
        if failed := [f"{each.host} ({each.said})" for each in remotes if not each.ready]:
            raise NoGroupError(
                f"not started on {', '.join(failed)}, so nowhere: 'ssh HOST' must work without a "
                f"question, and find {program!r} there (--remote-command names another)"
            )
        for remote in remotes:
            remote.tell(os.environ.get(TOKEN, ""))
        yield
        wait_until(ended, limits().stop)
    finally:
        for remote in remotes:
            remote.tell(None)
        wait_until(ended, limits().stop + limits().call)
        for remote in remotes:
            remote.process.kill()
            remote.join(limits().kill)
