"""Faults that the tests must see, and the tool that shows that they do.

`python -m tests.mutations [WORD]` puts each fault (of those with WORD in them) into a copy of the tree and runs the tests
that are named above it, as far as `make test` runs them; it ends with 1 if one fault is not noticed.

A paragraph of `FAULTS` is a file and the tests that ought to see its faults; then one fault a line: what is wrong with it,
the text that is replaced, which must be there just once, and what replaces it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("apex_acer", "launch", "tests")
SLOW_IMPORTS = ("ale_py.vector_env", "safetensors.torch", "tensorboardX", "torch", "tyro", "zmq")

FAULTS = """
apex_acer/functional/acer.py: functional/test_acer.py algorithms/test_acer.py
  the weight of Retrace is not clipped at 1: rho.clamp(max=1.0), 0.0 => rho, 0.0
  the truncation c is used in the target of Q: rho.clamp(max=1.0), 0.0 => rho.clamp(max=truncation_threshold), 0.0
  the bias correction is dropped: excess, q_values - value.unsqueeze(-1)) => 0 * excess, q_values)
  rho is assumed to be 1: (log_pi - mu_log_probs).gather => (log_pi - log_pi).gather
  the policy term is not truncated: log_weight = torch.minimum(log_c - => log_weight = torch.minimum(99 -
  the trust region is left out: projected * importance.unsqueeze(-1) => g * importance.unsqueeze(-1)
  the sign of k is wrong: -(log_k - log_scale).exp(), delta => (log_k - log_scale).exp(), delta
  k is the other way round: log_k = log_average - log_pi => log_k = log_pi - log_average
  the entropy is not in the gradient that is projected: -entropy_cost * (1 + log_pi), excess => 0 * log_pi, excess
  the weight of the Q loss is dropped: policy_loss + q_cost * q_loss => policy_loss + q_loss
  the half of the Q loss is dropped: 0.5 * (importance * error => (importance * error
  dummy steps count in the policy loss: where(mask.unsqueeze(-1), projected => where(mask.unsqueeze(-1) | True, projected
  dummy steps count in the Q loss: error = torch.where(mask, q_ret - q_taken, 0.0) => error = q_ret - q_taken
  the trace goes on through a dummy step: torch.where(mask, rho.clamp(max=1.0), 0.0) => rho.clamp(max=1.0)
  a death is bootstrapped: .masked_fill_(terminated, 0.0) => .masked_fill_(terminated, gamma)
  means are over dummy steps, too: num_steps = mask.sum().clamp(min=1) => num_steps = mask.numel()

apex_acer/functional/retrace.py: functional/test_retrace.py functional/test_acer.py
  the trace is that of the step before: carried = _scan(offset[1:], slope[1:] => carried = _scan(offset[:-1], slope[:-1]
  the correction has the wrong sign: value + trace * (reward - q_taken) => value + trace * (q_taken - reward)

apex_acer/functional/trust_region.py: functional/test_trust_region.py
  the projection holds on the wrong side: (excess > 0) & (norm > 0) => (excess < 0) & (norm > 0)
  delta is not scaled with k: - bound / scale => - bound

apex_acer/functional/q_learning.py: functional/test_q_learning.py
  a time limit is a death: ends = (counted & terminated).any(0) => ends = (counted & (terminated | truncated)).any(0)
  returns reach into the next episode: goes_on = mask & ~terminated & ~truncated => goes_on = mask & ~terminated
  the advantage is not centred: - advantage.mean(-1, keepdim=True) => - advantage.mean()
  the target network chooses for itself: q_values.argmax(-1, keepdim=True) => target_q_values.argmax(-1, keepdim=True)

apex_acer/functional/rewards.py: algorithms/test_acer_options.py algorithms/test_apex_dqn.py algorithms/test_acer.py
  the penalty is a reward: clipped - penalty => clipped + penalty
  rewards are clipped from above only: reward.clamp(-clip, clip) => reward.clamp(max=clip)

apex_acer/algorithms/acer.py: algorithms/test_acer.py algorithms/test_acer_memory.py algorithms/test_acer_options.py
  a time limit is a death: terminated=batch.terminated, => terminated=batch.terminated | batch.truncated,
  dummy steps count in priorities: loss.td_error.sum(0) / mask.sum(0).clamp(min=1) => loss.td_error.mean(0)
  the average moves by alpha: newest, 1 - self._config.ema_decay => newest, self._config.ema_decay
  the average policy is not saved: | named_tensors(self.average_network, "average") => | {}
  the average policy is not restored: source = tensors if has_average else => source = {} if has_average else
  mu is recorded at temperature 1: {MU: log_mu}, state) => {MU: output.pi_logits.log_softmax(-1)}, state)
  the burn-in is learned from: return mask & (late.unsqueeze(-1) | batch.fresh) => return mask

apex_acer/algorithms/apex_dqn.py: algorithms/test_apex_dqn*.py
  dummy steps count in the loss: torch.where(mask, target - q_taken, 0.0) => target - q_taken
  dummy steps have a priority: torch.where(mask[0], error, 0.0) => error
  importance is left out: (batch.importance * huber) => huber
  double learning is off: judge = self.target_network(after).q_values => judge = self.network(after).q_values
  the target network is never copied: self._since_copy += 1 => self._since_copy += 0
  epsilon is the same everywhere: given.epsilon_alpha * rank => 0 * rank

apex_acer/replay/buffer.py: test_replay.py test_replay_windows.py test_prioritized_replay.py
  dummy steps count as held: alive.sum(1, keepdims=True) => 0 * alive.sum(1, keepdims=True) + alive.shape[1]
  dummy steps are drawn: np.where(self._steps[index] > 0, weights, 0.0) => weights
  a window reaches beyond its segment: fields["mask"] = fields["mask"] & inside => pass
  importance grows with the probability: (rarest / probabilities) ** exponent => (probabilities / rarest) ** exponent
  the importance exponent stays at its start: min(progress, 1.0) => 0.0
  priorities are not raised to alpha: ** self._settings.priority_exponent => ** 1.0
  overwritten segments get priorities of before: (age >= self._inserted - since) & => (age >= 0) &
  the newest segment is never drawn: randint(len(self) * self._starts => randint((len(self) - 1 or 1) * self._starts

apex_acer/replay/sum_tree.py: test_sum_tree.py test_prioritized_replay.py
  only the first level is summed: items = items // FAN_OUT => items = items // FAN_OUT // FAN_OUT
  a draw goes to the neighbour: side="right") - 1 => side="left") - 1

apex_acer/replay/pace.py: test_pace.py test_feed.py
  replayed batches cost nothing: self._credit -= steps => pass
  draws drift: self._behind += self._ratio * total - drawn => pass

apex_acer/learner/feed.py: test_feed.py test_feed_priorities.py test_learner_replay.py
  the replay ratio counts dummy steps: steps = np.zeros(self._fresh_in_batch) => slots, steps = slots, np.zeros(1)
  replay begins at once: self._held >= self._start or => True or
  fresh segments are given twice: self._fresh.popleft() for => self._fresh[0] for
  what is owed outlives a replay that is lost: keep_credit=fill is not None => keep_credit=True

apex_acer/learner/learner.py: test_learner.py test_learner_replay.py test_evaluations.py
  the version is one off: sequence, weights_version=self.updates) => sequence, weights_version=self.updates + 1)
  the lag has the wrong sign: lag = self.updates - batch.weights_version => lag = batch.weights_version - self.updates
  env_steps counts dummy steps: post.message.unroll.num_steps for => post.message.unroll.mask.size for
  frames are env steps: self.env_steps * self._spec.action_repeat => self.env_steps
  skipped updates are counted: self._skipped += 1 => self.updates += 1
  skipped updates never end the run: if self._skipped_in_a_row >= limit: => if False:
  evaluations are never due: self._config.evaluation.every): => 0):
  an unroll is answered twice: taken.append(post) => taken.append(post); self._answer(post)
  an empty batch moves the weights: if not output.num_samples: => if False:

apex_acer/learner/learner.py: test_resume.py
  wall time begins anew with a resume: return self._wall_before + => return

apex_acer/learner/optimizer.py: test_optimizer.py
  gradients are not clipped: (norm + 1e-6)).clamp(max=1.0) => (norm + 1e-6)).clamp(min=1.0, max=1.0)
  the schedule goes on below its end: max(0.0, 1 - env_steps / self._schedule_end) => (1 - env_steps / self._schedule_end)
  what is not finite is applied: finite = math.isfinite(norm + loss) => finite = True

