"""Without root, without TUN, without either; and what is said where nothing is allowed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.net.conftest import NO_TUN

pytestmark = pytest.mark.net

SERVER = """
    import os, socket
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((os.environ["MAHIMAHI_BASE"], 47321))
    while True:
        data, sender = s.recvfrom(99)
        s.sendto(data, sender)
"""
CLIENT = """
    import os, socket, time
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(0.5)
    for k in range(20):
        start = time.monotonic()
        s.sendto(b"%d" % k, (os.environ["MAHIMAHI_BASE"], 47321))
        try:
            while s.recv(9) != b"%d" % k:
                pass  # an answer that came too late for its own turn
            print(1e3 * (time.monotonic() - start))
        except (TimeoutError, ConnectionRefusedError):
            time.sleep(0.1)
"""
# A shell between, since setpriv's own exec still has root's rights.
NOBODY = tuple(
    shlex.split("setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'exec \"$@\"' sh")
)
FORBID = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all "$@"'
NO_NAMESPACES = ("unshare", "-Urm", "sh", "-c", FORBID, "sh")


@pytest.fixture
def nobody(emulator: Any) -> tuple[str, ...]:
    """What makes an emulator run without privileges, with a Python that it may run."""
    emulator.interpreter = python_of_nobody(emulator.environment)
    return NOBODY


def python_of_nobody(environment: dict[str, str]) -> str:
    """Return a Python that an unprivileged user may run with an environment, which is changed."""
    system = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin:/bin")
    packages = str(Path(numpy.__file__).parents[1])
    paths = os.pathsep.join((environment["PYTHONPATH"], packages))
    environment |= {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    for python in filter(None, (sys.executable, system)):
        words = [*NOBODY, python, "-c", "import distrlcc.net.emulator.shell"]
        done = subprocess.run(words, env=environment, capture_output=True, check=False, timeout=60)
        if done.returncode == 0:
            return python
    pytest.skip("no Python here that an unprivileged user may run")


def _works(emulator: Any, prefix: tuple[str, ...]) -> None:
    code, out, err = emulator.run(
        "--up 12 --down 12 --delay 20 --outside",
        shlex.join(emulator.python(SERVER)),
        command=emulator.python(CLIENT),
        prefix=prefix,
    )
    assert (code, err) == (0, "")
    trips = [float(line) for line in out.split()]
    assert len(trips) >= 10
    assert 40 <= min(trips) < 75


def test_without_tun(emulator: Any) -> None:
    _works(emulator, NO_TUN)


@pytest.mark.parametrize(("before", "after"), [((), ()), ((), ("unshare", "-Ur")), (NO_TUN, ())])
def test_without_root(
    emulator: Any, nobody: tuple[str, ...], before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    _works(emulator, (*before, *nobody, *after))


def test_where_nothing_is_allowed_one_line_says_what_to_allow(emulator: Any) -> None:
    prefix = NO_NAMESPACES
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces cannot be forbidden here")
    code, out, err = emulator.run("--up 12 --down 12", command=["true"], prefix=prefix)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("distrlcc: error: no user namespace can be made")
    assert "kernel.unprivileged_userns_clone=1" in err
