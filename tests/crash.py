"""States that a power cut may leave: what a command wrote, as strace saw it, in every legal order.

A file's data is on the disk once the file is synced, and a name once its folder is. Until then any
part of it may be there and any other not, in any order, and the last write may be torn: see ALICE
(Pillai et al., OSDI 2014).
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "openat,write,pwrite64,writev,lseek,ftruncate,fsync,fdatasync,close,"
    "rename,renameat,renameat2,link,linkat,unlink,unlinkat"
)
Tree = dict[str, bytes]
"""Contents by path."""


@dataclass(frozen=True)
class Op:
    """One change of a file system."""

    kind: str
    """``data`` of a file, or ``size``; a ``name`` for it, ``move`` or ``unname``; ``sync``."""
    file: int = -1
    path: str = ""
    to: str = ""
    offset: int = 0
    data: bytes = b""

    @property
    def folder(self) -> str:
        """Where the name is that changes."""
        return os.path.dirname(self.path) or "."


@dataclass
class History:
    """What a command did below a folder."""

    before: Tree
    ops: list[Op] = field(default_factory=list)

    def durable(self, end: int) -> list[bool]:
        """Return which of the first ``end`` operations a power cut then leaves for sure."""
        synced = set[object]()
        found = []
        for op in reversed(self.ops[:end]):
            if op.kind == "sync":
                synced.add(op.path or op.file)
                found.append(True)
            else:
                found.append((op.file if op.kind in ("data", "size") else op.folder) in synced)
        return found[::-1]

    def tree(self, chosen: Sequence[int], torn: int = 0) -> Tree:
        """Return what these operations make; of the last one's data the first ``torn`` bytes."""
        names = {path: -2 - k for k, path in enumerate(self.before)}
        files = {-2 - k: bytearray(data) for k, data in enumerate(self.before.values())}
        for k in chosen:
            op = self.ops[k]
            if op.kind == "name":
                names[op.path] = op.file
            elif op.kind == "move" and op.path in names:
                names[op.to] = names.pop(op.path)
            elif op.kind == "unname":
                names.pop(op.path, None)
            elif op.kind == "size":
                content = files.setdefault(op.file, bytearray())
                content[op.offset :] = bytes(max(op.offset - len(content), 0))
            elif op.kind == "data":
                content = files.setdefault(op.file, bytearray())
                data = op.data[:torn] if torn and k == chosen[-1] else op.data
                content.extend(bytes(max(op.offset + len(data) - len(content), 0)))
                content[op.offset : op.offset + len(data)] = data
        return {path: bytes(files.get(file, b"")) for path, file in names.items()}

    def floor(self, end: int) -> Tree:
        """Return what is there for sure after a power cut behind ``end`` operations."""
        return self.tree([k for k, sure in enumerate(self.durable(end)) if sure])

    def states(self, end: int, drawn: int, random_: random.Random) -> Iterator[Tree]:
        """Yield what may be there: prefixes, torn writes, and so many drawn choices."""
        sure = self.durable(end)
        pending = [k for k, one in enumerate(sure) if not one]
        for count in range(len(pending) + 1):
            chosen = sorted({*pending[:count], *(k for k, one in enumerate(sure) if one)})
            yield self.tree(chosen)
            last = chosen[-1] if chosen else -1
            if count and last == pending[count - 1] and self.ops[last].kind == "data":
                yield self.tree(chosen, torn=max(len(self.ops[last].data) // 2, 1))
        for _ in range(drawn if len(pending) > 1 else 0):
            yield self.tree([k for k, one in enumerate(sure) if one or random_.random() < 0.5])


def files_below(folder: Path) -> Tree:
    """Return a folder's files by their paths in it."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def write_tree(folder: Path, tree: Tree) -> None:
    """Write a state into an empty folder."""
    for name, data in tree.items():
        (path := folder / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def recorded(command: Sequence[str], folders: Sequence[Path], log: Path) -> list[History]:
    """Run a command and return what it did below some folders; it must end with 0.

    One process alone may write there, with as many threads as it likes.
    """
    histories = [History(files_below(folder) if folder.exists() else {}) for folder in folders]
    strace = f"strace -f --seccomp-bpf -y -xx -s 100000000 -e trace={CALLS} -o".split()
    subprocess.run([*strace, log, *command], check=True, timeout=300, stdout=subprocess.DEVNULL)
    for history, folder in zip(histories, folders, strict=True):
        _Reader(history, str(folder)).read(log)
    return histories


_CALL = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)(<.*>)?")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"^(-?\w+)<((?:\\x[0-9a-f]{2})*)>")


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@dataclass
class _Reader:
    """Reads a log of strace, in which calls of threads may be split over two lines."""

    history: History
    root: str
    names: dict[str, int] = field(default_factory=dict)
    opened: dict[str, list[int]] = field(default_factory=dict)
    """File and offset by file descriptor; offset -1: each write goes to the end."""
    sizes: dict[int, int] = field(default_factory=dict)

    def read(self, log: Path) -> None:
        for k, (path, data) in enumerate(self.history.before.items()):
            self.names[path], self.sizes[-2 - k] = -2 - k, len(data)
        begun: dict[str, str] = {}
        with log.open() as lines:
            for line in lines:
                pid, _, rest = line.partition(" ")
                rest = rest.strip()
                if rest.endswith("<unfinished ...>"):
                    begun[pid] = rest.removesuffix("<unfinished ...>")
                    if rest.startswith("close("):  # its number may be another file's before it ends
                        self._take("close", begun.pop(pid).removeprefix("close("), 0)
                    continue
                if rest.startswith("<... "):
                    rest = begun.pop(pid, "") + rest.partition(" resumed>")[2]
                if (found := _CALL.fullmatch(f"{pid} {rest}")) and int(found[4]) >= 0:
                    self._take(found[2], found[3], int(found[4]))

    def _below(self, path: str) -> str | None:
        return path.removeprefix(f"{self.root}/") if path.startswith(f"{self.root}/") else None

    def _take(self, call: str, arguments: str, result: int) -> None:
        texts = [_bytes(text) for text in _TEXT.findall(arguments)]
        if call == "openat":
            self._open(texts[0].decode(), arguments, str(result))
        elif call.startswith(("rename", "link", "unlink")):
            below = [self._below(text.decode()) for text in texts]
            if None not in below:
                self._name(call, str(below[0]), str(below[-1]))
        elif found := _FD.match(arguments):
            fd, path = found[1], _bytes(found[2]).decode(errors="replace")
            if call == "close":
                self.opened.pop(fd, None)
            elif call in ("fsync", "fdatasync"):
                self._sync(fd, path)
            elif fd in self.opened:
                self._write(call, arguments, result, fd, b"".join(texts))

    def _open(self, path: str, arguments: str, fd: str) -> None:
        self.opened.pop(fd, None)
        name = self._below(path)
        if name is None or (name not in self.names and "O_CREAT" not in arguments):
            return
        if name not in self.names:
            self.names[name] = file = len(self.sizes)
            self.sizes[file] = 0
            self.history.ops.append(Op("name", file, name))
        file = self.names[name]
        if "O_TRUNC" in arguments and self.sizes[file]:
            self.sizes[file] = 0
            self.history.ops.append(Op("size", file))
        self.opened[fd] = [file, -1 if "O_APPEND" in arguments else 0]

    def _name(self, call: str, old: str, new: str) -> None:
        if call.startswith("rename") and old in self.names:
            self.names[new] = self.names.pop(old)
            self.history.ops.append(Op("move", path=old, to=new))
        elif call.startswith("link"):
            self.names[new] = self.names[old]
            self.history.ops.append(Op("name", self.names[old], new))
        elif old in self.names:
            self.names.pop(old)
            self.history.ops.append(Op("unname", path=old))

    def _sync(self, fd: str, path: str) -> None:
        if fd in self.opened:
            self.history.ops.append(Op("sync", self.opened[fd][0]))
        elif path == self.root or self._below(path) is not None:
            self.history.ops.append(Op("sync", path=self._below(path) or "."))

    def _write(self, call: str, arguments: str, result: int, fd: str, data: bytes) -> None:
        file, offset = self.opened[fd]
        if call == "lseek":
            if offset >= 0:
                self.opened[fd][1] = result
            return
        if call == "ftruncate":
            size = int(arguments.rpartition(", ")[2])
            self.sizes[file] = size
            self.history.ops.append(Op("size", file, offset=size))
            return
        at = int(arguments.rpartition(", ")[2]) if call == "pwrite64" else offset
        at = self.sizes[file] if at < 0 else at
        self.history.ops.append(Op("data", file, offset=at, data=data[:result]))
        self.sizes[file] = max(self.sizes[file], at + result)
        if call != "pwrite64" and offset >= 0:
            self.opened[fd][1] = at + result
