"""What happens to values after Ray's mutation: they stay within bounds, and fit the recipe."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distrlcc.errors import ConfigError
from distrlcc.runs.run_config import RunConfig
from distrlcc.tune.space import Space, with_values

Values = dict[str, Any]


@dataclass(frozen=True)
class Explore:
    """Ray's ``custom_explore_fn``: bounds first, then the user's own function."""

    space: Space
    config: RunConfig
    own: str = ""
    """``package.module:function``; takes and returns a dictionary of values by key."""

    def __call__(self, values: Values) -> Values:
        """Return the values to train with.

        Raises:
            ConfigError: The user's function returns none, or such as do not fit.
        """
        bounded = {k: self.space.distributions[k].bounded(v) for k, v in values.items()}
        if not self.own:
            return bounded
        explored = load_function(self.own)(dict(bounded))
        if not isinstance(explored, dict) or explored.keys() != bounded.keys():
            raise ConfigError(
                f"--explore {self.own} returned {explored!r}: expected a dictionary with the keys "
                f"{', '.join(bounded)}"
            )
        try:
            with_values(self.config, explored)
        except ConfigError as error:
            raise ConfigError(f"--explore {self.own}: {error}") from None
        return explored


def load_function(path: str) -> Callable[[Values], Values]:
    """Import a function by its path; modules in the working directory are found, too.

    Raises:
        ConfigError: There is no such function.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"--explore {path!r}: expected package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"--explore {path}: cannot import {module_name} ({error})") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"--explore {path}: {module_name} has no function {name!r}")
    found: Callable[[Values], Values] = function
    return found