apex_acer/learner/snapshots.py: test_evaluations.py
  the best is the newest: if self.best is None or score > self.best: => if True:
  the snapshot that is being played is forgotten: pending = self._due or self._playing => pending = self._due

apex_acer/protocol/inbox.py: test_inbox.py
  actions out of range reach ALE: unroll.action.max() >= self._num_actions => unroll.action.max() > self._num_actions
  a message is taken twice: if message.sequence != expected: => if message.sequence > expected:
  a predecessor is heard: self._incarnations.get(peer.name) == peer.incarnation => peer.name in self._incarnations
  another run is heard: if message.run_id != self._run_id: => if False:
  what is not finite is learned from: if not np.isfinite(array).all()), "") => if False), "")
  an actor may queue without end: >= self._max_waiting: => >= 10**9:

apex_acer/engines/local/transport.py: engines/local/test_transport.py
  the identity lacks the incarnation: IDENTITY, f"{peer.name}.{peer.incarnation}".encode() => IDENTITY, peer.name.encode()
  a peer lingers: self.socket.setsockopt(zmq.LINGER, 0) => self.socket.setsockopt(zmq.LINGER, -1)
  parts may have any size: MAXMSGSIZE, MAX_PART_BYTES => MAXMSGSIZE, -1
  a peer speaks for another: if name != f"{message.peer.name}.{message.peer.incarnation}".encode(): => if False:

