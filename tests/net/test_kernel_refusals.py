"""What is said where a policy cannot be put into the kernel's TCP."""

import errno
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.doctor.findings import Verdict
from distrlcc.doctor.machine import check_kernel
from distrlcc.errors import ConfigError, KernelError
from distrlcc.net.kernel import bpf
from distrlcc.net.kernel.tcp import find_control, register
from distrlcc.policy import kernel_layout as layout
from tests.net import kernel_commands
from tests.net.kernel_commands import hidden, run_command, system_libbpf

pytestmark = pytest.mark.net
record, name = kernel_commands.record, kernel_commands.name


def _bundled_folders() -> list[str]:
    return [str(Path(path).parent) for path in bpf.bundled()]


FILTER = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
answer = 0x50000 | int(sys.argv[1])
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, answer), (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program) == 0
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Runs a command under a seccomp filter that answers bpf(2) with an error."""


FILTERED = {
    "status": errno.ENOSYS,
    "unload": errno.EPERM,
    "load one": errno.EACCES,
    "check one": errno.ENOSYS,
}


@pytest.mark.parametrize("words", FILTERED)
def test_a_filter_of_system_calls_is_told(record: Any, words: str) -> None:
    prefix = (sys.executable, "-c", FILTER, str(FILTERED[words]))
    code, out, err = run_command(*words.split(), prefix=prefix)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "a seccomp filter that lets bpf through" in err


NO_ROOT = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
REFUSALS: dict[str, tuple[Any, str]] = {
    "no root": (lambda: NO_ROOT, "run as root, or with CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON"),
    "a user namespace's root": (lambda: ("unshare", "-Ur"), "run as root of the machine"),
    "no BTF": (lambda: hidden("/sys/kernel/btf"), "boot one with CONFIG_DEBUG_INFO_BTF=y"),
    "old kernel": (lambda: ("setarch", "--uname-2.6"), "expected 6.4 or later"),
    "no libbpf": (lambda: hidden(*system_libbpf(), *_bundled_folders()), "pip install pylibbpf"),
    "nowhere to keep it": (lambda: hidden("/sys/fs/bpf"), "mount -t bpf bpf /sys/fs/bpf"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_machine_that_cannot_gets_one_line(record: Any, name: str, what: str) -> None:
    prefix, line = REFUSALS[what]
    load = ["load", "one", "--name", name]
    for words in [[*load, "--keep"]] if "keep" in what else [load, ["check", "one"]]:
        code, out, err = run_command(*words, prefix=prefix())
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("distrlcc: error: ")
        assert line in err


@pytest.mark.long
@pytest.mark.parametrize("what", ["a user namespace's root", "no BTF"])
def test_links_of_the_kernel_are_refused_before_anything_is_written(
    record: Any, tmp_path: Path, what: str
) -> None:
    words = (sys.executable, "-m", "distrlcc", "train", "quickstart", "--world", "kernel")
    out = tmp_path / "run"
    done = subprocess.run(
        [*REFUSALS[what][0](), *words, "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("distrlcc: error: ")
    assert not out.exists()


@pytest.mark.parametrize("name_", ["", "..", "a b", "a.b", "a-b", "sixteen_letters_"])
def test_names_that_are_none_are_refused(record: Any, name_: str) -> None:
    with pytest.raises(ConfigError, match="expected 1 to 15"):
        register(record, "one", name_)


def test_a_policy_that_is_not_there_cannot_be_unloaded(record: Any) -> None:
    with pytest.raises(KernelError, match="as nobody"):
        find_control("nobody")
    with pytest.raises(KernelError, match="as cubic"):
        find_control("cubic")  # the kernel's own


def test_a_program_of_another_version_takes_no_policy_and_can_be_unloaded(
    record: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(register(record, "one", name)), monkeypatch.context() as patched:
        larger = np.dtype([("policy", layout.POLICY), ("more", "<u8")])
        patched.setattr(layout, "POLICY", larger)
        found = find_control(name)
        with pytest.raises(KernelError, match=r"another version .* 'distrlcc kernel unload --name"):
            found.swap(np.zeros((), larger), "one")


def test_the_doctor_says_what_a_machine_lacks(record: Any) -> None:
    assert check_kernel().verdict == Verdict.OK


def test_a_name_is_registered_once(record: Any, name: str) -> None:
    with closing(register(record, "one", name)):
        code, out, err = run_command("load", "one", "--name", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"distrlcc: error: the kernel's TCP has a control named {name} already")


@pytest.mark.parametrize("words", [["one"], ["--world", "emulated", "--against", "cubic"]])
def test_only_policies_on_emulated_links_go_into_the_kernel(words: list[str], capsys: Any) -> None:
    assert main(["evaluate", *words, "--as", "kernel"]) == 2
    assert "--as kernel is for a POLICY and --world emulated" in capsys.readouterr().err
