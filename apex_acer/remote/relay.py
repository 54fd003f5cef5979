"""Connects a client of one server with another server on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from websockets.asyncio.client import unix_connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from apex_acer.remote.connections import RelayConnection
from apex_acer.remote.messages import BUSY, RemoteError


async def relay(client: ServerConnection, hello: str | bytes, address: Path, **options: Any) -> None:
    """Passes on all that the `client` and another server say to each other, until one of them leaves.

    The server is at the Unix socket whose path is in the file `address`. Raises `RemoteError` if there is none.
    """
    options |= {"compression": None, "max_size": None, "create_connection": RelayConnection}
    try:
        async with unix_connect(address.read_text(), **options) as server:
            await server.send(hello)
            tasks = [asyncio.ensure_future(each) for each in (_pass_on(client, server), _pass_on(server, client))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except (OSError, InvalidHandshake, InvalidMessage):
        raise RemoteError("the evaluator is not there yet; try again later", BUSY) from None


async def _pass_on(source: Any, target: Any) -> None:
    with contextlib.suppress(ConnectionClosed):
        async for data in source:
            await target.send(data)
