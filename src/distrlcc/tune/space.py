"""The search space: keys, the distributions of their values (docs/tuning.md), and allowed keys."""

import json
import math
import random
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from distrlcc.config import check_values, override
from distrlcc.errors import ConfigError
from distrlcc.runs.run_config import RunConfig
from distrlcc.tune.tune_config import EXPLORERS, TuneConfig

Value = int | float | bool | str  # a drawn value; a list is written as TOML
Values = dict[str, Any]  # values by dotted key

_BOUNDS = {
    "uniform": "finite numbers with a below b, as in uniform:0:0.02",
    "loguniform": "finite numbers above 0 with a below b, as in loguniform:1e-5:1e-2",
    "int": "whole numbers with a below b, as in int:1:8",
}
FORMS = "uniform:a:b, loguniform:a:b, int:a:b or choice:x,y,…"
MUTABLE = {
    "ppo": "lr entropy_coeff clip_param gamma lambda_ vf_loss_coeff vf_clip_param grad_clip "
    "kl_target minibatch_size num_epochs vtrace_rho vtrace_c",
    "dagger": "lr l2 grad_clip minibatch_size num_epochs min_gain",
}
"""Keys that may change while a member trains; each is read anew by a learner that goes on."""
_APART = {
    "changes what the score means, so trials could not be compared": "env.reward. env.suites "
    "env.suite_weights held_out.",
    "is the same for all trials": "total_steps max_seconds checkpoint_every recipe seed",
    "has no effect in a trial, which is one process": "distributed. actors. resources.",
}
"""Why keys cannot be searched; those that end in a dot are sections."""


@dataclass(frozen=True)
class Distribution:
    """Distribution of one value."""

    kind: str  # ``uniform``, ``loguniform``, ``int`` or ``choice``
    low: float = 0.0
    high: float = 0.0  # the bounds, included
    choices: tuple[Value, ...] = ()  # all values, of a choice

    @classmethod
    def parse(cls, text: str) -> "Distribution":
        """Read a distribution; raises ConfigError where it is malformed."""
        kind, _, rest = text.strip().partition(":")
        if kind == "choice":
            return cls("choice", choices=_choices(text, rest))
        if kind not in _BOUNDS:
            raise ConfigError(f"distribution {text!r}: expected {FORMS}")
        try:
            low, high = (float(int(b)) if kind == "int" else float(b) for b in rest.split(":"))
        except ValueError:
            low, high = math.nan, math.nan
        above = not (kind == "loguniform" and low <= 0.0)
        if not (low < high and math.isfinite(high - low) and above):
            raise ConfigError(f"distribution {text!r}: expected {kind}:a:b, {_BOUNDS[kind]}")
        return cls(kind, low, high)

    def ends(self) -> tuple[Value, ...]:
        """Return the values to try before believing that all are allowed."""
        return self.choices or (self.bounded(self.low), self.bounded(self.high))

    def bounded(self, value: Any) -> Any:
        """Return a value moved within the bounds, which mutation by a factor may leave."""
        if self.kind == "choice":
            return value
        inside = min(max(float(value), self.low), self.high)
        return round(inside) if self.kind == "int" else inside

    def domain(self) -> Any:
        """Return it as Ray Tune samples it."""
        from ray import tune  # noqa: PLC0415 - an optional extra

        if self.kind == "choice":
            return tune.choice(list(self.choices))
        if self.kind == "int":
            return tune.randint(int(self.low), int(self.high) + 1)
        return getattr(tune, self.kind)(self.low, self.high)

    def mutation(self) -> Any:
        """Return it as Ray's population-based training mutates it: a choice is an ordered list."""
        return list(self.choices) if self.kind == "choice" else self._draw

    def _draw(self) -> Any:
        # Ray would draw from NumPy's global generator; the scheduler seeds Python's.
        return self.domain().sample(random_state=random.getrandbits(32))


Space = Mapping[str, Distribution]  # distributions by dotted key


