"""Messages as they travel through Ray: unchanged, or with their observations compressed by LZ4. Imports no Ray."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import lz4.frame
import numpy as np

from apex_acer.protocol.messages import Message


class PackedMessage(NamedTuple):
    """A message; if its observations are compressed, they are in `obs` instead of its unroll."""

    message: Message
    obs: bytes = b""
    shape: tuple[int, ...] = ()
    dtype: str = ""


def pack(message: Message, *, compress: bool) -> PackedMessage:
    """`message` as it is sent; only an unroll's observations are compressed."""
    if not compress or message.unroll is None:
        return PackedMessage(message)
    obs = np.ascontiguousarray(message.unroll.obs)
    rest = dataclasses.replace(message, unroll=dataclasses.replace(message.unroll, obs=obs[:0]))
    return PackedMessage(rest, lz4.frame.compress(obs.data.cast("B")), obs.shape, obs.dtype.name)


def unpack(packed: PackedMessage) -> Message:
    """The message that was packed."""
    message = packed.message
    if not packed.obs or message.unroll is None:
        return message
    data = lz4.frame.decompress(packed.obs, return_bytearray=True)
    obs = np.frombuffer(data, packed.dtype).reshape(packed.shape)
    return dataclasses.replace(message, unroll=dataclasses.replace(message.unroll, obs=obs))
