"""Who sends real packets: a policy or one of our schemes over UDP, or the kernel's TCP."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from distrlcc.control.schemes import SCHEMES
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.evaluate.contender import Contender, contender_from_file
from distrlcc.policy.policy_file import find_policy

KERNEL = "kernel-"
_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


@dataclass(frozen=True)
class RealContender:
    """Who sends real packets."""

    name: str
    words: tuple[str, ...]
    """Of ``distrlcc send``; for the kernel's TCP the name of its control."""
    model: Contender | None
    """The same in the simulator; None where that has no such scheme."""

    @property
    def learned(self) -> bool:
        """Whether it is a policy."""
        return self.model is not None and self.model.policy is not None

    @property
    def is_kernel(self) -> bool:
        """Whether it is the kernel's TCP."""
        return self.name.startswith(KERNEL)


def kernel_controls() -> list[str]:
    """Return the congestion controls that the kernel's TCP has."""
    return _CONTROLS.read_text().split()


def kernel_note() -> str:
    """Return a sentence that says what stands beside a kernel's control in the simulator."""
    return (
        f"{KERNEL}NAME is the TCP of this machine's kernel (Linux {os.uname().release}; the BBR of "
        "Linux is version 1, unless somebody has replaced it); simulated is our own NAME, which "
        "shares no code with it."
    )


def scheme_or_kernel(name: str) -> RealContender:
    """Return a scheme of ours by its name, or one of the kernel's as ``kernel-NAME``.

    Raises:
        ConfigError: There is no such scheme, or the kernel does not have it.
    """
    ours = [scheme for scheme in SCHEMES if scheme not in ("agent", "oracle")]
    kernels = [KERNEL + control for control in kernel_controls()]
    if name in kernels:
        control = name.removeprefix(KERNEL)
        return RealContender(name, (control,), Contender(control) if control in ours else None)
    if name not in ours:
        raise unknown_name("scheme of the emulated world", name, [*kernels, *ours])
    return RealContender(name, ("--scheme", name), Contender(name))


def policy_from_file(path: str, taken: set[str], prefer: float | None = None) -> RealContender:
    """Return a policy file, or a run's folder; see `contender_from_file`."""
    model = contender_from_file(path, taken, prefer)
    preferred = () if prefer is None else ("--prefer", str(prefer))
    return RealContender(
        model.name, ("--policy", str(find_policy(path).resolve()), *preferred), model
    )


def rival(scheme: str, contender: RealContender, others: str | None) -> RealContender:
    """Return who sends as another flow's scheme.

    Args:
        scheme: Its name in the scenario.
        contender: Who is measured beside it.
        others: ``ours`` or ``kernel``; None: the kernel's where it has it beside a contender of the
            kernel's, else ours.

    Raises:
        ConfigError: It cannot send real packets, or the kernel does not have it.
    """
    controls = kernel_controls()
    if others == "kernel" and scheme not in controls:
        raise ConfigError(
            f"the kernel's TCP has no {scheme} (it has {', '.join(controls)}); load its module, or "
            "leave out --others kernel"
        )
    wanted = contender.is_kernel and scheme in controls if others is None else others == "kernel"
    return scheme_or_kernel(KERNEL + scheme if wanted else scheme)