apex_acer/engines/local/wire.py: engines/local/test_wire.py
  the bytes are not counted: if total != len(part): => if total > len(part):
  numbers are taken for truth: array.view(np.uint8).max() > 1 => array.view(np.uint8).max() > 255
  headers of any size are unpacked: or len(parts[0]) > MAX_HEADER_BYTES => or False

apex_acer/environments/vector.py: test_environments.py
  any autoreset mode will do: if mode != AutoresetMode.NEXT_STEP: => if mode is None:
  a lost life is a reset: self._ended & (frames != before) => self._ended
  evaluations end with a life: config.atari.life_loss and training => config.atari.life_loss
  actions are counted from 0: action + self.spec.first_action => action
  the observation may be anything: if values.dtype.kind != "f" or np.isfinite(values).all(): => if True:

apex_acer/actor/rollout.py: test_rollout.py
  dummy steps are not masked: step.truncated, ~step.reset => step.truncated, True
  a time limit is not told: step.terminated, step.truncated, ~ => step.terminated, False, ~
  the return goes on over a reset: np.where(reset, 0.0, self._return + reward) => self._return + reward
  the first episodes to end are counted: if share[episode.column]: => if sum(share):

apex_acer/networks/frames.py: test_frames.py test_policy.py
  the newest plane is first: planes[index : index + length] => planes[stack - 1 - index :][:length]
  planes of the episode before are shown: newest < stack - 1 - index => newest < -1

apex_acer/environments/wrappers.py: test_wrappers.py
  only the last reward of a repeated action counts: total += float(reward) => total = float(reward)

apex_acer/networks/normalisation.py: test_normalisation.py
  rewards of dummy steps are seen: torch.stack(returns)[mask] => torch.stack(returns).flatten()
  the spread of means is left out: delta.square() * share * (1 - share) => 0

apex_acer/storage/checkpoint.py: test_checkpoint.py
  a half-written checkpoint counts: (length, _) in facts.items() if sizes.get(name) != length]: => (length, _) in ()]:
  checksums are not compared: num != len(buffer) or _checksum(buffer) != self._files[name][1] => num != len(buffer)
  the checkpoint before goes first: before = _numbered(folder) => before = [shutil.rmtree(p) or p for p in _numbered(folder)]

apex_acer/learner/saving.py: test_learner.py test_resume.py test_checkpoint.py engines/test_serial.py
  the moments of the optimizer are lost: | self._optimizer.tensors() | {"rng => | {"rng
  the generator of torch is not restored: torch.set_rng_state(tensors["rng.torch"]) => pass

apex_acer/networks/weights.py: test_weights.py test_policy.py
  shapes are not compared: if given[name].shape != expected[name].shape: => if False:
  weights that are not finite are loaded: if not given[name].isfinite().all(): => if False:
  actors get the average, too: if name.startswith("network.")} => }

apex_acer/config/seeds.py: test_actor.py test_rollout.py test_config.py
  every actor has one seed: [seed, ROLES.index(role), *numbers] => [seed, ROLES.index(role)]

apex_acer/actor/evaluator.py: test_evaluations.py test_play.py engines/test_serial.py
  each evaluation plays other games: _config.seed, "evaluator") => _config.seed, "evaluator", self._played)

apex_acer/manager/supervisor.py: test_supervisor.py
  one restart too many: if deaths > settings.restarts: => if deaths > settings.restarts + 1:
  deaths of long ago count: if now - at < window_s] => if True]
  nobody hangs: if self._idle_s <= limit_s: => if True:
  a learner without a checkpoint is restarted: newest(self._run.folder) is None => False

apex_acer/manager/manager.py: test_manager.py engines/local/test_processes.py
  a run that was stopped has ended: "stopped" if result.reason.startswith("SIG") else "ended" => "ended"
  the second signal waits: return len(self._signals) > 1 => return False
  the learner is not told to save: self._supervisor.say(stop=reason) => pass

apex_acer/storage/history.py: test_history.py
  rates are of the whole run: made / seconds => row["env_steps"] / row["wall_s"]

