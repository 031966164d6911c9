"""Names, sizes and C structs that the kernel's program and its users share, as NumPy types.

Each type mirrors the struct of the same name in ``net/kernel/layout.h``. A change of `POLICY`, or
of what a field of it means, must change its size, which tells programs apart that were loaded
before. The program's object ``net/kernel/distrlcc.bpf.o`` has these data sections, which can be
mapped:

* `POLICIES`: two `POLICY` slots. A user writes the one that is not in use, then the generation.
* `CONTROL`: a `CONTROL_TYPE`. Slot ``generation & 1`` is in use; 0: none, sockets use CUBIC.
* `STATS`: a `STATS_TYPE`, which the program counts.
* `PLACES`: `MAX_PLACES` of `PLACE`, for connections whose policy has ``follows`` set.
* `TRIAL`: a `TRIAL_TYPE`, the input and output of the test program.
* `FORM`: a uint32 to be set before loading: 1 where the kernel's ``cong_control`` takes
  ``(sk, rs)``, as before 6.10; 0 for ``(sk, ack, flag, rs)``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

OBJECT = "distrlcc.bpf.o"  # the compiled program's file
OPERATIONS = "distrlcc"  # the struct_ops map
TRIAL_PROGRAM = "trial"  # for BPF_PROG_TEST_RUN, of type tc; it loads only where it is asked for
POLICIES, CONTROL, STATS = ".data.policies", ".data.control", ".data.stats"
OUTSIDE = 2  # what a guard's ``on`` is while CUBIC's rule has the window alone
PLACES, TRIAL, FORM = ".data.places", ".data.trial", ".rodata.form"

ONE = 1 << 24  # 1.0 in the program's fixed point; rates (packets/s) have 16 bits after the point
RATE_ONE = 1 << 16
WEIGHT_SHIFT = 20  # bits after a weight's point, which leave room for large sums; 2^31 stands for 0
MAX_INPUTS, MAX_ACTIONS, MAX_DENSE, MAX_STATE = 64, 16, 4, 128
MAX_LAYERS = MAX_DENSE + 2
MAX_COLUMNS, MAX_ROWS, MAX_WEIGHTS, MAX_BIASES = 256, 256, 1 << 16, 1024
MAX_PLACES = 1024
LINEAR, RELU, TANH = 0, 1, 2
SPACES = {
    "scale-free": 14,
    "scale-free-recent": 23,
    "scale-free-spread": 28,
    "scale-free-noise": 33,
    "indigo": 4,
    "indigo-min-rtt": 5,
    "aurora": 30,
    "genet": 30,
}
"""Observation spaces that the program computes, in its order, and their sizes."""


def fixed(value: object, one: int = ONE) -> NDArray[np.int64]:
    """Return numbers in fixed point, rounded."""
    return np.round(np.asarray(value, np.float64) * one).astype(np.int64)


def _struct(*fields: tuple[Any, ...]) -> np.dtype[np.void]:
    """Return a C struct; each argument is a type, its fields' names and, of arrays, their size."""
    members = [(name, kind, *size) for kind, names, *size in fields for name in names.split()]
    return np.dtype(members, align=True)


LAYER = _struct(("<u4", "rows columns weights bias activation"))
POLICY = _struct(
    ("<u4", "observation observed actions has_preference dense state state_input"),
    ("<u4", "sample step_us interval_q16 catch_up gain_q8 guard_rounds floor"),
    ("<u4", "crowd follows growth gates post_hidden noise_us"),
    ("<i8", "guard_loss preference first_window least_window greatest_window"),
    ("<i8", "first_rate least_rate greatest_rate scale deviation"),
    ("<i8", "mean inverse", MAX_INPUTS),
    ("<i8", "factor offset", MAX_ACTIONS),
    (LAYER, "layers", MAX_LAYERS),
    ("<i8", "biases", MAX_BIASES),
    ("<u4", "weights", MAX_WEIGHTS + MAX_COLUMNS),
    ("<u8", "none", 6),
)
CONTROL_TYPE = _struct(
    ("<u4", "generation operations policies stats"),
    ("S16", "name"),
    ("S64", "label"),
    ("<u8", "beat"),
)
STATS_TYPE = _struct(
    ("<u8", "sockets released fallbacks acks decisions ns max_ns limited"),
    ("<u8", "lowered guard_entries guard_us busy busy_us busy_start"),
    ("<u8", "short_entries noisy_entries outside_us"),
)
INTERVAL = _struct(
    ("<u8", "duration sent acked lost rtt_sum rtt_count rtt_min rtt_last min_rtt inflight"),
    ("<u8", "delay delivery_rate send_rate rtt_max timeouts"),
)
PLACE = _struct(("<i8", "cwnd rate"), ("<u4", "step seen_step"), (INTERVAL, "seen"))
ACKED = _struct(
    ("<u8", "now acked lost inflight"),
    ("<u4", "prior_delivered delivered state limited"),
    ("<u8", "rtt_sum rtt_count rtt_least"),
)
GUARD = _struct(
    ("<u8", "packets lost least since epoch turn begun"),
    ("<i8", "greatest reno window"),
    ("<u4", "round reduced bad calm entries on"),
    ("<u8", "noise_acked noise_sum noise_count noise_least noise_begun window_begun quiet"),
    ("<u8", "lowest before", 3),
    ("<u8", "lossy_until no_room"),
    ("<u4", "noise_round noisy noisy_entries slow"),
)
CONNECTION = _struct(
    (INTERVAL, "now"),
    ("<u8", "start idle age window least least_before"),
    ("<u8", "recent_window recent_least recent_least_before"),
    ("<u8", "calm_window calm_least calm_least_before"),
    ("<i8", "delay slow_delay fast slow top loss quick cwnd_fast cwnd_slow rtt"),
    ("<i8", "floor quantile spread slow_spread mean wander lately cwnd rate answer"),
    ("<u4", "generation action delivered sent lost state limited step heard srtt"),
    (GUARD, "guard"),
    ("<i8", "observation", MAX_INPUTS),
    ("<i8", "hidden cell", MAX_STATE),
    ("<i8", "buffer", 2 * MAX_ROWS + MAX_COLUMNS),
)
TRIAL_TYPE = _struct(
    ("<u4", "mode unused"), ("<i8", "draw"), (ACKED, "ack"), (CONNECTION, "connection")
)
