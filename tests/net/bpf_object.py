"""The kernel's test program: its data sections and its runs."""

from __future__ import annotations

import pytest

from distrlcc.net import bpf, kernel_tcp
from distrlcc.policy import kernel_layout as layout


class Trial:
    """The test program alone, loaded; skips the test where that is not possible."""

    def __init__(self) -> None:
        for problem in kernel_tcp.problems():
            pytest.skip(problem)
        self._object = bpf.BpfObject(kernel_tcp.PROGRAM.read_bytes())
        self._object.load_only(layout.TRIAL_PROGRAM, without=layout.OPERATIONS)

    def data(self, name: str) -> memoryview:
        """Return a data section's memory."""
        return memoryview(bpf.map_array(self._object.map_fd(name)))

    def size(self, name: str) -> int:
        """Return a data section's length."""
        return len(self.data(name))

    def run(self, repeat: int = 1) -> int:
        """Run the test program; return ns for each run."""
        return int(self._object.test_run(layout.TRIAL_PROGRAM, repeat=repeat))

    def close(self) -> None:
        self._object.close()
