"""The settings of servers for remote clients, which are environments outside this program."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from apex_acer.config.checks import at_least, json_object, typed
from apex_acer.system.errors import require

MOST_CLIENTS = 4096
LARGEST = 2.0**127  # of an action's bounds, which are float32
DTYPES = "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"


@dataclass(frozen=True)
class ListenConfig:
    """Where a server listens, and to whom."""

    listen: str = "127.0.0.1:7777"
    """Address and port."""
    token_file: str = ""
    """File with the token that clients must send; empty: a new token, in `token` in the run's folder."""
    certificate: str = ""
    """File with the TLS certificate chain (PEM); needed beyond this machine."""
    private_key: str = ""
    """File with its private key (PEM)."""
    insecure: bool = False
    """Listen beyond this machine without TLS: whoever can read the network reads the token."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may connect, such as `https://example.org`; programs have none."""
    clients: int = 64
    """Clients at most at any time."""
    grace_s: float = 10.0
    """Seconds in which a client whose connection broke may come back; then its episode counts as truncated."""

    section = "serve"

    def __post_init__(self) -> None:
        typed(self.section, self)
        key, (host, port) = f"{self.section}.listen", self.address
        require(host != "" and 1 <= port <= 65535, key, self.listen, "give ADDRESS:PORT, with a port from 1 to 65535")
        at_least(1, self.section, self, "clients")
        require(self.clients <= MOST_CLIENTS, f"{self.section}.clients", self.clients, f"give 1 to {MOST_CLIENTS}")
        at_least(0, self.section, self, "grace_s")
        both = bool(self.certificate) == bool(self.private_key)
        require(
            both, f"{self.section}.private_key", self.private_key, "give both certificate and private_key, or neither"
        )
        safe = self.is_loopback or self.certificate or self.insecure
        needed = "beyond this machine, give certificate and private_key for TLS, or insecure True"
        require(bool(safe), key, self.listen, needed)

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
        """What clients connect to."""
        return f"{'wss' if self.certificate else 'ws'}://{self.listen}"


@dataclass(frozen=True)
class RemoteConfig(ListenConfig):
    """Environments that are remote clients; used if `environment.id` is `remote`."""

    observation_shape: tuple[int, ...] = ()
    """Shape of an observation, as a client gives it."""
    observation_dtype: str = "float32"
    """NumPy name of its type."""
    observations: str | dict[str, Any] = "{}"
    """In place of both, the parts of an observation by name: `{"shape": […], "dtype": "…"}`, or `{"n": 4}` of choices."""
    num_actions: int = 0
    """Number of discrete actions; 0: they are others."""
    num_choices: tuple[int, ...] = ()
    """Numbers of choices, if several are made at once."""
    action_low: tuple[float, ...] = ()
    """Lower bounds of continuous actions, one for each dimension."""
    action_high: tuple[float, ...] = ()
    """Their upper bounds."""
    local: str = ""
    """Gymnasium id of the environment in which the evaluator plays; empty: clients with `train = false` are evaluated."""

    section = "environment.remote"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts()
        sizes = all(size >= 1 for size in self.observation_shape)
        require(sizes, "environment.remote.observation_shape", self.observation_shape, "give sizes of 1 or more")
        dtype = self.observation_dtype
        require(dtype in DTYPES, "environment.remote.observation_dtype", dtype, f"give one of {', '.join(DTYPES)}")
        at_least(0, self.section, self, "num_actions")
        choices = all(count >= 1 for count in self.num_choices)
        require(choices, "environment.remote.num_choices", self.num_choices, "give numbers of 1 or more")
        low, high = self.action_low, self.action_high
        pairs = len(low) == len(high) and all(a < b for a, b in zip(low, high, strict=True))
        finite = all(abs(bound) < LARGEST for bound in (*low, *high))
        allowed = "give a finite bound above that in action_low for each dimension"
        require(pairs and finite, "environment.remote.action_high", high, allowed)

    def require_spaces(self) -> None:
        """Raises `ConfigError` unless observations and one kind of actions are given."""
        shape, count = self.observation_shape, self.num_actions
        both = bool(shape) and bool(self.parts())
        require(not both, "environment.remote.observations", self.observations, "give it or observation_shape")
        given = [bool(count), bool(self.num_choices), bool(self.action_low)]
        require(
            bool(shape or self.parts()),
            "environment.remote.observation_shape",
            shape,
            "give the shape of an observation",
        )
        allowed = "give one of num_actions, num_choices, and action_low with action_high"
        require(sum(given) == 1, "environment.remote.num_actions", count, allowed)

    def parts(self) -> dict[str, dict[str, Any]]:
        """`observations` as a dict; raises `ConfigError` if a part is not one that is allowed."""
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
