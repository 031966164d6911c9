"""The columns of a data set's Arrow files, the same names as in collections for offline RL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distrlcc.data.manifest import Spaces

OUTCOME_SIZE = 3


def step_schema(spaces: Spaces) -> pa.Schema:
    """Return the columns of a step: what was seen, what was done, what came of it."""
    return pa.schema(
        [
            ("episode", pa.int64()),
            ("step", pa.int32()),  # from 0
            ("observation", pa.list_(pa.float32(), spaces.observation_size)),
            ("action", _action_type(spaces)),  # taken
            ("expert_action", _action_type(spaces)),  # to imitate; another one where disturbed
            ("reward", pa.float32()),
            # Wasted share of the capacity, queueing delay (base RTTs, logarithmic above 1), loss.
            ("outcome", pa.list_(pa.float32(), OUTCOME_SIZE)),
            ("terminated", pa.bool_()),  # never: links do not end
            ("truncated", pa.bool_()),  # the episode's last step: bootstrap from its final one
        ]
    )


def episode_schema(spaces: Spaces) -> pa.Schema:
    """Return the columns of an episode."""
    return pa.schema(
        [
            ("episode", pa.int64()),
            ("link", pa.string()),  # the scenario's id
            ("first_row", pa.int64()),  # in the shard's file of steps
            ("steps", pa.int32()),
            ("return", pa.float64()),
            ("utilisation", pa.float64()),
            ("queueing_delay", pa.float64()),  # base RTTs
            ("loss", pa.float64()),
            ("final_observation", pa.list_(pa.float32(), spaces.observation_size)),
        ]
    )


def to_arrow(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return an array ``[R]`` or ``[R, size]`` as a column, without a copy where its type fits."""
    if pa.types.is_fixed_size_list(kind):
        flat = pa.array(np.ascontiguousarray(values).reshape(-1), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    return pa.array(values, kind)


def to_numpy(column: pa.Array) -> NDArray[Any]:
    """Return a column of numbers as an array ``[R]`` or ``[R, size]``, without a copy."""
    if pa.types.is_fixed_size_list(column.type):
        values: NDArray[Any] = column.flatten().to_numpy().reshape(len(column), -1)
        return values
    numbers: NDArray[Any] = column.to_numpy()
    return numbers


def _action_type(spaces: Spaces) -> pa.DataType:
    if spaces.action_kind == "discrete":
        return pa.int32()
    return pa.list_(pa.float32(), spaces.action_size)
