"""A user's scheme, compiled to one C function that is called through its address.

The address stands in for the scheme's number. So `distrlcc.control.schemes` and the simulator's
kernel, which are compiled and cached on the disk, learn of it only when they run.
"""

import math
import re
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from distrlcc.control.compiled import njit_inner

INITIALISE, ON_ACK, ON_TIMEOUT = 0, 1, 2
_COUNTS = 9  # now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, marked
_KEPT: list[Any] = []  # compiled functions: their code must stay where it is


def compiled(scheme: Any, size: int, window: int) -> int:
    """Compile a `Scheme` over rows of a size; return where. ``window`` is NaN once it raised."""
    initialise, on_ack, on_timeout = (
        each if hasattr(each, "py_func") else njit_inner(each) for each in scheme
    )

    def handle(
        event: int,
        row: Any,
        now: int,
        rtt: int,
        seq: int,
        sent: int,
        lost: int,
        inflight: int,
        delivered: int,
        prior_delivered: int,
        marked: int,
        rate: float,
    ) -> None:
        s = numba.carray(row, (size,))  # type: ignore[attr-defined]
        try:
            if event == INITIALISE:
                initialise(s, now, seq)  # the seed
            elif event == ON_ACK:
                prior = prior_delivered
                on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior, rate, marked)
            else:
                on_timeout(s, sent)
        except Exception:  # there is nobody to hear of it
            s[window] = math.nan

    row: Any = types.CPointer(types.float64)  # type: ignore[no-untyped-call]
    signature = types.void(types.int64, row, *[types.int64] * _COUNTS, types.float64)
    try:
        _KEPT.append(numba.cfunc(signature, error_model="numpy")(handle))
    except numba.core.errors.NumbaError as error:
        # The cause, on one line, without colours and without where numba was meanwhile.
        cause = re.sub(r"\x1b\[\d+m", "", str(error)).split("frontend)")[-1].split("During:")[0]
        raise TypeError(f"numba: {' '.join(cause.split())}") from None
    return int(_KEPT[-1].address)


def _call(
    typing: Any,
    address: Any,
    event: Any,
    row: Any,
    now: Any,
    rtt: Any,
    seq: Any,
    sent: Any,
    lost: Any,
    inflight: Any,
    delivered: Any,
    prior_delivered: Any,
    marked: Any,
    rate: Any,
) -> Any:
    """Call a user's scheme from compiled code; see `distrlcc.control.state` for the arguments."""
    counts = [types.int64] * _COUNTS
    signature = types.void(types.int64, types.int64, row, *counts, types.float64)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address, event, row, *others = values
        word, number = ir.IntType(64), ir.DoubleType()
        pointer = number.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [word, pointer, *[word] * _COUNTS, number])
        data = context.make_array(signature.args[2])(context, builder, row).data
        builder.call(builder.inttoptr(address, kind.as_pointer()), [event, data, *others])
        return context.get_dummy_value()

    return signature, generate


call: Any = intrinsic(_call)
