"""Contenders: a scheme by name, a policy from its file, or the kernel's TCP."""

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path

from distrlcc.control.state import SCHEMES
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.controller import PolicyController
from distrlcc.env.rewards import RewardConfig
from distrlcc.errors import ConfigError, PolicyFileError, reading, unknown_name
from distrlcc.evaluation.scores import DISPLAY_NAMES
from distrlcc.net.kernel.tcp import KernelControl
from distrlcc.net.kernel.tcp_flow import kernel_controls
from distrlcc.plugins import is_reference, short
from distrlcc.policy.numpy_policy import ActingPolicy, NumpyPolicy
from distrlcc.policy.policy_file import find_policy, shipped_policies
from distrlcc.seeding import stream_key
from distrlcc.sim.suites import BEST_CWND

KERNEL = "kernel-"  # before the names of the kernel's own congestion controls
PROGRAM = "cmd:"  # before the command of someone else's program


@dataclass(frozen=True)
class Contender:
    """A congestion control that is measured."""

    name: str
    policy: NumpyPolicy | None = None  # none for a scheme, or the kernel's TCP, named `name`
    preference: float | None = None  # of a policy that is told one: 0 (throughput) to 1 (delay)
    path: Path | None = None  # the policy's file, which a sender of real packets reads
    control: KernelControl | None = None  # what the kernel's TCP has of it, if anything
    always: bool = False  # whether a policy also sends on paths outside of its bounds
    reference: str = ""  # to a user's scheme; empty: it is built in
    program: tuple[str, str] = ("", "")  # shell commands of a foreign sender and its receiver

    @property
    def learned(self) -> bool:
        """Whether it is a policy."""
        return self.policy is not None

    @property
    def is_kernel(self) -> bool:
        """Whether it is the kernel's TCP, which only sends real packets."""
        return self.control is not None or (self.policy is None and self.name.startswith(KERNEL))

    @property
    def scheme(self) -> str:
        """The scheme that its flow runs in the simulator, or the kernel's control."""
        if self.control is not None:
            return self.control.name
        if self.reference:
            return self.reference
        return self.name.removeprefix(KERNEL) if self.policy is None else "agent"

    def simulated(self) -> "Contender | None":
        """Return the same in the simulator; None where that has no such scheme."""
        if self.program[0]:
            return None
        if self.policy is not None or not self.is_kernel:
            return replace(self, control=None)
        return Contender(self.scheme) if self.scheme in _real_schemes() else None

    def words(self) -> tuple[str, ...]:
        """Return the arguments with which ``distrlcc send`` runs it."""
        if self.policy is None:
            return (self.reference or self.name,)
        prefer = () if self.preference is None else ("--prefer", str(self.preference))
        return (str(self.path), *prefer, *["--always"] * self.always)

    def env_config(self) -> EnvConfig:
        """Return what its agent observes and does; the default's 10 ms steps for a scheme."""
        if self.policy is None:
            return EnvConfig()
        spec = self.policy.spec
        return EnvConfig(
            observation=spec.observation,
            action=spec.action,
            step_ms=spec.step_ms,
            interval_rtts=spec.interval_rtts or 0.0,
            reward=RewardConfig(delay_weights=spec.delay_weights),
            pacing=spec.pacing,
            guard=spec.guard,
            outside=spec.guard > 0 and not self.always,
        )

    def actor(self, count: int, seed: int) -> ActingPolicy:
        """Return the policy's running state for ``count`` senders."""
        assert self.policy is not None
        return ActingPolicy(self.policy, count, stream_key(seed, "evaluate"))

    def controller(self, seed: int = 0) -> PolicyController:
        """Return the policy as the controller of one sender."""
        assert self.policy is not None
        return PolicyController(self.policy, self.actor(1, seed), self.preference, self.always)


def kernel_note() -> str:
    """Return a sentence that says what stands beside a kernel's control in the simulator."""
    return (
        f"{KERNEL}NAME is the TCP of this machine's kernel (Linux {os.uname().release}; the BBR of "
        "Linux is version 1, unless it was replaced); simulated is our own NAME, which "
        "shares no code with it."
    )


def _real_schemes() -> list[str]:
    return [scheme for scheme in SCHEMES if scheme not in ("agent", "oracle")]


def is_scheme(name: str, *, real: bool = False) -> bool:
    """Say whether a name means a scheme or a program; with ``real`` also the kernel's TCP."""
    ours = name != "agent" and (name in SCHEMES or name in SCHEMES.registered)
    others = is_reference(name) or name.startswith((PROGRAM, KERNEL) if real else PROGRAM)
    return ours or others or name == BEST_CWND


def contender_named(sender: str, prefer: float | None = None, *, real: bool = False) -> Contender:
    """Return a scheme by its name or reference, or a policy as `contender_from_file` does."""
    if is_scheme(sender, real=real):
        if prefer is not None:
            raise ConfigError(f"{sender} is a scheme: a preference is for a policy")
        return contender_from_scheme(sender, real=real)
    names = [*shipped_policies(), *(name for name in SCHEMES if name != "agent")]
    if "," in sender and not os.path.exists(sender):
        raise ConfigError(f"{sender!r} has a comma: give each policy and scheme by itself")
    if not (sender in names or {"/", "."} & set(sender) or os.path.exists(sender)):
        raise unknown_name("policy or scheme", sender, names)
    return contender_from_file(sender, prefer)


