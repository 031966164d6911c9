"""Recipes by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from distrlcc.config import from_toml
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.recipes.ours import best, fair, imitation, preference, quickstart
from distrlcc.recipes.papers import aurora, distrlcc, distrlcc_newest, gail, genet, indigo
from distrlcc.runs.run_config import RunConfig

_PAPERS = (indigo, distrlcc, distrlcc_newest, gail, aurora, genet)
RECIPES: dict[str, Callable[[], RunConfig]] = {
    config.__name__.replace("_", "-"): config
    for config in (quickstart, imitation, *_PAPERS, preference, fair, best)
}


def recipe(name: str) -> RunConfig:
    """Return a recipe's configuration.

    Args:
        name: A recipe's, or a file of one that ends in ``.toml``, such as a run's ``config.toml``.

    Raises:
        ConfigError: There is no such recipe, or the file cannot be read.
    """
    if name in RECIPES:
        return RECIPES[name]()
    if not name.endswith(".toml"):
        raise unknown_name("recipe", name, RECIPES)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"recipe {name} cannot be read: {reason}") from None
    return from_toml(RunConfig, text, source=name)
