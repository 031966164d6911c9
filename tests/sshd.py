"""An SSH server of a test's own, with its own keys, and the configuration of a client for it."""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.hosts import wait_until

PROGRAM = Path(sys.executable).parent / "distrlcc"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def servers(
    folder: Path, hosts: dict[str, str], within: Mapping[str, Sequence[str]] | None = None
) -> Iterator[str]:
    """Serve each host at its address; yield what DISTRLCC_SSH is to be.

    Args:
        folder: Where keys and configurations go; short, and no one else's.
        hosts: Addresses by the names that the client has for them.
        within: What stands before the server's command line, such as ``ip netns exec NAME``.
    """
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if sshd is None or not shutil.which("ssh"):
        pytest.skip("needs OpenSSH's server and client")
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user", "stranger"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True, timeout=30)
    shutil.copy(folder / "user.pub", folder / "authorized")
    port, known, config = _free_port(), [], ["LogLevel ERROR"]
    key = (folder / "host.pub").read_text()
    processes = []
    try:
        for name, address in hosts.items():
            server = folder / f"{name}.sshd"
            server.write_text(
                f"Port {port}\nListenAddress {address}\nHostKey {folder}/host\n"
                f"AuthorizedKeysFile {folder}/authorized\nPidFile none\nUsePAM no\n"
                "StrictModes no\nPasswordAuthentication yes\nPermitRootLogin yes\n"
                "AcceptEnv PYTHONPATH\n"
            )
            known.append(f"[{address}]:{port} {key}")
            known.append(f"[127.0.0.1]:{port} {key}")
            config += [f"Host {name}", f"HostName {address}"]
            command = [*(within or {}).get(name, ()), sshd, "-D", "-e", "-f", str(server)]
            log = folder / f"{name}.log"
            with log.open("wb") as file:
                processes.append(subprocess.Popen(command, stdout=file, stderr=file))
            wait_until(lambda log=log: "listening" in log.read_text(), 20, f"sshd at {address}")
        (folder / "known").write_text("".join(known))
        # One that wants a password, and one that is not there.
        config += ["Host locked", "HostName 127.0.0.1", f"IdentityFile {folder}/stranger"]
        config += ["Host closed", "HostName 127.0.0.1", "Port 1"]
        config += ["Host !locked *", f"IdentityFile {folder}/user"]
        config += ["Host *", f"Port {port}", "IdentitiesOnly yes"]
        config += [f"UserKnownHostsFile {folder}/known", "SendEnv PYTHONPATH"]
        client = folder / "ssh_config"
        client.write_text("\n".join(config) + "\n")
        yield f"ssh -F {client}"
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
