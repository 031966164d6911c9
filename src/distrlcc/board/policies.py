"""The gallery: what ships and what was trained here, with its size, its scores and its limits."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from distrlcc.config import read_toml
from distrlcc.env.actions import ACTIONS
from distrlcc.errors import DistrlccError
from distrlcc.policy.policy_file import PolicyFile, load_policy, shipped_policies
from distrlcc.policy.quantise import quantise
from distrlcc.recipes.result_row import shipped_rows


def gallery(trained: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return a card for each shipped policy, and for each of some runs'."""
    rows, found = shipped_rows(), []
    for name, path in shipped_policies().items():
        card = _card(path) | {"name": name, "sender": name}
        card["power"] = rows[name].powers() if name in rows else {}
        card |= {"about": told()["policies"].get(name, "")}
        found.append(card | {"not_for": told()["not_for"].get(name, "")})
    for key, path in trained.items():
        card = {"name": key, "sender": f"run:{key}", "power": {}, "about": "trained here"}
        found.append({**_card(path), **card, "not_for": ""})
    return found


@cache
def told() -> dict[str, dict[str, str]]:
    """Return what is said of named things in a file of its own, by kind and name."""
    found, rows = read_toml(Path(__file__).parents[1] / "cli" / "about.toml"), shipped_rows()
    return found | {"not_for": {k: rows[k].filled(v) for k, v in found["not_for"].items()}}


def _card(path: Path) -> dict[str, Any]:
    try:
        policy = load_policy(path)
    except DistrlccError as error:
        return {"error": str(error)}
    spec = policy.spec
    parameters = int(sum(np.size(array) for array in policy.arrays.values()))
    size = {"bytes": path.stat().st_size, "parameters": parameters, "network": spec.network_text}
    spaces = {n: getattr(spec, n) for n in ("observation", "action", "step_ms", "preference")}
    runs_in = ["simulator", "UDP", *_elsewhere(policy)]
    return {**size, **spaces, "acting": policy.acting, "runs_in": runs_in}


def _elsewhere(policy: PolicyFile) -> list[str]:
    """Return where else it runs: in the kernel where it can be quantised, as ONNX if it is ours."""
    found = []
    with suppress(DistrlccError, KeyError):
        quantise(policy, ACTIONS[policy.spec.action], preference=policy.spec.preference)
        found.append("kernel")
    return found + ["ONNX"] * (policy.spec.network is None)
