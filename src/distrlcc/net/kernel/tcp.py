"""A policy as a congestion control of the kernel's TCP: registered, reloaded, watched, removed.

A registration ends with the process that holds it or, if it is pinned, when the pin goes. Open
connections go on under the policy. Weights lie in two slots; the program reads the one that the
generation names.
"""

import errno
import os
import platform
import re
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import ConfigError, KernelError
from distrlcc.limits import limits
from distrlcc.net.emulator.namespace import capabilities
from distrlcc.net.kernel import bpf
from distrlcc.net.kernel.tcp_flow import kernel_controls
from distrlcc.policy import kernel_layout as layout
from distrlcc.processes import call_libc

PROGRAM = Path(__file__).parent / layout.OBJECT  # the compiled program
PINS = Path("/sys/fs/bpf/distrlcc")  # where registrations are pinned, each under its control's name
_BTF = Path("/sys/kernel/btf/vmlinux")
_OLDEST_KERNEL = (6, 4)  # the first whose registrations end with the process that holds them
_CAPABILITIES = {"CAP_BPF": 39, "CAP_NET_ADMIN": 12, "CAP_PERFMON": 38}
_SYS_ADMIN = 21
_LONGEST_NAME = 15
_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "riscv64": 283}
_ALL_READERS = 1  # MEMBARRIER_CMD_GLOBAL, which returns when all BPF programs of now have ended

_SECTIONS = (layout.POLICIES, layout.CONTROL, layout.STATS)
_NUMBERS = {"operations": layout.OPERATIONS, "policies": layout.POLICIES, "stats": layout.STATS}
"""Maps by the fields of `layout.CONTROL_TYPE` that have their numbers."""
_OLD_ARGUMENTS = 2
_NOISE = re.compile(r"libbpf: |-- |processed \d+ insns|verification time|stack depth|\d+: ")
"""Lines of libbpf and the verifier that do not say what is wrong."""
_FORBIDDEN = (
    ": run as root of the machine; in a container with --privileged, and with a seccomp filter "
    "that lets bpf through"
)
_HINTS = {
    errno.EPERM: _FORBIDDEN,
    errno.EACCES: _FORBIDDEN,
    errno.ENOSYS: _FORBIDDEN,
    errno.ENOMEM: ": raise the limit of locked memory, ulimit -l",
}

Record = NDArray[np.void]


def problems() -> Iterator[str]:
    """Yield what this machine lacks to load a policy, each with what to do about it."""
    release = os.uname().release
    numbers = tuple(map(int, re.findall(r"\d+", release)[:2]))
    if numbers < _OLDEST_KERNEL:
        oldest = ".".join(map(str, _OLDEST_KERNEL))
        yield f"Linux {release} is too old: expected {oldest} or later; boot a newer kernel"
    if not _BTF.is_file():
        yield (
            f"this kernel does not describe its types ({_BTF} is missing); boot one with "
            "CONFIG_DEBUG_INFO_BTF=y, as the distributions' are"
        )
    try:
        bpf.libbpf()
    except KernelError as error:
        yield str(error)
    held = capabilities()
    if held >> _SYS_ADMIN & 1:
        held |= 1 << _CAPABILITIES["CAP_BPF"] | 1 << _CAPABILITIES["CAP_PERFMON"]
    if lacking := [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]:
        yield (
            f"no right to load programs into the kernel (missing: {', '.join(lacking)}); run as "
            f"root, or with {', '.join(_CAPABILITIES)}"
        )


def require_kernel() -> None:
    """Raise a KernelError of the first of `problems`, if there is one."""
    for problem in problems():
        raise KernelError(problem)


