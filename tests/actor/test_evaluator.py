"""The games that the evaluator plays, and how they are played again."""

from __future__ import annotations

from pathlib import Path

from apex_acer.actor.evaluator import Evaluator, evaluate_policy
from apex_acer.actor.policy import load_policy
from apex_acer.networks.metadata import describe
from apex_acer.networks.weights import named_tensors, pack
from apex_acer.protocol.messages import Peer, Reply
from tests.actor.test_actor import RecordingLink, network
from tests.runs import CARTPOLE, RUN_ID, tiny_run


def test_evaluate_plays_the_evaluator_s_games_and_with_the_next_seed_those_of_a_confirmation(tmp_path: Path) -> None:
    config, link, path = tiny_run(seed=3), RecordingLink(), tmp_path / "weights.safetensors"
    metadata = describe(config, CARTPOLE, env_steps=9, updates=2)
    path.write_bytes(pack(named_tensors(network(config), "network"), metadata))
    evaluator = Evaluator(config, RUN_ID, Peer("evaluator", 0, 0), link)
    for sequence, confirms in enumerate((False, True, False)):
        link.replies.append(Reply(sequence, weights_version=2, weights=path.read_bytes(), confirms=confirms))
        assert evaluator.step(0)
    assert evaluator.step(0)
    evaluator.close()
    rows = [{name: value for name, value in each.rows[0].items() if name != "eval_seconds"} for each in link.sent[1:]]
    policy = load_policy(path)
    played, others = (evaluate_policy(policy, config.evaluation, seed) for seed in (3, 4))
    assert rows == [played, others, played]
    assert played != others
