"""What a cluster has room for."""

from __future__ import annotations

import pytest

from distrlcc.cluster.ray_placement import Machine, fits
from distrlcc.errors import ConfigError
from distrlcc.runs.run_config import ResourcesConfig, share_of_cores

TWO = [Machine("10.0.0.1", {"CPU": 4.0, "GPU": 1.0}), Machine("10.0.0.2", {"CPU": 2.0})]
HERE = [Machine("10.0.0.1", {"CPU": 2.0}), Machine("10.0.0.1", {"CPU": 1.0})]


@pytest.mark.parametrize(
    ("bundles", "strategy", "fit"),
    [
        ([{"CPU": 4.0}, {"CPU": 2.0}], "PACK", True),
        ([{"CPU": 2.0}, {"CPU": 4.0}], "SPREAD", True),
        ([{"CPU": 4.0}, {"CPU": 2.1}], "PACK", False),
        ([{"CPU": 3.0}, {"CPU": 3.0}], "PACK", False),
        ([{"CPU": 2.0}, {"CPU": 2.0}], "STRICT_PACK", True),
        ([{"CPU": 3.0}, {"CPU": 2.0}], "STRICT_PACK", False),
        ([{"CPU": 1.0}, {"CPU": 1.0}], "STRICT_SPREAD", True),
        ([{"CPU": 1.0}] * 3, "STRICT_SPREAD", False),
        ([{"CPU": 1.0, "GPU": 0.5}] * 2, "PACK", True),
        ([{"CPU": 1.0, "GPU": 0.5}] * 3, "PACK", False),
        ([{"GPU": 1.0}, {"CPU": 4.0}, {"CPU": 2.0}], "PACK", True),
        ([{"fast_disk": 1.0}], "PACK", False),
        ([{"CPU": 0.1}] * 60, "PACK", True),
        ([{"CPU": 0.1}] * 61, "PACK", False),
    ],
)
def test_what_fits(bundles: list[dict[str, float]], strategy: str, fit: bool) -> None:
    before = [dict(machine.free) for machine in TWO]
    assert fits(bundles, strategy, TWO) == fit
    assert [dict(machine.free) for machine in TWO] == before


def test_cores_are_one_each_or_an_equal_share() -> None:
    assert share_of_cores(16.0, 0.0, 8) == 1.0
    assert share_of_cores(2.0, 0.0, 8) == 0.25
    assert share_of_cores(2.0, 1.0, 3) == 0.333
    assert share_of_cores(0.0, 0.0, 3) == 0.01  # refused later, with what is free
    assert share_of_cores(4.0, 4.0, 0) == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": -1}, "workers is -1"),
        ({"worker_cpus": float("nan")}, "worker_cpus is nan"),
        ({"learner_gpus": 2.0}, "at most 1"),
        ({"worker_custom": ("disk",)}, "'disk': expected name=amount"),
        ({"worker_custom": ("disk=-1",)}, "'disk=-1': expected name=amount"),
    ],
)
def test_bad_resources_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ResourcesConfig(**settings)  # type: ignore[arg-type]


def test_what_a_process_needs() -> None:
    resources = ResourcesConfig(worker_gpus=0.25, worker_custom=("disk=2",), learner_cpus=2.0)
    assert resources.worker(0.5) == {"CPU": 0.5, "GPU": 0.25, "disk": 2.0}
    assert resources.learner(0.5) == {"CPU": 2.0}


def test_machines_of_one_address_are_two() -> None:
    assert fits([{"CPU": 1.0}] * 3, "PACK", HERE)
    assert not fits([{"CPU": 1.0}] * 4, "PACK", HERE)
    assert not fits([{"CPU": 0.0}], "STRICT_SPREAD", [])
