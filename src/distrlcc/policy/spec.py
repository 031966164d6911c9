"""What a policy is: all that is needed to build its network and to put it to use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from distrlcc.errors import ConfigError

ActionKind = Literal["discrete", "continuous"]
NetworkKind = Literal["mlp", "lstm"]
Activation = Literal["relu", "tanh"]

_CHOICES = {
    "action_kind": ("discrete", "continuous"),
    "kind": ("mlp", "lstm"),
    "activation": ("relu", "tanh"),
}


PREFERENCE, DELAY_WEIGHTS = "preference", "delay_weights"
"""Options of a policy whose last input is a preference: the default, and the prices of delay that
0 and 1 stand for."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy's inputs, outputs and network.

    Raises:
        ConfigError: If a value does not fit.
    """

    observation: str
    """Name of the observation the policy was trained on."""
    observation_size: int
    """Numbers in one observation."""
    action: str
    """Name of the action set."""
    action_kind: ActionKind
    """``discrete``: one of ``action_size`` actions; ``continuous``: a vector of that length."""
    action_size: int
    """Number of actions, or length of the action vector."""
    kind: NetworkKind = "mlp"
    """``mlp``: dense layers; ``lstm``: dense layers, then one LSTM layer as the last of hidden."""
    hidden: tuple[int, ...] = (64, 64)
    """Layer widths; with ``lstm`` the last one is the LSTM's (Indigo: ``(32,)``)."""
    activation: Activation = "relu"
    """Activation of the dense layers."""
    step_ms: float = 10.0
    """Length of one step, ms, where ``interval_rtts`` is None."""
    interval_rtts: float | None = None
    """Length of one step in the sender's own round-trip times."""
    options: dict[str, str] = field(default_factory=dict)
    """Anything else its user must know, such as the observation's options."""

    def __post_init__(self) -> None:
        for name, valid in _CHOICES.items():
            value = getattr(self, name)
            if value not in valid:
                raise ConfigError(f"{name} {value!r} does not exist (valid: {', '.join(valid)})")
        least_action = 2 if self.action_kind == "discrete" else 1
        for name, least in (("observation_size", 1), ("action_size", least_action)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} is {value!r}: expected an integer of {least} or more")
        widths = [h for h in self.hidden if isinstance(h, int) and 1 <= h <= 16384]
        if not self.hidden or len(widths) < len(self.hidden):
            raise ConfigError(
                f"hidden is {self.hidden!r}: expected widths of 1 to 16384, one or more"
            )
        for name in ("observation", "action"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected a name")
        for name in ("step_ms", "interval_rtts"):
            value = getattr(self, name)
            if value is None and name == "interval_rtts":
                continue
            if not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} is {value!r}: expected a positive number")
        if PREFERENCE in self.options:
            self._check_preference()

    def _check_preference(self) -> None:
        try:
            fits = 0.0 <= float(self.options[PREFERENCE]) <= 1.0 and len(self.delay_weights) == 2
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits:
            raise ConfigError(
                f"options {self.options!r}: expected {PREFERENCE} of 0 to 1 and {DELAY_WEIGHTS} "
                "as in '0.05 5.0'"
            )

    @property
    def delay_weights(self) -> tuple[float, ...]:
        """Prices of delay that preferences 0 and 1 stand for; empty where there is none."""
        return tuple(map(float, self.options.get(DELAY_WEIGHTS, "").split()))

    @property
    def dense(self) -> tuple[int, ...]:
        """Widths of the dense layers."""
        return self.hidden if self.kind == "mlp" else self.hidden[:-1]

    @property
    def state_size(self) -> int:
        """Width of the recurrent state; 0 where there is none."""
        return 0 if self.kind == "mlp" else self.hidden[-1]

    @property
    def preference(self) -> float | None:
        """What a user who says nothing prefers, from 0 (throughput) to 1 (delay).

        None where the policy has no preference for its last input.
        """
        said = self.options.get(PREFERENCE)
        return None if said is None else float(said)

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON-ready values."""
        values = asdict(self)
        values["hidden"] = list(self.hidden)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PolicySpec:
        """Build a spec from :meth:`to_dict`'s values.

        Raises:
            ConfigError: If a key is unknown or missing, or a value does not fit.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"policy spec has unknown keys {', '.join(unknown)}")
        try:
            return cls(**{**values, "hidden": tuple(values.get("hidden", (64, 64)))})
        except TypeError as error:
            raise ConfigError(f"policy spec does not fit: {error}") from error


def expected_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every array a policy of this spec consists of."""
    shapes: dict[str, tuple[int, ...]] = {}
    width = spec.observation_size
    for index, size in enumerate(spec.dense):
        shapes[f"trunk.{index}.weight"] = (size, width)
        shapes[f"trunk.{index}.bias"] = (size,)
        width = size
    if spec.state_size:
        size = spec.state_size
        shapes["lstm.weight_ih"] = (4 * size, width)
        shapes["lstm.weight_hh"] = (4 * size, size)
        shapes["lstm.bias_ih"] = shapes["lstm.bias_hh"] = (4 * size,)
        width = size
    shapes["policy_head.weight"] = (spec.action_size, width)
    shapes["policy_head.bias"] = (spec.action_size,)
    shapes["value_head.weight"] = (1, width)
    shapes["value_head.bias"] = (1,)
    if spec.action_kind == "continuous":
        shapes["log_std"] = (spec.action_size,)
    shapes["normalizer.mean"] = shapes["normalizer.std"] = (spec.observation_size,)
    return shapes
