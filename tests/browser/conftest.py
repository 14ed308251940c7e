"""A server of the explorer that tests can stop and start again, and tabs of one browser that note what goes wrong."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Site:
    """A server that can be stopped and started again at the same address."""

    app: Any
    port: int = 0
    _server: Any = field(default=None, repr=False)
    _thread: Any = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> Site:
        from citeweave.serve.app import create_server
        from citeweave.serve.options import ServeOptions

        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        self._server = create_server(self.app(), "127.0.0.1", self.port, ServeOptions())
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(300)


@pytest.fixture(scope="session")
def site_of() -> type[Site]:
    """Makes a site of a function that makes its application."""
    return Site


VIOLATIONS = "addEventListener('securitypolicyviolation', (event) => console.error('CSP: ' + event.violatedDirective))"


class Reader:
    """A tab, and everything about it that should not have happened. Tabs are used again, as new ones cost seconds."""

    def __init__(self, browser: Any, *, width: int = 1280, dark: bool = False) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",  # moving pictures cost more than all else
            accept_downloads=True,
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)  # guards against a hang
        self.page.add_init_script(VIOLATIONS)
        self.site: Any = None
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.page.on("console", self._said)
        self.page.on("request", self._asked)

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _said(self, message: Any) -> None:
        # that an answer was 404 is the browser's remark, not the page's
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def _asked(self, request: Any) -> None:
        ours = (self.site.address, "blob:" + self.site.address, "about:blank")
        if not request.url.startswith(ours):
            self.complaints.append(f"asked elsewhere: {request.url}")

    def open(self, query: str = "") -> Any:
        self.page.goto(self.site.address + query)
        return self.page

    def see(self, selector: str) -> Any:
        """The first of these elements, once it is shown."""
        found = self.page.locator(selector).first
        found.wait_for(state="visible")
        return found

    def close(self) -> None:
        """Leave nothing behind for the next."""
        if self.page.url != "about:blank":
            self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
            self.page.goto("about:blank")
        complaints, self.complaints = self.complaints, []
        assert complaints == []


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no chromium on this machine")
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def reader_of(browser: Any) -> Callable[..., Reader]:
    """A tab on a site, of a width and light or dark."""
    tabs: dict[tuple[int, bool], Reader] = {}

    def take(site: Any, *, width: int = 1280, dark: bool = False) -> Reader:
        reader = tabs.setdefault((width, dark), tabs.get((width, dark)) or Reader(browser, width=width, dark=dark))
        reader.site = site
        return reader

    return take


@pytest.fixture
def reader(reader_of: Callable[..., Reader], site: Any) -> Iterator[Reader]:
    """A tab on the site of the test's own module, closed without a complaint."""
    reader = reader_of(site)
    yield reader
    reader.close()
