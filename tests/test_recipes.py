"""The recipes for clusters in `launch/`: files of Ray's cluster launcher, and a SLURM job whose nodes are this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from apex_acer.cli.training import parse_train
from apex_acer.config.runfile import presets
from tests import ROOT
from tests.programs import eventually
from tests.test_packaging import call, tool

LAUNCH = ROOT / "launch"
CLUSTERS = sorted(LAUNCH.glob("ray-*.yaml"))
# Its network is a loopback of its own, so that nothing of it listens where others could reach it.
ALONE = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
SCONTROL = "#!/bin/sh\ntest $1 = show && test $2 = hostnames && echo $3 | tr , '\\n'\n"
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
GETENT = "#!/bin/sh\necho $2 STREAM\n"  # the real one knows no IPv4 address where there is only a loopback
# A Ray that has started and knows one node, whatever happens.
RAY_OF_ONE = "#!/bin/bash\nif [[ $1 = status ]]; then echo ' 1 node_0'; else exec -a \"$*\" sleep 60; fi\n"
# In place of a run: says how it was called and whom Ray knows, and saves when it is told to end.
PROGRAM = f"""#!{sys.executable}
import pathlib, signal, sys, time, ray
print("called:", *sys.argv[1:], flush=True)
ray.init(address="auto", log_to_driver=False)
def save(*_):
    time.sleep(2)
    pathlib.Path(sys.argv[-1], "checkpoint").mkdir(parents=True)
    sys.exit(9)
signal.signal(signal.SIGTERM, save)
print("nodes:", *sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]), flush=True)
while True:
    signal.pause()
"""


def _not_ray() -> dict[str, str]:
    """The environment without what other tests have set for a Ray of their own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


class Job:
    """`slurm.sh` as SLURM would run it, on nodes that are addresses of this machine."""

    def __init__(self, folder: Path, **programs: str) -> None:
        """`programs` are scripts that are found before all others."""
        self.id = 10_000_000 + os.getpid()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        programs = {"scontrol": SCONTROL, "srun": SRUN, "getent": GETENT, "apex-acer": PROGRAM, **programs}
        for name, text in programs.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def start(self, *arguments: str, nodes: str = "127.0.0.2,127.0.0.1", script: Path = LAUNCH / "slurm.sh") -> None:
        """What it prints is added to what it printed before."""
        path = f"{self._folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        job = {"SLURM_JOB_ID": str(self.id), "SLURM_JOB_NODELIST": nodes, "SLURM_CPUS_PER_TASK": "1"}
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [*ALONE, "bash", script, *arguments],
                env={**_not_ray(), "PATH": path, **job},
                stdout=output,
                stderr=output,
                cwd=self._folder,
            )

    @property
    def output(self) -> str:
        return (self._folder / "output").read_text()

    def wait_for(self, text: str, within_s: float = 120.0) -> None:
        """Until it has printed `text`."""
        assert self._process is not None
        process = self._process
        eventually(lambda: text in self.output or process.poll() is not None, within_s)
        assert text in self.output, self.output

    def terminate(self) -> None:
        """As SLURM does before the end of its time: the signal goes to the script alone."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def ended(self, within_s: float = 120.0) -> int:
        """Its exit code; it must leave no process behind."""
        assert self._process is not None
        code = self._process.wait(within_s)
        assert not self.processes(), self.output
        return code

    def processes(self) -> dict[int, str]:
        """All that have this job's number in their environment, by process id."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"SLURM_JOB_ID={self.id}\0".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        return found

    def kill(self) -> None:
        """Whatever is left of it."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        shutil.rmtree(f"/tmp/ray-{self.id}", ignore_errors=True)


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes jobs with programs of their own; nothing of them is left after the test."""
    if not shutil.which("unshare") or subprocess.run([*ALONE, "true"], capture_output=True, timeout=10).returncode:
        pytest.skip("no network of its own can be made here")
    jobs: list[Job] = []

    def make(**programs: str) -> Job:
        jobs.append(Job(tmp_path, **programs))
        return jobs[-1]

    yield make
    for job in jobs:
        job.kill()


