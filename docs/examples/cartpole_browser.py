"""Learns CartPole from carts that a web page plays: `python -m docs.examples.cartpole_browser`; Ctrl-C ends it, saved."""

from __future__ import annotations

import argparse
import contextlib
import http.server
import secrets
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from apex_acer import ConfigError, RunFailed, load_run, train

HOST = "127.0.0.1"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *values: Any) -> None:
        """Says nothing."""


@contextlib.contextmanager
def pages() -> Iterator[str]:
    """Serves this folder to this machine; the address of it, which is also the pages' origin."""
    handler = partial(Quiet, directory=Path(__file__).parent)
    with http.server.ThreadingHTTPServer((HOST, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()


def free_port() -> int:
    """A port on which nobody listens at the moment."""
    with socket.create_server((HOST, 0)) as unused:
        return int(unused.getsockname()[1])


def write_token(folder: Path) -> str:
    """A new token in the run's new folder, which only its owner can read there."""
    token = secrets.token_urlsafe()
    folder.mkdir(parents=True)
    (folder / "token").touch(0o600)
    (folder / "token").write_text(token)
    return token


def learn(folder: Path, *, opens: bool) -> int:
    """Trains until a signal comes; the exit code."""
    with pages() as origin:
        listen = f"{HOST}:{free_port()}"
        page = f"{origin}/cartpole.html#url=ws://{listen}&token={write_token(folder)}"
        print(f"{page}  (Ctrl-C ends it)", flush=True)
        if opens:
            webbrowser.open(page)
        remote = {"listen": listen, "origins": (origin,)}
        endless = {"stop": {"env_steps": 10**9, "at_return": None}, "evaluation": {"every": 0}}
        run = load_run("cartpole-remote", out=str(folder), environment={"remote": remote}, **endless)
        return train(run, progress=True).exit_code


def main() -> int:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(f"runs/cartpole-browser-{time.strftime('%Y%m%d-%H%M%S')}"))
    parser.add_argument("--no-open", action="store_true", help="print the page's address, and open no browser")
    arguments = parser.parse_args()
    try:
        return learn(arguments.out, opens=not arguments.no_open)
    except (ConfigError, OSError, RunFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before the run has begun
        return 130


if __name__ == "__main__":
    sys.exit(main())
