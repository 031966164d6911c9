"""What emulated links and hosts need of a machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from distrlcc.doctor.row import Row, judged

_CONTROLS = ("reno", "cubic", "bbr")
_SECONDS = 5.0


def emulation_rows(name: str) -> list[Row]:
    """Look; nothing here keeps training from working, so nothing fails."""
    return [_namespaces(name), _tun(name), _mahimahi(name), _controls(name)]


def _namespaces(name: str) -> Row:
    root = os.geteuid() == 0
    words = ["unshare", "-n" if root else "-Urn", "true"]
    tools = [tool for tool in ("unshare", "ip", "tc") if not shutil.which(tool)]
    if tools:
        return judged(
            "namespaces", name, f"{', '.join(tools)} not found",
            warn="for emulated hosts: install util-linux and iproute2",
        )  # fmt: skip
    try:
        done = subprocess.run(words, capture_output=True, timeout=_SECONDS, check=False)
        said = done.stderr.decode(errors="replace").strip() if done.returncode else ""
    except subprocess.TimeoutExpired:
        said = "unshare hangs"
    how = "as root" if root else "without root"
    return judged(
        "namespaces", name, said or f"can be made, {how}",
        warn="for emulated hosts: run as root, or sysctl kernel.unprivileged_userns_clone=1 "
        "(Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0)" if said else "",
    )  # fmt: skip


def _tun(name: str) -> Row:
    device = Path("/dev/net/tun")
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError as error:
        return judged(
            "TUN", name, f"{device}: {error.strerror}",
            warn="for emulated links: modprobe tun, and in a container --device /dev/net/tun",
        )  # fmt: skip
    return judged("TUN", name, f"{device} opens")


def _mahimahi(name: str) -> Row:
    found = shutil.which("mm-link")
    return judged(
        "mahimahi", name, found or "no mm-link",
        warn="" if found else "only to compare with mahimahi itself: install its package",
    )  # fmt: skip


def _controls(name: str) -> Row:
    kernel = Path("/proc/sys/net/ipv4")
    try:
        available = (kernel / "tcp_available_congestion_control").read_text().split()
        allowed = (kernel / "tcp_allowed_congestion_control").read_text().split()
    except OSError as error:
        return judged(
            "kernel's TCP", name, str(error.strerror), warn="congestion controls cannot be chosen"
        )
    usable = available if os.geteuid() == 0 else [c for c in available if c in allowed]
    missing = [control for control in _CONTROLS if control not in usable]
    return judged(
        "kernel's TCP", name, ", ".join(usable),
        warn="for comparisons with the kernel's: "
        + ", ".join(f"modprobe tcp_{c}" if c not in available else
                    f"add {c} to net.ipv4.tcp_allowed_congestion_control" for c in missing)
        if missing else "",
    )  # fmt: skip
