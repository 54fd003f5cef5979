from __future__ import annotations

import pytest

from apex_acer.actor.actor import Actor
from apex_acer.algorithms import make_agent
from apex_acer.config import RunConfig
from apex_acer.engines.local.wire import Part, encode_message
from apex_acer.environments.vector import environment_spec
from apex_acer.networks.device import CPU
from apex_acer.networks.weights import named_tensors, pack
from apex_acer.protocol.messages import Link, Message, Peer, Reply
from apex_acer.tools.capacity import measure
from apex_acer.tools.capacity.components import Components
from tests.runs import tiny_run


class WireLink(Link):
    """Keeps the bytes that are sent, and answers with the weights it was given."""

    def __init__(self, weights: bytes) -> None:
        self.sent: list[list[Part]] = []
        self._weights = weights

    def send(self, message: Message) -> None:
        self.sent.append(encode_message(message))

    def receive(self, timeout_s: float) -> Reply | None:
        return Reply(len(self.sent) - 1, weights_version=0, weights=self._weights)


def sent_by_an_actor(config: RunConfig) -> list[list[Part]]:
    """The messages with unrolls of a real actor."""
    network = make_agent(config, environment_spec(config.environment)).network
    link = WireLink(pack(named_tensors(network, "network"), {"weights_version": 0}))
    actor = Actor(config, "capacity", Peer("actor", 0, 0), link)
    while len(link.sent) < 5:
        actor.step(0)
        actor._send_unroll()
    actor.close()
    return [parts for parts in link.sent if len(parts) == 2]


def unroll_bytes(config: RunConfig) -> float:
    """Of one message."""
    components = Components(config, CPU)
    return components.sizes["unroll_bytes"] * components.sending()


@pytest.mark.parametrize("algorithm", ["acer", "apex_dqn"])
def test_sizes_are_those_of_what_an_actor_sends(algorithm: str) -> None:
    config = tiny_run(algorithm__name=algorithm, logging__every_seconds=1000.0)
    for parts in sent_by_an_actor(config):
        assert sum(map(len, parts)) == pytest.approx(unroll_bytes(config), abs=8)  # digits of numbers


@pytest.mark.slow
def test_compressed_observations_are_smaller_on_the_wire_where_they_repeat() -> None:
    plain, compressed = (
        Components(tiny_run(environment__id="ALE/Pong-v5", environment__stack=4, ray__compress=compress), CPU).sizes
        for compress in (False, True)
    )
    assert plain["unroll_bytes"] > 84 * 84 > 8 * compressed["unroll_bytes"]
    assert plain["weights_bytes"] == compressed["weights_bytes"]


def test_taking_in_puts_each_unroll_into_replay() -> None:
    found = Components(tiny_run(), CPU)
    before = found._storage.num_inserted
    steps = [found.intake() for _ in range(5)]
    assert found._storage.num_inserted == before + 5 * 4  # environments
    assert min(steps) > 0
    assert found.sending() == steps[0]


def test_an_update_without_its_gradient_is_quicker() -> None:
    rates = measure.measure("cartpole", ("sending", "intake", "update", "stepping", "weights_bytes"), seconds=0.2)
    assert rates["stepping"] > rates["update"]
    assert min(rates.values()) > 0
    assert rates["weights_bytes"] == round(rates["weights_bytes"])
