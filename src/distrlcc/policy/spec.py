"""A policy's spec: all that is needed to build its network and to put it to use."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from distrlcc.config import check_fields
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.plugins import Registry, having, is_pinned, is_reference, short

ActionKind = Literal["discrete", "continuous"]
Activation = Literal["relu", "tanh"]

DEFAULT = "one"  # the shipped policy that is taken where none is named
PREFERENCE, DELAY_WEIGHTS = "preference", "delay_weights"
"""Options of a policy whose last input is a preference: the default, and the prices of delay that
0 and 1 stand for."""


class Network(Protocol):
    """A user's network: the same function in torch, which learns, and in NumPy, which acts.

    Observations come normalised; both return logits or means, values and the next state. Only
    `module` may import torch: a sender has none.
    """

    def state_size(self, spec: "PolicySpec") -> int:
        """Return H, the width of the recurrent state; 0 without one."""
        return 0

    def shapes(self, spec: "PolicySpec") -> dict[str, tuple[int, ...]]:
        """Return the shapes of the module's parameters by name."""

    def module(self, spec: "PolicySpec") -> Any:
        """Return a ``torch.nn.Module`` with weights drawn from torch's generator.

        Its arguments are observations ``[L, B, D]``, starts ``[L, B]``, True where the state is
        zero, and the state ``[1, B, H]``. It returns ``[L, B, A]``, ``[L, B]``, ``[1, B, H]``.
        """

    def step(
        self,
        arrays: dict[str, NDArray[np.float32]],
        obs: NDArray[np.float32],
        state: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Return ``[N, A]``, ``[N]`` and ``[1, N, H]`` of ``[N, D]`` and ``[1, N, H]``.

        ``arrays`` are the parameters by name; nothing passed in is changed.
        """


NETWORKS: Registry[Network | None] = Registry(
    "network", dict.fromkeys(("mlp", "lstm", "mingru")), having("state_size shapes module step")
)
"""Ours have None: `distrlcc.policy.network` and `distrlcc.policy.numpy_policy` have them."""
BODY = "body."  # before the names of the parameters of a user's network


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy's inputs, outputs and network."""

    observation: str  # name of the observation the policy was trained on
    observation_size: int  # numbers in one observation
    action: str  # name of the action set
    action_kind: ActionKind
    """``discrete``: one of ``action_size`` actions; ``continuous``: a vector of that length."""
    action_size: int  # number of actions, or length of the action vector
    kind: str = "mlp"
    """``mlp``: dense layers; ``lstm`` or ``mingru``: dense layers, then one recurrent layer; or a
    reference to a `Network`."""
    hidden: tuple[int, ...] = (64, 64)  # layer widths; the last is the recurrent layer's, if any
    post_hidden: int = 0
    """Width of a dense layer after the recurrent one, whose input and state it reads; 0: none."""
    activation: Activation = "relu"  # activation of the dense layers
    step_ms: float = 10.0  # length of one step, ms, where `interval_rtts` is None
    interval_rtts: float | None = None  # length of one step in the sender's own round-trip times
    pacing: float = 0.0
    """Packets of a window leave at this many windows per smoothed round trip; 0: as it allows."""
    guard: float = 0.0
    """Share of lost packets from which on CUBIC's rule bounds the window; 0: never."""
    options: dict[str, str] = field(default_factory=dict)
    """Anything else its user must know, such as the observation's options."""

    def __post_init__(self) -> None:
        check_fields(self, "observation_size", 1)
        check_fields(self, "action_size", 2 if self.action_kind == "discrete" else 1)
        if not self.hidden or not all(1 <= width <= 16384 for width in self.hidden):
            raise ConfigError(
                f"hidden is {self.hidden!r}: expected widths of 1 to 16384, one or more"
            )
        check_fields(self, "post_hidden", 0, 0 if self.kind == "mlp" else 16384)
        if self.kind not in NETWORKS and not is_reference(self.kind):
            raise unknown_name("network", self.kind, NETWORKS)
        for name in (self.observation, self.action, self.kind):
            if not is_pinned(name):
                raise ConfigError(f"{name!r} lacks the hash of its source: expected {name}@HASH")
        check_fields(self, "step_ms interval_rtts", 0, above=True)
        try:  # another option may change what a policy is
            fits = not self.options or (
                self.options.keys() == {PREFERENCE, DELAY_WEIGHTS}
                and 0.0 <= float(self.options[PREFERENCE]) <= 1.0
                and len(self.delay_weights) == 2
            )
        except ValueError:
            fits = False
        if not fits:
            raise ConfigError(
                f"options {self.options!r}: expected {PREFERENCE} of 0 to 1 and {DELAY_WEIGHTS} "
                "as in '0.05 5.0', or none"
            )

    @property
    def delay_weights(self) -> tuple[float, ...]:
        """Prices of delay that preferences 0 and 1 stand for; empty without any."""
        return tuple(map(float, self.options.get(DELAY_WEIGHTS, "").split()))

    @property
    def network(self) -> Network | None:
        """The user's network; None where it is one of ours."""
        return NETWORKS[self.kind]

    @property
    def dense(self) -> tuple[int, ...]:
        """Widths of the dense layers."""
        return self.hidden[:-1] if self.kind in ("lstm", "mingru") else self.hidden

    @property
    def network_text(self) -> str:
        """The network in a few words, as ``mingru 128-64, then 32``."""
        then = f", then {self.post_hidden}" if self.post_hidden else ""
        return f"{short(self.kind)} {'-'.join(map(str, self.hidden))}{then}"

    @property
    def state_size(self) -> int:
        """Width of the recurrent state; 0 without one."""
        network = self.network
        if network is not None:
            return network.state_size(self)
        return 0 if self.kind == "mlp" else self.hidden[-1]

    def state_shape(self, count: int) -> tuple[int, int, int]:
        """Return the shape of recurrent states, ``[P, count, H]``: P is 2, h and c, of an LSTM."""
        return (2 if self.kind in ("mlp", "lstm") else 1, count, self.state_size)

    def no_actions(self, *shape: int) -> NDArray[Any]:
        """Return zeros as actions: int64 of a shape, or where continuous float32 ``[..., A]``."""
        if self.action_kind == "discrete":
            return np.zeros(shape, np.int64)
        return np.zeros((*shape, self.action_size), np.float32)

    @property
    def preference(self) -> float | None:
        """The default preference, from 0 (throughput) to 1 (delay); None: it is no input."""
        said = self.options.get(PREFERENCE)
        return None if said is None else float(said)


def expected_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every array a policy of this spec consists of."""
    network = spec.network
    if network is not None:
        shapes = {BODY + name: tuple(shape) for name, shape in network.shapes(spec).items()}
    else:
        shapes = _our_shapes(spec)
    if spec.action_kind == "continuous":
        shapes["log_std"] = (spec.action_size,)
    shapes["normalizer.mean"] = shapes["normalizer.std"] = (spec.observation_size,)
    return shapes


def _our_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}

    def add(layer: str, outputs: int, inputs: int) -> None:
        shapes[f"{layer}.weight"], shapes[f"{layer}.bias"] = (outputs, inputs), (outputs,)

    width = spec.observation_size
    for index, size in enumerate(spec.dense):
        add(f"trunk.{index}", size, width)
        width = size
    size = spec.state_size
    if spec.kind == "mingru":
        add("mingru", 2 * size, width)
    elif spec.kind == "lstm":
        shapes["lstm.weight_ih"] = (4 * size, width)
        shapes["lstm.weight_hh"] = (4 * size, size)
        shapes["lstm.bias_ih"] = shapes["lstm.bias_hh"] = (4 * size,)
    if spec.post_hidden:
        add("post", spec.post_hidden, width + size)
    width = spec.post_hidden or size or width
    add("policy_head", spec.action_size, width)
    add("value_head", 1, width)
    return shapes