@dataclass(eq=False)
class KernelControl:
    """A policy that the kernel has, or a control that ended and whose connections go on."""

    control: Record  # of `layout.CONTROL_TYPE`, as the program sees it; so the next ones
    policies: Record  # the two slots
    counted: Record  # of `layout.STATS_TYPE`
    link: int | None = None  # the kernel's number of its registration; None: it has ended
    loaded: bpf.BpfObject | None = None  # the program, in the process that loaded it
    link_fd: int | None = None  # the registration, in the process that holds it

    @property
    def name(self) -> str:
        """Name of the congestion control."""
        return str(self.control["name"].item(), "utf-8", "replace")

    @property
    def label(self) -> str:
        """The policy's name in ``kernel status``."""
        return str(self.control["label"].item(), "utf-8", "replace")

    @property
    def pin(self) -> Path | None:
        """Where it is pinned; None: nowhere that this process sees."""
        path = PINS / self.name
        return path if path.exists() else None

    @property
    def always(self) -> bool:
        """Whether its policy sends on paths, too, that are outside of what policies hold."""
        slot = int(self.control["generation"]) & 1
        return bool(len(self.policies) and not self.policies[slot]["noise_us"])

    def counts(self) -> dict[str, int]:
        """Return what the program has counted."""
        return {name: int(self.counted[name]) for name in layout.STATS_TYPE.names or ()}

    def guarded_share(self, since: dict[str, int] | None = None) -> float:
        """Return of what share of decisions, since counts were taken, the guard left less."""
        now, before = self.counts(), since or dict.fromkeys(("decisions", "lowered"), 0)
        made, lowered = (now[name] - before[name] for name in ("decisions", "lowered"))
        return lowered / max(made, 1)

    def places(self) -> NDArray[np.void]:
        """Return the places of a policy that follows, in the process that loaded it."""
        assert self.loaded is not None
        return bpf.map_array(self.loaded.map_fd(layout.PLACES)).view(layout.PLACE)

    def holders(self) -> list[int]:
        """Return the processes that hold its registration."""
        found = []
        for path in Path("/proc").glob("[0-9]*/fdinfo"):
            with suppress(OSError):
                if any(self._is_link(file) for file in path.iterdir()):
                    found.append(int(path.parent.name))
        return found

    def _is_link(self, file: Path) -> bool:
        with suppress(OSError):
            return f"link_id:\t{self.link}\n" in file.read_text()
        return False

    def swap(self, policy: Record, label: str) -> None:
        """Give it a `layout.POLICY` and its label, at once: no step sees parts of two."""
        if not len(self.policies):
            raise KernelError(
                f"another version of distrlcc has loaded {self.name}; first run 'distrlcc kernel "
                f"unload --name {self.name}'"
            )
        # Whoever still reads the other slot read the generation before the last swap.
        _wait_for_readers()
        generation = int(self.control["generation"]) + 1
        self.policies[generation & 1] = policy
        self.control["label"] = label.encode()[:63]
        self.control["generation"] = generation

    def close(self) -> None:
        """End the registration that this process holds; a pinned one goes on."""
        if self.link_fd is not None:
            os.close(self.link_fd)
        if self.loaded is not None:
            self.loaded.close()
        self.link_fd = self.loaded = self.link = None


def _wait_for_readers() -> None:
    """Wait until every program that runs at this moment has ended."""
    number = _MEMBARRIER.get(platform.machine())
    with suppress(OSError):
        if number is not None:
            call_libc("syscall", number, _ALL_READERS, 0, 0)
            return
    time.sleep(limits().tick)  # another machine, or cores without ticks: none runs for so long


def register(
    policy: Record, label: str, name: str | None = None, *, keep: bool = False
) -> KernelControl:
    """Load the program and register it as a congestion control, by default under a free name.

    ``policy`` is of `layout.POLICY`, ``label`` its name in `loaded_controls`; with ``keep`` it
    stays after this process.
    """
    # Refuse what can be refused before anything is loaded.
    name = _free_name() if name is None else name
    check_name(name)
    require_kernel()
    if keep:
        _require_pins()
    loaded = bpf.BpfObject(_renamed(PROGRAM.read_bytes(), name))
    made = link = None
    try:
        # Load it.
        with refusals("the kernel refuses the program"):
            form = bpf.count_arguments("tcp_congestion_ops", "cong_control") == _OLD_ARGUMENTS
            loaded.fill(layout.FORM, int(form).to_bytes(4, "little"))
            loaded.load(linked=layout.OPERATIONS)
        # It has its policy before anybody can choose it, and says what belongs to it.
        made = _control(*map(loaded.map_fd, _SECTIONS))
        for field_name, section in _NUMBERS.items():
            made.control[field_name] = bpf.number_of(loaded.map_fd(section))
        made.control["name"] = name.encode()
        made.swap(policy, label)
        # Register it.
        with refusals(f"the kernel refuses to register {name}"):
            link = loaded.link(layout.OPERATIONS)
            if keep:
                PINS.mkdir(mode=0o700, exist_ok=True)
                bpf.pin(link, PINS / name)
    except BaseException:
        if link is not None:
            os.close(link)
        loaded.close()
        raise
    made.link, made.link_fd, made.loaded = bpf.number_of(link), link, loaded
    return made


