"""A message as it goes through Ray: as it is, or with its observations compressed by LZ4. Needs no Ray."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import lz4.frame
import numpy as np

from apex_acer.protocol.messages import Message


class Parcel(NamedTuple):
    """A message, with its observations apart where they are compressed."""

    message: Message
    obs: bytes = b""
    shape: tuple[int, ...] = ()
    dtype: str = ""


def pack(message: Message, *, compress: bool) -> Parcel:
    """What is sent of `message`."""
    if not compress or message.unroll is None:
        return Parcel(message)
    obs = np.ascontiguousarray(message.unroll.obs)
    unroll = dataclasses.replace(message.unroll, obs=obs[:0])
    return Parcel(
        dataclasses.replace(message, unroll=unroll), lz4.frame.compress(obs.data.cast("B")), obs.shape, obs.dtype.name
    )


def unpack(parcel: Parcel) -> Message:
    """The message that was sent."""
    message = parcel.message
    if not parcel.obs or message.unroll is None:
        return message
    data = lz4.frame.decompress(parcel.obs, return_bytearray=True)
    obs = np.frombuffer(data, parcel.dtype).reshape(parcel.shape)
    return dataclasses.replace(message, unroll=dataclasses.replace(message.unroll, obs=obs))
