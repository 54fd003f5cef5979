"""Connects a client of one server with another server on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from apex_acer.remote.messages import BUSY, RemoteError


async def relay(client: ServerConnection, hello: str | bytes, url: str, **options: Any) -> None:
    """Passes on all that the `client` and the server at `url` say to each other, until one of them leaves.

    Raises `RemoteError` if there is no server.
    """
    try:
        async with connect(url, compression=None, max_size=None, **options) as server:
            await server.send(hello)
            tasks = [asyncio.ensure_future(each) for each in (_pass_on(client, server), _pass_on(server, client))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except (OSError, InvalidHandshake):
        raise RemoteError("the evaluator is not there yet; try again later", BUSY) from None


async def _pass_on(source: Any, target: Any) -> None:
    with contextlib.suppress(ConnectionClosed):
        async for data in source:
            await target.send(data)