def space_of(config: TuneConfig) -> Space:
    """Return what a tuner tunes; raises ConfigError where that is malformed."""
    flag, example = config.flag, "ppo.lr=loguniform:1e-5:1e-2"
    if not config.space:
        raise ConfigError(f"nothing to tune: expected {flag} {example}")
    found: dict[str, Distribution] = {}
    for text in config.space:
        key, equals, distribution = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"{flag} {text!r}: expected KEY=DISTRIBUTION, as in {example}")
        if key in found:
            raise ConfigError(f"{flag} {key}: given twice; give each key one distribution")
        try:
            found[key] = Distribution.parse(distribution)
        except ConfigError as error:
            raise ConfigError(f"{flag} {key}: {error}") from None
    return found


def check_space(config: TuneConfig) -> None:
    """Check that a tuner's keys can be tuned and that its values fit; raises ConfigError."""
    space = space_of(config)
    # Trials with different values can be compared.
    for key in space if config.pbt is None else ():
        for reason, keys in _APART.items():
            if any(key == k or (k[-1] == "." and key.startswith(k)) for k in keys.split()):
                raise ConfigError(f"--search {key}: {reason}; give it with --set")
    # Every key exists and takes its distribution's values.
    for key, distribution in space.items():
        for value in distribution.ends():
            with_values(config.run, {key: value}, strict=True)
    # And may change while a member trains.
    if config.pbt is not None and "ppo.lr" in space and config.run.ppo is not None:
        why = "as a rate that adapts to it goes on from its own; or do not mutate ppo.lr"
        check_values(config.run, {"ppo.desired_kl": None}, why)
    section = "ppo" if config.run.ppo is not None else "dagger"
    allowed = [f"{section}.{name}" for name in MUTABLE[section].split()]
    for key in space:
        if config.pbt is not None and key not in allowed:
            raise ConfigError(
                f"--mutate {key}: cannot change while a member trains (can: {', '.join(allowed)}); "
                "give it with --set, or use 'distrlcc tune search'"
            )


def with_values(config: RunConfig, values: Mapping[str, Any], *, strict: bool = False) -> RunConfig:
    """Return a configuration with some values replaced; raises what `override` raises."""
    words = {k: str(v) if isinstance(v, str | bool) else repr(v) for k, v in values.items()}
    return override(config, [f"{key}={word}" for key, word in words.items()], strict=strict)


def short(value: Any) -> str:
    """Write a value in few digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def explorer(config: TuneConfig) -> Callable[[Values], Values]:
    """Return Ray's ``custom_explore_fn``: bounds the values, and asks the user's own function."""
    space, own = space_of(config), config.pbt.explore if config.pbt else ""

    def explore(values: Values) -> Values:
        bounded = {key: space[key].bounded(value) for key, value in values.items()}
        if not own:
            return bounded
        explored = EXPLORERS[own](dict(bounded))
        if not isinstance(explored, dict) or explored.keys() != bounded.keys():
            raise ConfigError(
                f"--explore {own} returned {explored!r}: expected a dictionary with the keys "
                f"{', '.join(bounded)}"
            )
        try:
            with_values(config.run, explored)
        except ConfigError as error:
            raise ConfigError(f"--explore {own}: {error}") from None
        for key, value in explored.items():
            choices = space[key].choices
            if choices and value not in choices:
                raise ConfigError(
                    f"--explore {own} returned {key}={value!r}: expected one of its choices, "
                    f"{', '.join(map(str, choices))}"
                )
        return explored

    return explore


def _choices(text: str, rest: str) -> tuple[Value, ...]:
    """Read the values of a choice: TOML where they are TOML, words otherwise."""
    try:
        values = tomllib.loads(f"values = [{rest}]")["values"]
    except (ValueError, RecursionError):
        values = [word.strip() for word in rest.split(",")]
    plain = tuple(json.dumps(v) if isinstance(v, list) else v for v in values)
    known = all(isinstance(v, int | float | str) and v != "" for v in plain)
    if not known or len(plain) < 2 or len(set(plain)) < len(plain):
        expected = "two or more different numbers, words or lists"
        raise ConfigError(f"distribution {text!r}: expected choice:x,y,… of {expected}")
    return plain
