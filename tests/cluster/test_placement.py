"""What each process asks of a cluster; whether there is room is shown with a real one."""

from __future__ import annotations

import pytest

from distrlcc.cluster.placement import share_of_cores
from distrlcc.errors import ConfigError
from distrlcc.runs.run_config import ResourcesConfig


def test_cores_are_one_each_or_an_equal_share() -> None:
    assert share_of_cores([16.0], 0.0, 8) == 1.0
    assert share_of_cores([2.0], 0.0, 8) == 0.25
    assert share_of_cores([2.0], 1.0, 3) == 0.333
    assert share_of_cores([1.0, 1.0], 0.0, 3) == 0.426  # two thirds would leave room for two
    assert share_of_cores([], 0.0, 3) == 0.01  # refused later, with what is free
    assert share_of_cores([4.0], 4.0, 0) == 0.01  # of no matter


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": -1}, "workers is -1"),
        ({"worker_cpus": float("nan")}, "worker_cpus is nan"),
        ({"learner_gpus": 2.0}, "at most 1"),
        ({"worker_custom": ("disk",)}, "'disk': expected NAME=AMOUNT"),
        ({"worker_custom": ("disk=-1",)}, "'disk=-1': expected NAME=AMOUNT"),
    ],
)
def test_bad_resources_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ResourcesConfig(**settings)  # type: ignore[arg-type]


def test_what_a_process_needs() -> None:
    resources = ResourcesConfig(worker_gpus=0.25, worker_custom=("disk=2",), learner_cpus=2.0)
    assert resources.worker(0.5) == {"CPU": 0.5, "GPU": 0.25, "disk": 2.0}
    assert resources.learner(0.5) == {"CPU": 2.0}
