"""The checks of one machine: versions, cores, memory, disk, GPUs, head, emulation, storage."""

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

from distrlcc.cluster.session import node_identity, parse_address, read_row
from distrlcc.cluster.state import known_token
from distrlcc.doctor.findings import HERE, Finding, Verdict, finding
from distrlcc.errors import DistrlccError
from distrlcc.extras import install_command
from distrlcc.filesystems import within
from distrlcc.net.emulator.device import TUN_PATH
from distrlcc.net.emulator.namespace import REMEDY, is_privileged
from distrlcc.net.kernel.bpf import libbpf
from distrlcc.net.kernel.tcp import problems
from distrlcc.parallel.admission import TOKEN
from distrlcc.parallel.interface import interface_towards, interfaces, resolve
from distrlcc.runs.identity import NOT_INSTALLED, differences, package_versions
from distrlcc.storage import Storage

MEMORY_GB, DISK_GB, SHARED_GB = 2.0, 2.0, 0.5  # less warns; a small run with Ray takes 1.5 GB
_CONTROLS = ("reno", "cubic", "bbr")


def check_here(head: str = "", interface: str = "", place: str = "") -> list[Finding]:
    """Check this machine; of a cluster's head, an interface and storage only those named."""
    found = check_machine(cluster=bool(head))
    if head:
        found += check_head(head, interface)
    else:
        names = ", ".join(map(str, interfaces()))
        warn = "" if names else "is it up?"
        found.append(finding("interfaces", names or "none", warn=warn))
    found += check_emulation()
    if place:
        marks = new_marks(place)
        found.append(judge_storage(place, leave_mark(marks, HERE), []))
        sweep_marks(marks)
    return found


def check_node(head: str, address: str) -> tuple[dict[str, str], list[Finding]]:
    """Check a cluster's machine, there; return what all must have in common as well."""
    found = [*check_machine(cluster=True), _interface(head, ray=address), *check_emulation()]
    return node_identity(), found


def _interface(head: str, name: str = "", ray: str = "") -> Finding:
    """Find the interface that reaches a head; Ray may have another address of this machine."""
    try:
        own = interface_towards(resolve(head), name)
    except DistrlccError as error:
        return finding("interface", str(error), fail="give an address of the head's network")
    way, fail = f"{own} leads to {head}", ""
    if ray not in ("", own.address):
        way, fail = f"{way}; Ray has {ray}", "leave and join again with --interface"
    return finding("interface", way, fail=fail)


def check_machine(*, cluster: bool) -> list[Finding]:
    """Check a machine that may join a cluster, which needs Ray, or not."""
    return [_versions(cluster=cluster), _cores(), _memory(), _disk(), _gpus()]


def _versions(*, cluster: bool) -> Finding:
    versions = {**package_versions(), "ray": node_identity()["ray"]}
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    needed = {"torch": "to train", "ray": "for clusters and searches"}
    names = [name for name in needed if versions[name] == NOT_INSTALLED]
    remedy = "; ".join(f"{needed[name]}: {install_command(name)}" for name in names)
    return finding("versions", found, fail=remedy if cluster else "", warn=remedy)


def _cores() -> Finding:
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    busy = "other programs compute here; measurements will be off" if load > 0.75 * cores else ""
    return finding("cores", f"{cores}, load {load:.1f}", warn=busy)


def _memory() -> Finding:
    memory = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(memory.get(n, 0)) * 1024e-9 for n in ("MemTotal:", "MemAvailable:"))
    small = f"less than {MEMORY_GB:g} GB: end other programs" if free < MEMORY_GB else ""
    return finding("memory", f"{free:.1f} of {total:.1f} GB free", warn=small)


def _disk() -> Finding:
    temporary = tempfile.gettempdir()  # Ray's logs and spilled objects; its objects are in memory
    here, there, shared = (_free_gb(folder) for folder in (".", temporary, "/dev/shm"))
    found = f"{here:.1f} GB free here, {there:.1f} in {temporary}, {shared:.1f} in /dev/shm"
    fail = "make room: nothing can be written" if min(here, there) < 0.05 else ""
    warn = ""
    if min(here, there) < DISK_GB:
        warn = f"less than {DISK_GB:g} GB: make room"
    elif shared < SHARED_GB:
        warn = "Ray's objects will be slow: a larger /dev/shm (docker run --shm-size)"
    return finding("disk", found, fail=fail, warn=warn)


def _free_gb(folder: str) -> float:
    try:
        return shutil.disk_usage(folder).free / 1e9
    except OSError:
        return 0.0


def _gpus() -> Finding:
    names: list[str] = []
    with suppress(ImportError):
        import torch  # noqa: PLC0415 - slow, and a doctor also looks at broken machines

        names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return finding("GPUs", ", ".join(names) or "none; the CPU is used")