@pytest.mark.slow
def test_a_job_trains_on_all_nodes_and_saves_at_the_end_of_its_time(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job()
    out = f"runs/slurm-{job.id}"
    job.start("pong", "--actors", "2")
    job.wait_for("nodes:")
    assert f"called: train pong --actors 2 --engine ray --ray.address auto --out {out}\n" in job.output
    assert "nodes: 127.0.0.1 127.0.0.2\n" in job.output
    job.terminate()
    assert job.ended() == 9
    assert (tmp_path / out / "checkpoint").exists()


def test_a_job_that_is_requeued_resumes_or_begins_again_if_nothing_was_saved(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job(ray=RAY_OF_ONE, **{"apex-acer": "#!/bin/sh\necho $*\nexit 3\n"})
    rest = tmp_path / f"runs/slurm-{job.id}"
    (rest / "checkpoint").mkdir(parents=True)
    job.start("pong", nodes="127.0.0.2")
    assert job.ended() == 3
    assert f"resume runs/slurm-{job.id}\n" in job.output
    assert "train" not in job.output
    (rest / "checkpoint").rename(rest / "tb")
    job.start("pong", nodes="127.0.0.2")
    assert job.ended() == 3
    assert "train pong --engine ray" in job.output
    assert [path.name for path in rest.parent.iterdir()] == [f"{rest.name}-unsaved-0"]


@pytest.mark.parametrize(
    ("ray", "says"),
    [
        ("#!/bin/sh\ntest $1 = status || exec sleep 60\n", "not all of 1 nodes have joined Ray within 2 s"),
        ("#!/bin/sh\necho no memory\nexit 1\n", "Ray has ended; the lines above say why"),
    ],
)
def test_a_job_whose_ray_does_not_start_ends_and_says_so(
    ray: str, says: str, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    hasty = tmp_path / "hasty.sh"
    hasty.write_text((LAUNCH / "slurm.sh").read_text().replace("join_seconds=300", "join_seconds=2"))
    job = make_job(ray=ray)
    job.start("pong", script=hasty)
    assert job.ended(20) == 1
    assert says in job.output


def test_a_job_that_is_ended_while_it_waits_for_its_nodes_stops_ray(make_job: Callable[..., Job]) -> None:
    job = make_job(ray=RAY_OF_ONE)
    job.start("pong")
    eventually(lambda: "start --address" in str(job.processes()), 20)
    job.terminate()
    assert job.ended(20) == 143


def test_the_script_has_no_faults_and_two_jobs_on_a_node_have_other_ports_and_no_run_is_said(
    make_job: Callable[..., Job],
) -> None:
    job = make_job()
    job.start()
    assert job.ended(10) != 0
    assert "usage: sbatch launch/slurm.sh RUN --actors N" in job.output
    assert not call(tool("shellcheck"), LAUNCH / "slurm.sh")
    (rule,) = re.findall(r"^port=\$\(\((.*)\)\)$", (LAUNCH / "slurm.sh").read_text(), re.MULTILINE)
    rules = [f"echo $(({rule.replace('SLURM_JOB_ID', job)}))" for job in ("5999", "6000", "6001")]
    assert call("bash", "-c", ";".join(rules)).split() == ["31998", "20000", "20002"]  # and the next one, each


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.name)
def test_ray_takes_a_cluster_s_file_that_names_a_run_and_copies_the_checkout(path: Path) -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    config = util.prepare_config(read(path))
    util.validate_config(config)
    assert config["available_node_types"][config["head_node_type"]] is not None
    commands = [config[f"{kind}_setup_commands"] for kind in ("head", "worker")]
    assert all("'.[ray]'" in command[-1] for command in commands)
    assert "ray-wheels" not in str(config)  # Ray's defaults install one of its nightly builds
    with pytest.raises(jsonschema.ValidationError, match="worker_nods"):
        util.validate_config({**config, "worker_nods": 3})
    # what was made in the checkout stays here
    made = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.endswith("/")}
    caches = {name for name in made if name.endswith("_cache") or name == ".hypothesis"}
    assert read(path)["file_mounts"] == {"~/apex-acer-source": "."}
    assert set(read(path)["rsync_exclude"]) == (made - caches) | {".git"}
    (version,) = re.findall(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    images = [config.get("docker", {}).get(kind, "") for kind in ("head_image", "worker_image")]
    assert all(image.startswith(f"rayproject/ray:{version}-py311-") for image in images if image)
    (command,) = re.findall(r"apex-acer train ([^']+)'", path.read_text())
    run, _ = parse_train(shlex.split(command))
    assert (run.engine, run.ray.address) == ("ray", "auto")


def test_machines_find_the_ray_that_is_to_be_stopped(tmp_path: Path) -> None:
    """`ray down` says `ray stop` to a login shell, whatever the file's own commands are."""
    (setup,) = (line for line in read(LAUNCH / "ray-on-premise.yaml")["setup_commands"] if ".bashrc" in line)
    program = tmp_path / "apex-acer/bin/ray"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    (tmp_path / ".bashrc").touch()
    for _ in range(2):
        call("env", f"HOME={tmp_path}", "bash", "-c", setup)
    shell = ["setsid", "bash", "--login", "-c", "-i", "source ~/.bashrc; command -v ray"]  # has no terminal to take
    assert str(program) in call("env", f"HOME={tmp_path}", *shell).splitlines()
    assert len((tmp_path / ".bashrc").read_text().splitlines()) == 1


def read(path: Path) -> dict[str, Any]:
    return dict(YAML(typ="safe").load(path))


def test_recipes_are_no_presets() -> None:
    assert CLUSTERS
    assert {path.stem for path in LAUNCH.glob("*.toml")} == set(presets())
