"""Measure a Ray cluster of two hosts made of network namespaces; needs root and iproute2.

python -m benchmarks cluster
python -m benchmarks cluster --cut --json -

Flags:
    --cut  also cut a member's cable, and mend it: some two minutes
    $JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from distrlcc.cli.output import emit_json
from distrlcc.errors import GroupError
from distrlcc.limits import limits
from tests.support.namespaces import Hosts

_TOKEN = "of-these-two-hosts-alone"
_PORT = 7379
_SMALL = ("--cpus", "1", "--object-store-mb", "100")


def run(args: Namespace) -> int:
    """Measure and print: seconds of each step, its exit code and what it said."""
    out, figures = sys.stderr if args.json == "-" else sys.stdout, dict[str, dict[str, Any]]()

    def note(what: str, begin: float, **more: Any) -> None:
        figures[what] = {"seconds": time.monotonic() - begin, **more}
        print(f"{what}: {figures[what]['seconds']:.1f} s {more or ''}", file=out, flush=True)

    # Both hosts keep their state in one folder and have one token, so that nothing is asked.
    with tempfile.TemporaryDirectory() as folder, Hosts(2) as hosts:
        own = {"XDG_STATE_HOME": folder, "DISTRLCC_TOKEN": _TOKEN}

        def command(what: str, host: int, *words: str, token: str = _TOKEN) -> str:
            """Run a command on a host and note it; return what it wrote to standard output."""
            begin = time.monotonic()
            done = subprocess.run(
                hosts.command(host, sys.executable, "-m", "distrlcc", *words),
                env=os.environ | own | {"DISTRLCC_TOKEN": token},
                capture_output=True,
                text=True,
                timeout=limits().patience,
                check=False,
            )
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            if what:
                note(what, begin, exit_code=done.returncode, said="".join(last))
            return done.stdout

        def alive() -> bool:
            """Say whether the head takes the member for alive."""
            nodes = json.loads(command("", 0, "cluster", "status", "--json", "-"))["nodes"]
            return any(node["alive"] for node in nodes if node["address"] == hosts.address(1))

        def until(what: str, condition: Callable[[], bool]) -> None:
            begin = time.monotonic()
            while not condition():
                if time.monotonic() - begin > 4 * limits().absence:
                    raise GroupError(f"not within {4 * limits().absence:.0f} s: {what}")
                time.sleep(limits().tick)
            note(what, begin)

        # Start, refuse, join, examine, lose, stop. Ray looks at all of a machine's namespaces, so
        # the port is another one than a cluster's that may be there.
        head = f"{hosts.address(0)}:{_PORT}"
        try:
            start = ("cluster", "start", "--listen", hosts.address(0), "--port", str(_PORT))
            command("start", 0, *start, *_SMALL)
            join = ("cluster", "join", head)
            command("join with another token", 1, *join, token=_TOKEN[::-1])
            nowhere = f"{hosts.address(0)}:7000"
            command("join where nothing listens", 1, "cluster", "join", nowhere)
            command("join", 1, *join, *_SMALL, "--rejoin")
            command("doctor", 0, "doctor", "--cluster")
            if args.cut:
                hosts.cut(1)
                until("cut: evicted by the head", lambda: not alive())
                until("cut: Ray ended there", lambda: len(hosts.processes(1)) == 1)
                hosts.mend(1)
                until("mended: joined again", alive)
            command("stop the member", 1, "cluster", "stop")
            until("no process is left there", lambda: not hosts.processes(1))
        finally:
            for host in (1, 0):
                command(f"stop host {host}", host, "cluster", "stop")
    emit_json(args.json, {"cluster": figures})
    return 0
