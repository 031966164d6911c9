"""Every recipe, by its name: our own, from the demo's to the policies to take, and papers'."""

from pathlib import Path

from distrlcc.config import check_shown, from_dict, read_toml
from distrlcc.errors import unknown_name
from distrlcc.runs.run_config import RunConfig

RECIPES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
"""Files by name. Each has what differs from a run's defaults; its first line says what it is."""


def recipe(name: str) -> RunConfig:
    """Return a recipe by its name, or by a ``.toml`` file, as a run has; raises ConfigError."""
    if name not in RECIPES and not name.endswith(".toml"):
        raise unknown_name("recipe", name, RECIPES)
    found = from_dict(RunConfig, read_toml(RECIPES.get(name, name)), source=name)
    check_shown(found)
    return found
