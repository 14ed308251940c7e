from __future__ import annotations

import socket
import threading

import pytest

from citeweave.core.errors import UserError
from citeweave.remote.ray_executor import check_address


def test_an_address_where_something_else_than_ray_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.recv(100)
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UserError, match=r"the Ray cluster ray://127.0.0.1:\d+ answers, but is not Ray; .*10001"):
            check_address(f"ray://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize("address", ["somewhere", "host:port", ":6379", "ray://head", "host:99999"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UserError, match="is not an address; it must be HOST:PORT"):
        check_address(address)


def test_a_host_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"no-such-host.invalid:6379 does not answer"):
        check_address("no-such-host.invalid:6379")