def _free_name() -> str:
    """Return a name that no control has; containers share these, not their processes' numbers."""
    while (name := f"rl{os.getpid()}_{secrets.token_hex(2)}") in kernel_controls():
        pass
    return name


def check_name(name: str) -> None:
    """Raise ConfigError if a name cannot be a control's, or is taken."""
    if not re.fullmatch(rf"[A-Za-z0-9_]{{1,{_LONGEST_NAME}}}", name):  # pins have no dots
        raise ConfigError(
            f"--name {name!r}: expected 1 to {_LONGEST_NAME} letters, digits or underscores"
        )
    if name in kernel_controls():
        raise ConfigError(
            f"the kernel's TCP has a control named {name} already; take another --name, or, if it "
            f"is ours, 'distrlcc kernel unload --name {name}'"
        )


def _require_pins() -> None:
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    if not any((place, kind) == (str(PINS.parent), "bpf") for _, place, kind, *_ in mounts):
        raise KernelError(
            f"nothing can be kept: no BPF file system at {PINS.parent}; "
            f"mount -t bpf bpf {PINS.parent}"
        )


def _renamed(elf: bytes, name: str) -> bytes:
    old = f"{layout.OPERATIONS}\0".encode().ljust(_LONGEST_NAME + 1, b"\0")
    assert elf.count(old) == 1
    return elf.replace(old, name.encode().ljust(len(old), b"\0"))


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Say in one line what the kernel refuses."""
    try:
        yield
    except FileExistsError:
        raise ConfigError(f"{what}: the name is taken; take another --name") from None
    except OSError as error:
        said = [line for line in bpf.libbpf().messages if line.strip()]
        hint = _HINTS.get(error.errno or 0, "")
        reason = next((line for line in said[::-1] if not _NOISE.match(line)), "")
        more = f": {reason.strip()}" if reason and not hint else hint
        raise KernelError(f"{what} ({error.strerror}){more}") from None


def _control(policies: int, control: int, stats: int, link: int | None = None) -> KernelControl:
    """Return what these maps hold; no policies where another version's are of another size."""
    slots, counted = bpf.map_array(policies), bpf.map_array(stats)
    if len(counted) < layout.STATS_TYPE.itemsize:  # another version's
        counted = np.pad(counted, (0, layout.STATS_TYPE.itemsize - len(counted)))
    fits = len(slots) == 2 * layout.POLICY.itemsize
    return KernelControl(
        control=bpf.map_array(control).view(layout.CONTROL_TYPE).reshape(()),
        policies=slots[: len(slots) * fits].view(layout.POLICY),
        counted=counted[: layout.STATS_TYPE.itemsize].view(layout.STATS_TYPE).reshape(()),
        link=link,
    )


def loaded_controls() -> list[KernelControl]:
    """Return the kernel's policies, those with connections alone last; raises KernelError."""
    require_kernel()
    found = []
    with refusals("what is in the kernel cannot be seen"):
        links = bpf.links_by_map()
        for fd in bpf.maps_named(layout.CONTROL):
            record = bpf.map_array(fd)
            if len(record) != layout.CONTROL_TYPE.itemsize:
                continue
            control = record.view(layout.CONTROL_TYPE)[0]
            policies, stats = (bpf.opened("map", int(control[n])) for n in ("policies", "stats"))
            with suppress(FileNotFoundError), policies as slots, stats as counted:
                link = links.get(int(control["operations"]))
                found.append(_control(slots, fd, counted, link))
    return sorted(found, key=lambda one: (one.link is None, one.name))


def find_control(name: str) -> KernelControl:
    """Return the registered policy of a name; raises KernelError if it is not there."""
    found = {one.name: one for one in loaded_controls() if one.link is not None}
    if name in found:
        return found[name]
    names = ", ".join(found) or "none"
    raise KernelError(f"no policy is in the kernel's TCP as {name} (there is: {names})")


def remove(control: KernelControl) -> None:
    """End a registration, its pin and its holders; raises KernelError if one cannot be seen."""
    if control.pin is not None:
        control.pin.unlink()
    # A trainer's world ends by force alone.
    asked = control.holders()
    for number, seconds in ((signal.SIGTERM, limits().kill), (signal.SIGKILL, limits().stop)):
        for pid in set(asked) & set(control.holders()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while control.link in bpf.links_by_map().values():
            if time.monotonic() > deadline:
                break
            time.sleep(limits().tick)
        else:
            return
    raise KernelError(
        f"{control.name} is still registered: held by processes "
        f"{control.holders() or 'of another container'}; end them"
    )