apex_acer/config/run.py: test_config.py
  a replay may be smaller than a batch: self.replay.capacity >= each * self.learner.count => True
  a target needs no evaluations: self.evaluation.every > 0, => True,

apex_acer/config/checks.py: test_config.py
  infinity is a number: require(math.isfinite(value) and value > 0 => require(value > 0

apex_acer/manager/callbacks.py: test_callbacks.py
  rows are told again and again: self._file.seek(start + num_bytes) => self._file.seek(start)

apex_acer/manager/preparation.py: test_manager.py
  a run may write over another: if used: => if False:

apex_acer/system/files.py: chaos/test_slow_and_full.py chaos/test_saving.py
  files are written in place: beside = path.with_name(f".{path.name}.part") => beside = path

apex_acer/system/signals.py: test_signals.py
  a press that comes twice is two: if not again: => if True:

apex_acer/manager/result.py: engines/local/test_processes.py
  a run that was ended by a signal exits with 0: return 128 + signal.Signals[self.reason] if => return 0 if

apex_acer/engines/serial.py: engines/test_serial.py
  what waits at a checkpoint is learned from: self._learner.inbox.forget_peers() => pass

apex_acer/engines/local/child.py: engines/local/test_processes.py
  Ctrl-C ends the children at once: signal.signal(number, signal.SIG_IGN) => signal.signal(number, signal.SIG_DFL)
  actors stay with the learner that died: self.address = self._hear()["address"] => self._hear()

apex_acer/engines/local/processes.py: engines/local/test_processes.py
  the learner's successor begins anew: run.resume or peer.incarnation > 0 => run.resume
  a launcher that died is not replaced: if not self._launcher.alive: => if False:

apex_acer/engines/ray/cluster.py: engines/ray/test_processes.py
  Ray's workers give way to everybody: "RAY_worker_niceness": "0", => "RAY_worker_niceness": "15",
"""


class Fault(NamedTuple):
    """What is wrong, in which file, and which tests ought to see it."""

    file: str
    tests: list[str]
    what: str
    old: str
    new: str


def faults() -> Iterator[Fault]:
    """Those of `FAULTS`."""
    for paragraph in FAULTS.strip().split("\n\n"):
        (head, *lines) = paragraph.splitlines()
        file, _, tests = head.partition(": ")
        for line in lines:
            what, _, change = line.strip().partition(": ")
            old, _, new = change.partition(" => ")
            yield Fault(file, tests.split(), what, old, new)


@contextlib.contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    """A folder with what the tests need, on Python's path in place of this one; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in COPIED:
            shutil.copytree(ROOT / name, Path(folder) / name)
        shutil.copy(ROOT / "setup.cfg", folder)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = sys.path[0] = folder
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        yield Path(folder)


def first_failure(tests: list[str]) -> str:
    """The first of `tests` that fails in the copy one stands in, or else what pytest said; empty if all pass."""
    paths = [str(path) for name in tests for path in sorted(Path("tests").glob(name))]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *paths])
    failed = [line.split(" ")[1] for line in said.getvalue().splitlines() if line.startswith("FAILED ")]
    return failed[0] if failed else said.getvalue()[-300:] if code else ""


def without_a_fault(tests: list[str]) -> str:
    """What fails where nothing is wrong."""
    with copy_of_the_tree():
        return first_failure(tests)


def verdict(fault: Fault) -> str:
    """The test that noticed `fault`, or `NOT caught`."""
    with copy_of_the_tree() as folder:
        text = (folder / fault.file).read_text()
        if text.count(fault.old) != 1:
            return f"NOT caught: its text is there {text.count(fault.old)} times"
        (folder / fault.file).write_text(text.replace(fault.old, fault.new))
        failure = first_failure(fault.tests)
    return failure if failure.startswith("tests/") else f"NOT caught: {failure or 'all tests pass'}"


def main() -> int:
    """Prints what noticed each fault; 1 if one was not noticed, or a test fails without any."""
    asked = [fault for fault in faults() if all(word in f"{fault.file}: {fault.what}" for word in sys.argv[1:])]
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    missed = 0
    # each in a fork of its own, which has imported what takes time
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        broken = pool.apply_async(without_a_fault, [sorted({name for fault in asked for name in fault.tests})])
        for fault, said in zip(asked, pool.imap(verdict, asked), strict=True):
            missed += said.startswith("NOT")
            print(f"{fault.file}: {fault.what}: {said}", flush=True)
        print(f"{len(asked) - missed} of {len(asked)} faults are caught")
        if broken.get():
            print(f"fails without a fault, too: {broken.get()}")
    return int(missed > 0 or bool(broken.get()))


if __name__ == "__main__":
    sys.exit(main())
