"""Storage URLs that lead nowhere are one clear line each, within a time."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from distrlcc.errors import ConfigError, DistrlccError, OutputError
from distrlcc.filesystems import storage_error, storage_filesystem

pytestmark = pytest.mark.usefixtures("server")


def refusal(kind: type[DistrlccError], url: str) -> str:
    with pytest.raises(kind) as caught:
        storage_filesystem(url)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_folders_are_made_where_that_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url, path in (
        ("a/b", tmp_path / "a" / "b"),
        (f"{tmp_path}/c/", tmp_path / "c"),
        (f"file://{tmp_path}/d", tmp_path / "d"),
    ):
        filesystem, found = storage_filesystem(url)
        assert found == str(path)
        assert filesystem.type_name == "local"
        assert list(path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert "Not a directory" in refusal(OutputError, str(tmp_path / "file" / "x"))
    assert "cannot write /proc/none" in refusal(OutputError, "/proc/none")


def test_s3_is_found_by_url_and_by_environment(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = f"s3://made/runs/?endpoint_override={server.address}&allow_bucket_creation=true"
    filesystem, path = storage_filesystem(made)
    assert (filesystem.type_name, path) == ("s3", "made/runs")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
    assert storage_filesystem("s3://made/runs")[1] == "made/runs"
    assert "no bucket 'none'; make it" in refusal(OutputError, "s3://none/runs")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "expected a folder or a URL"),
        ("s3://", "expected a place after ://"),
        ("floppy://a/b", "unknown scheme; expected a folder, s3://"),
        ("s3://key:secret@bucket/runs", "give credentials in the environment"),
        ("abfs://user:secret@account/runs", "give credentials in the environment"),
        ("abfs://account/runs?client_secret=x", "give credentials in the environment"),
        ("s3://bucket/runs?endpoint=x", "valid: endpoint_override"),
        ("github://x/y", "missing"),
    ],
)
def test_urls_that_are_wrong(url: str, words: str) -> None:
    text = refusal(ConfigError, url)
    assert words in text
    assert "secret" not in text.replace("SECRET", "")


def test_credentials_that_do_not_do(server: Any) -> None:
    storage_filesystem(f"s3://closed?endpoint_override={server.address}&allow_bucket_creation=true")
    ask(f"{server.address}/moto-api/reset-auth", "0")  # from now on keys count
    try:
        text = refusal(OutputError, f"s3://closed/runs?endpoint_override={server.address}")
    finally:
        ask(f"{server.address}/moto-api/reset-auth", "1000000")
    assert "access denied; check that AWS_ACCESS_KEY_ID's owner may" in text


def ask(url: str, data: str) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data.encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def test_servers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"s3://bucket/runs?endpoint_override=http://127.0.0.1:{free.getsockname()[1]}"
        assert "no connection: Failed to connect to 127.0.0.1" in refusal(OutputError, url)
        free.listen()  # takes the connection and says nothing
        monkeypatch.setenv("DISTRLCC_LIMITS", "stall=1")
        assert "no answer within 1 s; check address" in refusal(OutputError, url)


def test_a_host_that_has_no_address_is_said_as_the_resolver_does() -> None:
    error = storage_error("http://x/y", socket.gaierror(-2, "Name or service not known"))
    assert "Name or service not known" in str(error)
