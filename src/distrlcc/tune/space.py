"""The keys that are tuned, each with its distribution, and which keys may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distrlcc.config import override
from distrlcc.errors import ConfigError
from distrlcc.runs.run_config import RunConfig
from distrlcc.tune.distribution import Distribution
from distrlcc.tune.tune_config import TuneConfig

MUTABLE = {
    "ppo": (
        "lr", "entropy_coeff", "clip_param", "gamma", "lambda_", "vf_loss_coeff", "vf_clip_param",
        "grad_clip", "kl_target", "minibatch_size", "num_epochs", "vtrace_rho", "vtrace_c",
    ),
    "dagger": ("lr", "l2", "grad_clip", "minibatch_size", "num_epochs", "min_gain"),
}  # fmt: skip
"""Keys that may change while a member trains; each is read anew by a learner that goes on."""
_SCORE_KEYS = ("env.reward.", "env.suites", "env.suite_weights", "held_out.")
_LENGTH_KEYS = ("total_steps", "max_seconds", "checkpoint_every", "recipe", "seed")
_APART_KEYS = ("distributed.", "actors.", "resources.")


@dataclass(frozen=True)
class Space:
    """What is tuned."""

    distributions: Mapping[str, Distribution]
    """By dotted key."""

    @classmethod
    def parse(cls, texts: Sequence[str], flag: str) -> Space:
        """Read ``KEY=DISTRIBUTION`` words.

        Args:
            texts: The words.
            flag: The option that they follow, for messages.

        Raises:
            ConfigError: A word is malformed, or a key is given twice; or there is none.
        """
        if not texts:
            raise ConfigError(f"nothing to tune: expected {flag} ppo.lr=loguniform:1e-5:1e-2")
        found: dict[str, Distribution] = {}
        for text in texts:
            key, equals, distribution = text.partition("=")
            key = key.strip()
            if not equals or not key:
                raise ConfigError(
                    f"{flag} {text!r}: expected KEY=DISTRIBUTION, as in ppo.lr=loguniform:1e-5:1e-2"
                )
            if key in found:
                raise ConfigError(f"{flag} {key}: given twice; give each key one distribution")
            try:
                found[key] = Distribution.parse(distribution)
            except ConfigError as error:
                raise ConfigError(f"{flag} {key}: {error}") from None
        return cls(found)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in order."""
        return tuple(self.distributions)

    def check_fits(self, config: RunConfig) -> None:
        """Check that every key exists and takes its distribution's values.

        Raises:
            ConfigError: One does not.
        """
        for key, distribution in self.distributions.items():
            schedule = f"{key}_schedule"
            section = getattr(config, key.partition(".")[0], None)
            if getattr(section, schedule.partition(".")[2], None) is not None:
                raise ConfigError(
                    f"{key} has no effect beside {schedule}: add --set {schedule}=none"
                )
            for value in distribution.ends():
                with_values(config, {key: value})

    def check_mutable(self, config: RunConfig) -> None:
        """Check that every key may change while a member trains.

        Raises:
            ConfigError: One may not, or does not exist or fit.
        """
        section = "ppo" if config.ppo is not None else "dagger"
        allowed = [f"{section}.{name}" for name in MUTABLE[section]]
        for key in self.keys:
            if key not in allowed:
                with_values(config, {key: "none"}, check_value=False)
                raise ConfigError(
                    f"--mutate {key}: cannot change while a member trains (can: "
                    f"{', '.join(allowed)}); give it with --set, or use 'distrlcc tune search'"
                )
        self.check_fits(config)

    def check_searchable(self, config: RunConfig) -> None:
        """Check that trials with different values can be compared.

        Raises:
            ConfigError: A key changes what a score means or how long a trial is, or does not exist
                or fit.
        """
        for key in self.keys:
            for keys, reason in (
                (_SCORE_KEYS, "changes what the score means, so trials could not be compared"),
                (_LENGTH_KEYS, "is the same for all trials"),
                (_APART_KEYS, "is of no matter to a trial, which is one process"),
            ):
                if any(key == k or (k.endswith(".") and key.startswith(k)) for k in keys):
                    raise ConfigError(f"--search {key}: {reason}; give it with --set")
        self.check_fits(config)


def with_values(
    config: RunConfig, values: Mapping[str, Any], *, check_value: bool = True
) -> RunConfig:
    """Return a configuration with some values replaced.

    Args:
        config: The configuration; it is not changed.
        values: By dotted key; a list as TOML.
        check_value: False checks only that the keys exist.

    Raises:
        ConfigError: A key does not exist, or a value does not fit.
    """
    try:
        return override(config, [f"{key}={_text(value)}" for key, value in values.items()])
    except ConfigError as error:
        if not check_value and not str(error).startswith(("unknown key", "cannot set")):
            return config
        raise


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | bool) else repr(value)


def shown(values: Mapping[str, Any], keys: Iterable[str] | None = None) -> str:
    """Write values for people, as ``ppo.lr=0.00123``."""
    return " ".join(f"{key}={short(values[key])}" for key in (values if keys is None else keys))


def short(value: Any) -> str:
    """Write a value in few digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def checked_space(config: TuneConfig) -> Space:
    """Return a tuner's space.

    Raises:
        ConfigError: A word is malformed, or its key cannot be tuned.
    """
    space = Space.parse(config.space, config.flag)
    if config.pbt is not None:
        space.check_mutable(config.run)
    else:
        space.check_searchable(config.run)
    return space
