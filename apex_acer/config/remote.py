"""The settings of servers for remote clients, which are environments outside this program."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from apex_acer.config.checks import at_least, between, json_object, typed
from apex_acer.system.errors import require

MOST_CLIENTS = 4096
LARGEST = 2.0**127  # of an action's bounds, which are float32
DTYPES = "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"


@dataclass(frozen=True)
class ListenConfig:
    """The address of a server for remote clients, and who may connect to it."""

    listen: str = "127.0.0.1:7777"
    """Address and port to listen on."""
    token_file: str = ""
    """File with the token that clients must send; empty: a new token, in the file `token` of the run's folder."""
    certificate: str = ""
    """File with the TLS certificate chain (PEM); needed to listen beyond this machine."""
    private_key: str = ""
    """File with the private key of the certificate (PEM)."""
    insecure: bool = False
    """Listen beyond this machine without TLS; whoever can read the network can read the token."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may connect, such as `https://example.org`; other programs send no origin."""
    clients: int = 64
    """Maximum number of clients at a time."""
    grace_s: float = 10.0
    """Seconds in which a client may reconnect after its connection broke; its episode is truncated after that."""

    section = "serve"

    def __post_init__(self) -> None:
        typed(self.section, self)
        key, (host, port) = f"{self.section}.listen", self.address
        require(host != "" and 1 <= port <= 65535, key, self.listen, "give ADDRESS:PORT, with a port from 1 to 65535")
        between(1, MOST_CLIENTS, self.section, self, "clients")
        at_least(0, self.section, self, "grace_s")
        pair = bool(self.certificate) == bool(self.private_key)
        allowed = "give both certificate and private_key, or neither"
        require(pair, f"{self.section}.private_key", self.private_key, allowed)
        safe = self.is_loopback or self.certificate or self.insecure
        allowed = "beyond this machine, give certificate and private_key for TLS, or insecure True"
        require(bool(safe), key, self.listen, allowed)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; ("", 0) if `listen` has not both."""
        host, _, port = self.listen.rpartition(":")
        return (host.strip("[]"), int(port)) if host and port.isascii() and port.isdigit() else ("", 0)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        host = self.address[0]
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        return f"{'wss' if self.certificate else 'ws'}://{self.listen}"


@dataclass(frozen=True)
class RemoteConfig(ListenConfig):
    """Environments that are remote clients; used if `environment.id` is `remote`."""

    observation_shape: tuple[int, ...] = ()
    """Shape of an observation as a client sends it."""
    observation_dtype: str = "float32"
    """NumPy name of an observation's type."""
    observations: str | dict[str, Any] = "{}"
    """Parts of an observation by name, instead of its shape and type: `{"shape": […], "dtype": "…"}` for an array,
    `{"n": 4}` for one of four choices."""
    num_actions: int = 0
    """Number of discrete actions; 0: actions are of another kind."""
    num_choices: tuple[int, ...] = ()
    """Number of choices of each branch, if an action consists of several choices (MultiDiscrete)."""
    action_low: tuple[float, ...] = ()
    """Lower bound of each dimension of continuous actions."""
    action_high: tuple[float, ...] = ()
    """Upper bound of each dimension of continuous actions."""
    local: str = ""
    """Gymnasium id of the evaluator's environment; empty: it evaluates clients with `train = false`."""

    section = "environment.remote"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts()
        for name in ("observation_shape", "num_choices"):
            sizes = getattr(self, name)
            require(all(size >= 1 for size in sizes), f"{self.section}.{name}", sizes, "give numbers of 1 or more")
        dtype = self.observation_dtype
        require(dtype in DTYPES, "environment.remote.observation_dtype", dtype, f"give one of {', '.join(DTYPES)}")
        at_least(0, self.section, self, "num_actions")
        low, high = self.action_low, self.action_high
        pairs = len(low) == len(high) and all(a < b for a, b in zip(low, high, strict=True))
        finite = all(abs(bound) < LARGEST for bound in (*low, *high))
        allowed = "give a finite bound for each dimension, above its action_low"
        require(pairs and finite, "environment.remote.action_high", high, allowed)

    def require_spaces(self) -> None:
        """Raises `ConfigError` unless observations and one kind of actions are given."""
        shape, count, has_parts = self.observation_shape, self.num_actions, bool(self.parts())
        twice = bool(shape) and has_parts
        require(not twice, "environment.remote.observations", self.observations, "give it or observation_shape")
        allowed = "give the shape of an observation"
        require(bool(shape) or has_parts, "environment.remote.observation_shape", shape, allowed)
        kinds = bool(count), bool(self.num_choices), bool(self.action_low)
        allowed = "give one of num_actions, num_choices, and action_low with action_high"
        require(sum(kinds) == 1, "environment.remote.num_actions", count, allowed)

    def parts(self) -> dict[str, dict[str, Any]]:
        """`observations` as a dict; raises `ConfigError` for a part that is not allowed."""
        key = "environment.remote.observations"
        parts = json_object(key, self.observations)
        for name, part in parts.items():
            allowed = 'give {"shape": [4], "dtype": "float32"} or {"n": 4, "start": 0} for each name'
            require(bool(name) and _is_part(part), key, {name: part}, allowed)
        return parts


def _is_part(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    if "n" in part:
        numbers = all(type(value) is int and abs(value) < 2**31 for value in part.values())
        return part.keys() <= {"n", "start"} and numbers and part["n"] >= 1
    shape = part.get("shape")
    sizes = isinstance(shape, list) and all(type(size) is int and size >= 1 for size in shape)
    return part.keys() <= {"shape", "dtype"} and sizes and part.get("dtype", "float32") in DTYPES