def distinct(contenders: Iterable[Contender]) -> list[Contender]:
    """Return contenders under different names; our schemes and the kernel's keep theirs."""
    contenders = list(contenders)
    ours = [not (one.learned or one.reference or one.program[0]) for one in contenders]
    taken = {one.name for one, is_ours in zip(contenders, ours, strict=True) if is_ours}
    taken |= {*DISPLAY_NAMES, "oracle"}  # names under which pages show our schemes
    for place, one in enumerate(contenders):
        while not ours[place] and one.name in taken:
            contenders[place] = one = replace(one, name=f"{one.name}'")
        taken.add(one.name)
    return contenders


def contender_from_scheme(name: str, *, real: bool = False) -> Contender:
    """Return a scheme by name or reference; of real packets also ``kernel-NAME`` or ``cmd:``."""
    if name.startswith(PROGRAM):
        return _program(name, real=real)
    if real:
        names = [*(KERNEL + control for control in kernel_controls()), *_real_schemes()]
    else:
        names = [*(scheme for scheme in SCHEMES if scheme != "agent"), BEST_CWND]
    if is_reference(name) or name in SCHEMES.registered:
        pinned = SCHEMES.pinned(name)
        return Contender(short(pinned), reference=pinned)
    if name not in names:
        raise unknown_name("scheme of the emulated world" if real else "scheme", name, names)
    return Contender(name)


def _program(text: str, *, real: bool) -> Contender:
    if not real:
        raise ConfigError(f"{text}: a program is for distrlcc evaluate --world emulated")
    sender, _, receiver = (part.strip() for part in text.removeprefix(PROGRAM).partition(" :: "))
    try:
        words = [word for word in shlex.split(sender) if "=" not in word]
    except ValueError:  # a quotation that does not end
        words = []
    if not words or "{host}" not in sender or "{port}" not in sender:
        raise ConfigError(
            f"{text}: expected {PROGRAM}COMMAND with {{host}} and {{port}} in it, such as "
            f"'{PROGRAM}./run.sh {{host}} {{port}} {{seconds}} :: ./receive.sh {{port}}'"
        )
    return Contender(PROGRAM + Path(words[0]).name, program=(sender, receiver))


def rival(scheme: str, contender: Contender, others: str | None) -> Contender:
    """Return the sender of real packets for another flow's scheme, beside a contender.

    ``others`` is ``ours`` or ``kernel``; None means ``kernel`` if a kernel's contender is measured
    and the kernel has the scheme, else ``ours``.
    """
    controls = kernel_controls()
    if others == "kernel" and scheme not in controls:
        raise ConfigError(
            f"the kernel's TCP has no {scheme} (it has {', '.join(controls)}); load its module, or "
            "leave out --others kernel"
        )
    wanted = contender.is_kernel and scheme in controls if others is None else others == "kernel"
    return contender_from_scheme(KERNEL + scheme if wanted else scheme, real=True)


def contender_from_file(path: str, prefer: float | None = None) -> Contender:
    """Return the policy of a file, a run's folder or a shipped policy's name, named after it.

    ``prefer`` is the preference, which stands in the name; None: the policy's own, if it has any.
    """
    place = find_policy(path)
    policy = NumpyPolicy.load(place)
    _check_spaces(path, policy)
    if prefer is not None and policy.spec.preference is None:
        raise ConfigError(
            f"{path}: --prefer needs a policy that was trained with preferences, as the recipe "
            "'preference' is; this one has a fixed weight of delay"
        )
    if prefer is not None and not (isinstance(prefer, Real) and 0.0 <= prefer <= 1.0):
        raise ConfigError(f"prefer is {prefer!r}; expected 0 (throughput) to 1 (delay)")
    name = place.stem if place.stem != "policy" or not place.parent.name else place.parent.name
    name += "" if prefer is None else f"@{prefer:g}"
    preference = policy.spec.preference if prefer is None else prefer
    return Contender(name, policy, preference, place.resolve())


def _check_spaces(path: str, policy: NumpyPolicy) -> None:
    spec = policy.spec
    with reading(PolicyFileError, f"{path}: what it says of itself does not fit"):
        batch = LinkBatch(1, Contender("", policy).env_config())
    actions, seen = batch.actions, batch.observation_size
    for what, has, expected in (
        (f"kind of action {spec.action!r}", spec.action_kind, actions.kind),
        (f"size of action {spec.action!r}", spec.action_size, actions.size),
        (f"size of observation {spec.observation!r}", spec.observation_size, seen),
    ):
        if has != expected:
            raise PolicyFileError(
                f"{path}: the {what} is {has}, in this distrlcc {expected}; train it again, or "
                "use the distrlcc that wrote it"
            )
