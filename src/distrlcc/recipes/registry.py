"""Recipes by name."""

from __future__ import annotations

from collections.abc import Callable

from distrlcc.errors import unknown_name
from distrlcc.recipes.distrlcc import distrlcc, distrlcc_newest
from distrlcc.recipes.imitation import imitation, indigo
from distrlcc.recipes.quickstart import quickstart
from distrlcc.runtime.run_config import RunConfig

RECIPES: dict[str, Callable[[], RunConfig]] = {
    "quickstart": quickstart,
    "imitation": imitation,
    "indigo": indigo,
    "distrlcc": distrlcc,
    "distrlcc-newest": distrlcc_newest,
}


def recipe(name: str) -> RunConfig:
    """Return a recipe's configuration.

    Raises:
        ConfigError: There is no such recipe.
    """
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]()
