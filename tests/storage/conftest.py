"""An S3 server on loopback, and the credentials for it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from distrlcc.filesystems import storage_filesystem


class Server:
    """An S3 server that can go away and come back; what it holds stays."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self.url = f"s3://runs/all?endpoint_override={self.address}&allow_bucket_creation=true"

    def start(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer("127.0.0.1", self._port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """Serve S3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        patch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
        server = Server()
        server.start()
        storage_filesystem(server.url)  # makes the bucket
        yield server
        server.stop()
