"""The kernel's program on inputs of ours, by BPF_PROG_TEST_RUN; no socket has it."""

import numpy as np
from numpy.typing import NDArray

from distrlcc.net.kernel import bpf
from distrlcc.net.kernel.tcp import PROGRAM, Record, refusals, require_kernel
from distrlcc.policy import kernel_layout as layout
from distrlcc.policy.kernel_layout import fixed
from distrlcc.types import PACKET_BYTES, IntervalStats

STEP, BEGIN, GUARD = 0, 1, 2  # observe and act, act on nothing seen, or take an ACK's guard
_REPEATS = 2000


def intervals(stats: IntervalStats) -> Record:
    """Return statistics ``[N]`` as `INTERVAL`: whole microseconds and packets."""
    to = np.zeros(len(stats.duration), layout.INTERVAL)
    for name in ("duration", "rtt_sum", "rtt_min", "rtt_max", "rtt_last", "min_rtt"):
        to[name] = fixed(getattr(stats, name), 10**6)
    for name in ("sent", "acked", "lost", "inflight"):
        to[name] = getattr(stats, name)
    to["rtt_count"] = stats.acked
    to["delay"] = fixed(stats.delay_ewma, 1000 << 16)
    megabits = PACKET_BYTES * 8 / 1e6
    to["delivery_rate"] = fixed(stats.delivery_rate_ewma / megabits, 1 << 16)
    to["send_rate"] = fixed(stats.send_rate_ewma / megabits, 1 << 16)
    return to


class Trial:
    """The program in this kernel, with memory that this process shares."""

    def __init__(self, policy: Record) -> None:
        require_kernel()
        self._object = bpf.BpfObject(PROGRAM.read_bytes())
        try:
            with refusals("the kernel refuses the program"):
                self._object.load_only(layout.TRIAL_PROGRAM, without=layout.OPERATIONS)
        except BaseException:
            self._object.close()
            raise
        self.policies = self.section(layout.POLICIES).view(layout.POLICY)
        """Two slots, the first of which is in use."""
        self.policies[0] = policy
        self.stats = self.section(layout.STATS).view(layout.STATS_TYPE)[0]
        memory = self.section(layout.TRIAL).view(layout.TRIAL_TYPE)
        self.memory = memory[0]  # of `TRIAL_TYPE`: what a run takes and leaves
        self._connection = memory["connection"].view(np.uint8)

    def section(self, name: str) -> bpf.Bytes:
        """Return a data section's memory."""
        return bpf.map_array(self._object.map_fd(name))

    def run(self, repeat: int = 1) -> float:
        """Run the program on `memory`; return the mean time of a run, ns."""
        return self._object.test_run(layout.TRIAL_PROGRAM, repeat=repeat)

    def begun(self, count: int = 1) -> Record:
        """Return connections ``[count]`` of `CONNECTION` that begin under the policy."""
        fresh = np.zeros(count, layout.CONNECTION)
        fresh["cwnd"], fresh["rate"] = (self.policies[0][f"first_{n}"] for n in ("window", "rate"))
        fresh["action"] = layout.MAX_ACTIONS
        return fresh

    def step(self, rows: Record, draws: NDArray[np.int64], begin: NDArray[np.bool_]) -> None:
        """Let connections ``[N]`` of `CONNECTION` observe ``now`` and act, one after the other.

        ``draws`` ``[N]`` have 32 bits, or are standard normals in fixed point if actions are rates.
        Those that ``begin`` act without a past.
        """
        rows[begin] = self.begun()
        plain = rows.view(np.uint8).reshape(len(rows), -1)
        for row, draw, first in zip(plain, draws, begin, strict=True):
            self.memory["mode"], self.memory["draw"] = BEGIN if first else STEP, draw
            self._connection[:] = row
            self.run()
            row[:] = self._connection

    def time_decision(self) -> float:
        """Return how long a step's observation and decision take, hot, ns."""
        self.memory["mode"], self.memory["connection"] = STEP, self.begun()[0]
        return self.run(_REPEATS)

    def close(self) -> None:
        """Let the program end."""
        self._object.close()
