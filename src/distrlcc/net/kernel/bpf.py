"""Programs and maps of the kernel's BPF, by ctypes on the system's libbpf (1.0 or later).

Without one it takes the libbpf inside the PyPI package pylibbpf; nothing is compiled here.
"""

import ctypes
import errno
import importlib.util
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import KernelError

Bytes = NDArray[np.uint8]

_SYSTEM, _BUNDLE = "libbpf.so.1", "pylibbpf"
_OLDEST = 1  # major version of the oldest libbpf whose names and error codes are these
_REMEDY = "install it: apt-get install libbpf1 (dnf install libbpf), or pip install pylibbpf"
_STRUCT_OPS, _STRUCT_OPS_LINK = 44, 9
"""BPF_STRUCT_OPS of enum bpf_attach_type, BPF_LINK_TYPE_STRUCT_OPS (include/uapi/linux/bpf.h)."""
_F_LINK, _BTF_STRUCT = 1 << 13, 4
_INFO_BYTES, _NAME, _NAME_BYTES = 256, 24, 16
"""struct bpf_map_info and bpf_link_info: room for either, and where a map's name stands."""
_LINK_MAP = 16  # where struct bpf_link_info has the map of a struct_ops link
_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _TestRun(ctypes.Structure):
    """struct bpf_test_run_opts."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("size", "data_in", "data_out")),
        *((name, ctypes.c_uint32) for name in ("data_size_in", "data_size_out")),
        *((name, ctypes.c_size_t) for name in ("ctx_in", "ctx_out")),
        *((name, ctypes.c_uint32) for name in ("ctx_size_in", "ctx_size_out", "retval", "repeat")),
        *((name, ctypes.c_uint32) for name in ("duration", "flags", "cpu", "batch_size")),
    )


class Libbpf:
    """A libbpf: its functions, whose failures are raised as `OSError`."""

    def __init__(self, path: str) -> None:
        """Load a library; raises OSError, or KernelError if it is older than 1.0."""
        self.path = path
        self.library = ctypes.CDLL(path, use_errno=True)
        try:
            numbers = (self.library.libbpf_major_version(), self.library.libbpf_minor_version())
        except AttributeError:  # older than 0.6
            numbers = (0, 0)
        self.version = "{}.{}".format(*numbers)
        if numbers[0] < _OLDEST:
            raise KernelError(f"{path} is libbpf {self.version}, expected 1.0 or later; {_REMEDY}")
        self.messages: list[str] = []  # what libbpf and the kernel's verifier said, and would print
        self._print = _PRINT(self._keep)
        self.library.libbpf_set_print(self._print)

    def _keep(self, level: int, text: int, arguments: int) -> int:
        """Take a message of libbpf: a format of C and its arguments."""
        buffer = ctypes.create_string_buffer(1 << 16)
        format_, values = ctypes.c_void_p(text), ctypes.c_void_p(arguments)
        ctypes.CDLL(None).vsnprintf(buffer, ctypes.c_size_t(len(buffer)), format_, values)
        self.messages += buffer.value.decode(errors="replace").splitlines()
        del self.messages[:-200]
        return 0

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function that returns a number, which is a negative errno where it failed."""
        result = int(getattr(self.library, name)(*arguments))
        if result < 0:
            raise OSError(-result, os.strerror(-result), name)
        return result

    def pointer(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function that returns a pointer, which is null where it failed."""
        function = getattr(self.library, name)
        function.restype = ctypes.c_void_p
        result = function(*arguments)
        if not result:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)
        return ctypes.c_void_p(result)


@cache
def libbpf() -> Libbpf:
    """Return this machine's libbpf, the system's or else pylibbpf's; raises KernelError."""
    refused = None
    for path in (_SYSTEM, *bundled()):
        try:
            return Libbpf(path)
        except KernelError as error:
            refused = error
        except OSError:
            continue
    raise refused or KernelError(f"there is no libbpf ({_SYSTEM}); {_REMEDY}")


def bundled() -> list[str]:
    """Return where pylibbpf has a libbpf: its extension exports it whole."""
    with suppress(ValueError):
        found = importlib.util.find_spec(_BUNDLE)
        folders = found.submodule_search_locations if found else None
        return [str(path) for folder in folders or () for path in Path(folder).glob("*.so")]
    return []


class BpfObject:
    """A compiled BPF object: opened, then loaded into the kernel; its maps end with it."""

    def __init__(self, elf: bytes) -> None:
        """Open an ELF file's bytes."""
        self._libbpf = libbpf()
        self._elf = elf  # libbpf reads it until it is loaded
        size = ctypes.c_size_t(len(elf))
        self._object: ctypes.c_void_p | None = self._libbpf.pointer(
            "bpf_object__open_mem", elf, size, None
        )

    def _find(self, kind: str, name: str) -> ctypes.c_void_p:
        return self._libbpf.pointer(f"bpf_object__find_{kind}_by_name", self._object, name.encode())

    def load_only(self, program: str, *, without: str) -> None:
        """Load one program, which may stay out by default, and all maps except one."""
        chosen, each = self._find("program", program).value, None
        with suppress(FileNotFoundError):  # the end of the list
            while True:
                each = self._libbpf.pointer("bpf_object__next_program", self._object, each)
                load = ctypes.c_bool(each.value == chosen)
                self._libbpf.call("bpf_program__set_autoload", each, load)
        self._libbpf.call(
            "bpf_map__set_autocreate", self._find("map", without), ctypes.c_bool(False)
        )
        self.load()

    def fill(self, name: str, data: bytes) -> None:
        """Give a data section another content before it is loaded; constants are known then."""
        size = ctypes.c_size_t(len(data))
        self._libbpf.call("bpf_map__set_initial_value", self._find("map", name), data, size)

    def load(self, linked: str = "") -> None:
        """Make the maps and load the programs; of an OSError `Libbpf.messages` has the reason."""
        if linked:
            ops = self._find("map", linked)
            flags = self._libbpf.call("bpf_map__map_flags", ops) | _F_LINK
            self._libbpf.call("bpf_map__set_map_flags", ops, ctypes.c_uint32(flags))
        self._libbpf.messages.clear()
        self._libbpf.call("bpf_object__load", self._object)

    def map_fd(self, name: str) -> int:
        """Return the descriptor of a map of a loaded object, which stays the object's."""
        return self._libbpf.call("bpf_map__fd", self._find("map", name))

    def link(self, ops: str) -> int:
        """Register a map of struct_ops; return the descriptor that ends it; raises OSError."""
        found, own = self._find("map", ops), self.map_fd(ops)
        made = self._libbpf.pointer("bpf_map__attach_struct_ops", found)
        link = self._libbpf.call("bpf_link__fd", made)
        # libbpf before 1.2 only fills the map.
        if link == own:
            return self._libbpf.call("bpf_link_create", own, 0, _STRUCT_OPS, None)
        kept = os.dup(link)
        self._libbpf.library.bpf_link__destroy(made)
        return kept

    def test_run(self, program: str, *, repeat: int) -> float:
        """Run a program on an empty packet; return the mean time of a run, ns."""
        packet = ctypes.create_string_buffer(64)
        data = {"data_size_in": len(packet), "data_in": ctypes.addressof(packet)}
        run = _TestRun(size=ctypes.sizeof(_TestRun), repeat=repeat, **data)
        found = self._libbpf.call("bpf_program__fd", self._find("program", program))
        self._libbpf.call("bpf_prog_test_run_opts", found, ctypes.byref(run))
        return float(run.duration)

    def close(self) -> None:
        """Let go of programs and maps: those that nothing else uses end."""
        if self._object is not None:
            self._libbpf.library.bpf_object__close(self._object)
            self._object = None


def count_arguments(table: str, member: str) -> int:
    """Return how many arguments this kernel gives to an operation, by its BTF; raises OSError."""
    library = libbpf()
    types = library.pointer("btf__load_vmlinux_btf")
    try:

        def words(number: int, first: int, count: int) -> tuple[int, ...]:
            """Return 32-bit words of a type: name, information, size or type, then its parts."""
            found = library.pointer("btf__type_by_id", types, ctypes.c_uint32(number)).value or 0
            return tuple((ctypes.c_uint32 * count).from_address(found + 4 * first))

        def name(offset: int) -> bytes:
            found = library.pointer("btf__name_by_offset", types, ctypes.c_uint32(offset))
            return ctypes.string_at(found)

        number = library.call("btf__find_by_name_kind", types, table.encode(), _BTF_STRUCT)
        for place in range(words(number, 1, 1)[0] & 0xFFFF):
            label, pointer, _ = words(number, 3 + 3 * place, 3)
            if name(label) == member.encode():
                (prototype,) = words(pointer, 2, 1)
                return words(prototype, 1, 1)[0] & 0xFFFF
    finally:
        library.library.btf__free(types)
    raise FileNotFoundError(errno.ENOENT, f"no {member} in {table}")


def map_array(fd: int) -> Bytes:
    """Return the bytes of an array that may be mapped, as a data section is; they change live."""
    size = int.from_bytes(_info(fd)[12:16], "little")
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    return np.frombuffer(mmap.mmap(fd, pages), np.uint8)[:size]


def number_of(fd: int) -> int:
    """Return the kernel's number of a map or a link."""
    return int.from_bytes(_info(fd)[4:8], "little")


def maps_named(name: str) -> Iterator[int]:
    """Yield descriptors of all the machine's maps of a name; each is closed afterwards."""
    for number in _ids("map"):
        # It may have ended meanwhile.
        with suppress(FileNotFoundError), opened("map", number) as fd:
            if _info(fd)[_NAME : _NAME + _NAME_BYTES].split(b"\0")[0].decode() == name:
                yield fd


@contextmanager
def opened(kind: str, number: int) -> Iterator[int]:
    """Yield a descriptor of the ``map`` or ``link`` of a number."""
    fd = libbpf().call(f"bpf_{kind}_get_fd_by_id", ctypes.c_uint32(number))
    try:
        yield fd
    finally:
        os.close(fd)


def links_by_map() -> dict[int, int]:
    """Return the numbers of the registrations of struct_ops by their maps'."""
    found = {}
    for number in _ids("link"):
        with suppress(FileNotFoundError), opened("link", number) as fd:
            info = _info(fd)
            if int.from_bytes(info[:4], "little") == _STRUCT_OPS_LINK:
                found[int.from_bytes(info[_LINK_MAP : _LINK_MAP + 4], "little")] = number
    return found


def pin(fd: int, path: Path) -> None:
    """Keep what a descriptor stands for in a BPF file system, after the process."""
    libbpf().call("bpf_obj_pin", fd, os.fsencode(path))


def _ids(kind: str) -> Iterator[int]:
    number = ctypes.c_uint32(0)
    with suppress(FileNotFoundError):
        while True:
            libbpf().call(f"bpf_{kind}_get_next_id", number, ctypes.byref(number))
            yield number.value


def _info(fd: int) -> bytes:
    buffer, size = ctypes.create_string_buffer(_INFO_BYTES), ctypes.c_uint32(_INFO_BYTES)
    libbpf().call("bpf_obj_get_info_by_fd", fd, buffer, ctypes.byref(size))
    return buffer.raw