def compare_versions(head: str, versions: dict[str, str], own: dict[str, str]) -> Finding:
    """Compare a machine's versions with those of a cluster's head."""
    table = differences(versions, own)
    fail = "install the head's ('master')" if table else ""
    return finding("same versions", table or f"as on {head}", fail=fail)


def check_head(head: str, interface: str = "") -> list[Finding]:
    """Look at the way to a cluster's head, and at the versions that it has written."""
    host, port = parse_address(head)
    findings = [_interface(host, interface)]
    if findings[0].verdict == Verdict.FAIL:
        return findings
    if not (token := known_token()):
        return [*findings, finding("head", "not asked", warn=f"set {TOKEN} to that cluster's")]
    try:
        versions = read_row(f"{resolve(host)}:{port}", token)
    except DistrlccError as error:
        return [*findings, finding("head", str(error), fail="see what was found")]
    known = finding("head", f"{head} knows the token")
    return [*findings, known, compare_versions(host, versions, node_identity())]


def check_emulation() -> list[Finding]:
    """Check what emulated links and hosts need; training works without, so nothing fails."""
    found = shutil.which("mm-link")
    warn = "" if found else "only to compare with mahimahi itself: install its package"
    mahimahi = finding("mahimahi", found or "no mm-link", warn=warn)
    return [_namespaces(), _tun(), mahimahi, _controls(), check_kernel()]


def _namespaces() -> Finding:
    if is_privileged():
        return finding("namespaces", "can be made, as root")
    script = "from distrlcc.net.emulator.namespace import enter_user_namespace as enter; enter()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    if done.returncode:
        use = "for emulated links, and so that other users do not reach a run's ports"
        return finding("namespaces", "cannot be made", warn=f"{use}: {REMEDY}")
    return finding("namespaces", "can be made, without root")


def _tun() -> Finding:
    try:
        os.close(os.open(TUN_PATH, os.O_RDWR))
    except OSError as error:
        warn = "Ethernet devices take its place; or modprobe tun, in a container --device"
        return finding("TUN", f"{TUN_PATH}: {error.strerror}", warn=f"{warn} {TUN_PATH}")
    return finding("TUN", f"{TUN_PATH} opens")


def _controls() -> Finding:
    kernel = Path("/proc/sys/net/ipv4")
    try:
        available = (kernel / "tcp_available_congestion_control").read_text().split()
        allowed = (kernel / "tcp_allowed_congestion_control").read_text().split()
    except OSError as error:
        warn = "congestion controls cannot be chosen"
        return finding("kernel's TCP", str(error.strerror), warn=warn)
    usable = available if os.geteuid() == 0 else [c for c in available if c in allowed]
    remedies = [
        f"add {control} to net.ipv4.tcp_allowed_congestion_control"
        if control in available
        else f"modprobe tcp_{control}"
        for control in _CONTROLS
        if control not in usable
    ]
    warn = f"for comparisons with the kernel's: {', '.join(remedies)}" if remedies else ""
    return finding("kernel's TCP", ", ".join(usable), warn=warn)


def check_kernel() -> Finding:
    """Check whether a policy could be loaded into the kernel's TCP."""
    if lacking := list(problems()):
        return finding("kernel load", "cannot be used", warn="; ".join(lacking))
    return finding("kernel load", f"Linux {os.uname().release}, {libbpf().path} {libbpf().version}")


def new_marks(place: str) -> Storage:
    """Return a new folder in a storage in which each machine leaves a file."""
    return Storage(place, f".distrlcc-doctor-{uuid.uuid4().hex[:8]}")


def leave_mark(marks: Storage, name: str) -> str:
    """Leave this machine's mark and read it back; return the problem, if any.

    A storage folder must exist already: one made here may lie where a mount is missing.
    """
    is_url = "://" in marks.url
    try:
        if not is_url and not within(Path(marks.url).is_dir):
            return f"{marks.url}: there is no such folder"
        marks.open(check=is_url)
        marks.write(name, name.encode())
        if marks.read(name) != name.encode():
            return f"{marks.url} gives back something else than was written"
    except (DistrlccError, OSError) as error:
        return str(error)
    return ""


def missing_marks(marks: Storage, names: list[str]) -> list[str]:
    """Return the machines whose marks this one does not find."""
    with suppress(DistrlccError):
        return [name for name in names if marks.read(name) != name.encode()]
    return names


def sweep_marks(marks: Storage) -> None:
    """Remove the marks, where that is possible."""
    with suppress(DistrlccError):
        marks.delete("", folder=True)


def judge_storage(place: str, problem: str, missing: list[str]) -> Finding:
    """Judge what a machine found: a problem of its own, or marks that are missing."""
    found, fail = f"{place.partition('?')[0]} is writable", ""
    if problem and "://" in place:
        found, fail = problem, "see address and credentials"
    elif problem:
        found, fail = problem, "mount it, and let this user write there"
    elif missing:
        found += f", but what {', '.join(missing)} wrote is not there"
        fail = "mount the same storage at the same place on all machines"
    return finding("storage", found, fail=fail)
