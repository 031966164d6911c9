"""What a hyperparameter is drawn from: ``uniform``, ``loguniform``, ``int`` or ``choice``.

::

    loguniform:1e-5:1e-2      between two bounds above 0, evenly in the logarithm
    uniform:0:0.02            between two bounds
    int:1:8                   a whole number, both bounds included
    choice:relu,tanh          one of several; in mutation a neighbour in this order
    choice:[64,64],[128]      lists, too
"""

from __future__ import annotations

import json
import math
import random
import tomllib
from dataclasses import dataclass
from typing import Any, Literal

from distrlcc.errors import ConfigError

Kind = Literal["uniform", "loguniform", "int", "choice"]
Value = int | float | bool | str
"""A drawn value; a list is written as TOML."""

_EXAMPLES: dict[Kind, str] = {"uniform": "0:0.02", "loguniform": "1e-5:1e-2", "int": "1:8"}
_FORMS = "uniform:a:b, loguniform:a:b, int:a:b or choice:x,y,…"


@dataclass(frozen=True)
class Distribution:
    """A distribution of one hyperparameter."""

    kind: Kind
    low: float = 0.0
    """Least value; an int's bounds are whole."""
    high: float = 0.0
    """Greatest value."""
    choices: tuple[Value, ...] = ()
    """All values, of a choice."""

    @classmethod
    def parse(cls, text: str) -> Distribution:
        """Read a distribution.

        Raises:
            ConfigError: It is malformed, or its bounds are not in order.
        """
        kind, _, rest = text.strip().partition(":")
        if kind == "choice":
            return cls("choice", choices=_choices(text, rest))
        if kind not in _EXAMPLES:
            raise ConfigError(f"distribution {text!r}: expected {_FORMS}")
        return cls._between(next(known for known in _EXAMPLES if known == kind), text, rest)

    @classmethod
    def _between(cls, kind: Kind, text: str, rest: str) -> Distribution:
        bounds, example = rest.split(":"), _EXAMPLES[kind]
        expected = f"distribution {text!r}: expected {kind}:a:b with "
        if len(bounds) != 2:
            raise ConfigError(f"{expected}two bounds, as in {kind}:{example}")
        try:
            low, high = (float(int(b)) if kind == "int" else float(b) for b in bounds)
        except ValueError:
            raise ConfigError(
                f"{expected}{'whole ' if kind == 'int' else ''}numbers, as in {kind}:{example}"
            ) from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"{expected}a below b, both finite")
        if kind == "loguniform" and low <= 0.0:
            raise ConfigError(f"{expected}bounds above 0, as in {kind}:{example}")
        return cls(kind, low, high)

    @property
    def is_log(self) -> bool:
        """Whether an axis of its values is logarithmic."""
        return self.kind == "loguniform"

    def ends(self) -> tuple[Value, ...]:
        """Return the values to try before believing that all are allowed."""
        if self.kind == "choice":
            return self.choices
        if self.kind == "int":
            return int(self.low), int(self.high)
        return self.low, self.high

    def bounded(self, value: Any) -> Any:
        """Return a value moved within the bounds; mutation by a factor may leave them."""
        if self.kind == "choice":
            return value
        inside = min(max(float(value), self.low), self.high)
        return round(inside) if self.kind == "int" else inside

    def domain(self) -> Any:
        """Return it as Ray Tune samples it.

        Raises:
            ImportError: Ray is not installed.
        """
        from ray import tune  # noqa: PLC0415 - an optional extra

        if self.kind == "choice":
            return tune.choice(list(self.choices))
        if self.kind == "int":
            return tune.randint(int(self.low), int(self.high) + 1)
        return (tune.loguniform if self.is_log else tune.uniform)(self.low, self.high)

    def mutation(self) -> Any:
        """Return it as Ray's population-based training mutates it: a choice is an ordered list.

        Others are functions without arguments, since Ray samples its own domains from NumPy's
        global generator.
        """
        return list(self.choices) if self.kind == "choice" else self.draw

    def draw(self) -> Value:
        """Draw a value from Python's global generator, which the scheduler seeds."""
        if self.kind == "choice":
            return random.choice(self.choices)
        if self.kind == "int":
            return random.randint(int(self.low), int(self.high))
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            return self.bounded(math.exp(random.uniform(low, high)))  # type: ignore[no-any-return]
        return random.uniform(self.low, self.high)


def _choices(text: str, rest: str) -> tuple[Value, ...]:
    """Read the values of a choice: TOML where they are TOML, words otherwise."""
    try:
        values = tomllib.loads(f"values = [{rest}]")["values"]
    except tomllib.TOMLDecodeError:
        values = [word.strip() for word in rest.split(",")]
    plain = tuple(json.dumps(v) if isinstance(v, list) else v for v in values)
    if not all(isinstance(v, int | float | str) and v != "" for v in plain):
        raise ConfigError(
            f"distribution {text!r}: expected choice:x,y,… of numbers, words or lists"
        )
    if len(set(plain)) < 2 or len(set(plain)) < len(plain):
        raise ConfigError(f"distribution {text!r}: expected two or more different values")
    return plain
