"""The TLS of a server, if it has a certificate."""

from __future__ import annotations

import ssl
from typing import Any

from apex_acer.config import ConfigError, ListenConfig


def tls_options(settings: ListenConfig, handshake_s: float) -> dict[str, Any]:
    """The arguments of a server that speaks TLS with its certificate; empty if it has none. Raises `ConfigError`."""
    if not settings.certificate:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.certificate, settings.private_key)
    except (OSError, ssl.SSLError) as error:
        files = f"{settings.certificate!r} and {settings.private_key!r}"
        raise ConfigError(f"{settings.section}.certificate: {files} cannot be used ({error})") from None
    # A session ticket would reach a client while it sends its first request. One that reads and writes in two threads,
    # as apex_acer.client does through websockets, sometimes lost that request: OpenSSL allows one thread at a time.
    context.num_tickets = 0
    return {"ssl": context, "ssl_handshake_timeout": handshake_s}
