"""Optuna's samplers and ASHA, as Ray Tune drives them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from distrlcc.errors import ConfigError
from distrlcc.tune.tune_config import Sampler, SearchConfig, TuneConfig, steps_per_update

_CLASSES: Mapping[Sampler, str] = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
    "qmc": "QMCSampler",
    "nsga2": "NSGAIISampler",
    "nsga3": "NSGAIIISampler",
}
_NEEDS: Mapping[Sampler, tuple[str, ...]] = {
    "cmaes": ("cmaes",),
    "gp": ("scipy",),
    "qmc": ("scipy",),
}


def check_sampler(sampler: Sampler) -> None:
    """See that a sampler can be used.

    Raises:
        ConfigError: A package is missing.
    """
    for package in ("optuna", *_NEEDS.get(sampler, ())):
        if importlib.util.find_spec(package) is None:
            what = "'distrlcc[ray]'" if package == "optuna" else package
            raise ConfigError(
                f"--sampler {sampler} needs {package}, which is not installed: pip install {what}"
            )


def build_sampler(sampler: Sampler, seed: int) -> Any:
    """Return Optuna's sampler of a name."""
    import optuna  # noqa: PLC0415 - an optional extra

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return getattr(optuna.samplers, _CLASSES[sampler])(seed=seed % 2**32)


def build_search(search: SearchConfig, seed: int) -> Any:
    """Return Ray Tune's search algorithm."""
    from ray.tune.search.optuna import OptunaSearch  # noqa: PLC0415 - an optional extra

    return OptunaSearch(sampler=build_sampler(search.sampler, seed))


def build_asha(config: TuneConfig) -> Any:
    """Return Ray Tune's scheduler: ASHA by environment steps, or None where all run to the end.

    Steps, since updates of trials with different rollouts are not alike.
    """
    search = config.search
    if search is None or not search.asha:
        return None
    from ray.tune.schedulers import ASHAScheduler  # noqa: PLC0415 - an optional extra

    total = config.run.total_steps
    return ASHAScheduler(
        time_attr="steps",
        max_t=total,
        grace_period=min(search.grace * steps_per_update(config.run), total),
        reduction_factor=search.reduction,
        brackets=search.brackets,
    )
