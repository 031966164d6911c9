"""The gallery: what ships and what was trained here, with its size, its scores and its limits."""

from collections.abc import Mapping
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
    told = read_toml(Path(__file__).parents[1] / "cli" / "about.toml")
    rows, found = shipped_rows(), []
    for name, path in shipped_policies().items():
        power = rows[name].powers() if name in rows else {}
        card = _card(path) | {"name": name, "sender": name, "power": power}
        limits = told["not_for"].get(name, "")
        not_for = rows[name].filled(limits) if limits else ""
        found.append(card | {"about": told["policies"].get(name, ""), "not_for": not_for})
    for key, path in trained.items():
        card = {"name": key, "sender": f"run:{key}", "power": {}, "about": "trained here"}
        found.append({**_card(path), **card, "not_for": ""})
    return found


def _card(path: Path) -> dict[str, Any]:
    try:
        policy = load_policy(path)
    except DistrlccError as error:
        return {"error": str(error)}
    spec = policy.spec
    parameters = int(sum(np.size(array) for array in policy.arrays.values()))
    size = {"bytes": path.stat().st_size, "parameters": parameters, "network": spec.network_text}
    told = {n: getattr(spec, n) for n in ("observation", "action", "step_ms", "preference")}
    return {**size, **told, "runs_in": ["simulator", "UDP", *_elsewhere(policy)]}


def _elsewhere(policy: PolicyFile) -> list[str]:
    """Return where else it runs: in the kernel where it can be quantised, as ONNX if it is ours."""
    found = []
    try:
        quantise(policy, ACTIONS[policy.spec.action], preference=policy.spec.preference)
        found.append("kernel")
    except (DistrlccError, KeyError):
        pass
    return found + ["ONNX"] * (policy.spec.network is None)
