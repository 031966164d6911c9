"""What a machine has: versions, cores, memory, disk and GPUs."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from distrlcc.cluster.session import node_identity
from distrlcc.doctor.row import Row, judged
from distrlcc.runs.versions import package_versions

NOT_INSTALLED = "not installed"
_MEMORY_GB = 2.0
"""A small run with Ray beside it takes 1.5 GB."""
_DISK_GB = 2.0
_SHARED_GB = 0.5


@dataclass(frozen=True)
class Machine:
    """What was found."""

    versions: dict[str, str]
    common: dict[str, str]
    """Those that a cluster's machines must have in common."""
    cores: int
    load: float
    """Processes that computed during the last minute."""
    memory_gb: float
    free_gb: float
    disk_gb: float
    """Free for run directories, here."""
    temporary_gb: float
    """Free for Ray's logs and spilled objects."""
    shared_gb: float
    """Free for Ray's objects in memory."""
    gpus: tuple[str, ...]


def look() -> Machine:
    """Look at this machine."""
    memory = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
    )
    common = node_identity()
    return Machine(
        versions={**package_versions(), "ray": common["ray"]},
        common=common,
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        memory_gb=_kilobytes(memory, "MemTotal"),
        free_gb=_kilobytes(memory, "MemAvailable"),
        disk_gb=_free_gb(Path.cwd()),
        temporary_gb=_free_gb(Path(tempfile.gettempdir())),
        shared_gb=_free_gb(Path("/dev/shm")),
        gpus=_gpus(),
    )


def machine_rows(machine: Machine, name: str, *, cluster: bool) -> list[Row]:
    """Judge a machine.

    Args:
        machine: What was found.
        name: Of the machine.
        cluster: Whether it is to be in a cluster, which needs Ray.
    """
    versions = ", ".join(f"{k} {v}" for k, v in machine.versions.items())
    torch = "pip install torch" if machine.versions["torch"] == NOT_INSTALLED else ""
    ray = "pip install 'distrlcc[ray]'" if machine.versions["ray"] == NOT_INSTALLED else ""
    busy = machine.load > 0.75 * machine.cores
    full = min(machine.disk_gb, machine.temporary_gb)
    return [
        judged(
            "versions", name, versions,
            fail=torch or (ray if cluster else ""),
            warn=f"for clusters and searches: {ray}" if ray else "",
        ),
        judged(
            "cores", name, f"{machine.cores}, load {machine.load:.1f}",
            warn="other programs compute here; measurements will be off" if busy else "",
        ),
        judged(
            "memory", name, f"{machine.free_gb:.1f} of {machine.memory_gb:.1f} GB free",
            warn=f"less than {_MEMORY_GB:g} GB: end other programs" if machine.free_gb < _MEMORY_GB
            else "",
        ),
        judged(
            "disk", name,
            f"{machine.disk_gb:.1f} GB free here, {machine.temporary_gb:.1f} in "
            f"{tempfile.gettempdir()}, {machine.shared_gb:.1f} in /dev/shm",
            fail="make room: nothing can be written" if full < 0.05 else "",
            warn=f"less than {_DISK_GB:g} GB: make room" if full < _DISK_GB
            else "Ray's objects will be slow: a larger /dev/shm (docker run --shm-size)"
            if machine.shared_gb < _SHARED_GB else "",
        ),
        judged("GPUs", name, ", ".join(machine.gpus) or "none; the CPU is used"),
    ]  # fmt: skip


def common_rows(machines: dict[str, Machine]) -> list[Row]:
    """Compare what a cluster's machines must have in common with the first one's."""
    names = list(machines)
    head = machines[names[0]].common
    rows = []
    for name in names[1:]:
        own = machines[name].common
        differing = [key for key in {**head, **own} if head.get(key) != own.get(key)]
        found = ", ".join(f"{k} {own.get(k, '-')} != {head.get(k, '-')}" for k in differing)
        rows.append(
            judged(
                "same versions", name, found or f"as on {names[0]}",
                fail=f"install what {names[0]} has" if differing else "",
            )
        )  # fmt: skip
    return rows


def _kilobytes(memory: dict[str, str], name: str) -> float:
    """Return an entry of /proc/meminfo in GB."""
    return int(memory.get(name, "0 kB").split()[0]) * 1024 / 1e9


def _free_gb(folder: Path) -> float:
    try:
        return shutil.disk_usage(folder).free / 1e9
    except OSError:
        return 0.0


def _gpus() -> tuple[str, ...]:
    try:
        import torch  # noqa: PLC0415 - slow, and a doctor also looks at broken machines
    except ImportError:
        return ()
    count = torch.cuda.device_count()
    return tuple(torch.cuda.get_device_name(index) for index in range(count))
