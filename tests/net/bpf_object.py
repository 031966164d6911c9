"""A minimal loader of the kernel's program: ctypes on libbpf."""

from __future__ import annotations

import ctypes
import mmap
import os
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from pathlib import Path

import pytest

import distrlcc.net
from distrlcc.policy import kernel_layout as layout

OBJECT = Path(distrlcc.net.__file__).parent / "kernel" / layout.OBJECT


class _Options(ctypes.Structure):
    _fields_ = (
        ("sz", c_size_t),
        ("data", c_void_p * 2),
        ("sizes", c_uint32 * 2),
        ("contexts", c_void_p * 2),
        ("context_sizes", c_uint32 * 2),
        ("retval", c_uint32),
        ("repeat", c_int),
        ("duration", c_uint32),
        ("rest", c_uint32 * 3),
    )


class Trial:
    """The test program alone, loaded; skips the test where that is not possible."""

    def __init__(self) -> None:
        if os.geteuid() != 0 or not Path("/sys/kernel/btf/vmlinux").exists():
            pytest.skip("needs root and a kernel with BTF")
        try:
            self._library = ctypes.CDLL("libbpf.so.1", use_errno=True)
        except OSError:
            pytest.skip("needs libbpf 1.0 or newer")
        self._object = self._call("bpf_object__open_file", c_void_p, str(OBJECT).encode(), None)
        self._program = self._find("program", layout.TRIAL_PROGRAM)
        program = None
        while program := self._call(
            "bpf_object__next_program", c_void_p, c_void_p(self._object), c_void_p(program)
        ):
            wanted = program == self._program
            self._call("bpf_program__set_autoload", c_int, c_void_p(program), c_bool(wanted))
        operations = c_void_p(self._find("map", layout.OPERATIONS))
        self._call("bpf_map__set_autocreate", c_int, operations, c_bool(False))
        error = self._call("bpf_object__load", c_int, c_void_p(self._object))
        assert error == 0, os.strerror(-error)

    def _call(self, name: str, result: type, *arguments: object) -> int:
        function = getattr(self._library, name)
        function.restype = result
        return function(*arguments)

    def _find(self, kind: str, name: str) -> int:
        call = f"bpf_object__find_{kind}_by_name"
        found = self._call(call, c_void_p, c_void_p(self._object), c_char_p(name.encode()))
        assert found, f"no {kind} {name}"
        return found

    def data(self, name: str) -> mmap.mmap:
        """Return a data section's memory."""
        found = c_void_p(self._find("map", name))
        pages = -(-self.size(name) // mmap.PAGESIZE) * mmap.PAGESIZE
        return mmap.mmap(self._call("bpf_map__fd", c_int, found), pages)

    def size(self, name: str) -> int:
        """Return a data section's size, bytes."""
        return self._call("bpf_map__value_size", c_uint32, c_void_p(self._find("map", name)))

    def run(self, repeat: int = 1) -> int:
        """Run the test program; return ns for each run."""
        packet = ctypes.create_string_buffer(64)
        options = _Options(ctypes.sizeof(_Options), repeat=repeat)
        options.data[0], options.sizes[0] = ctypes.addressof(packet), 64
        program = self._call("bpf_program__fd", c_int, c_void_p(self._program))
        error = self._call("bpf_prog_test_run_opts", c_int, program, ctypes.byref(options))
        assert error == 0, os.strerror(-error)
        return int(options.duration)

    def close(self) -> None:
        self._call("bpf_object__close", None, c_void_p(self._object))
