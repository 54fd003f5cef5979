#!/usr/bin/env bash
# A run on several nodes of a SLURM cluster: Ray on each of them, learner and evaluator on the first.
#
#   source .venv/bin/activate                       # of a checkout that all nodes see, with the extra ray
#   sbatch launch/slurm.sh pong --actors 60         # what follows `apex-acer train`; options for sbatch go before the script
#   scancel --batch --signal=TERM JOB               # ends it early; like the end of its time, after saving
#   scontrol requeue JOB                            # goes on with it in a new allocation
#
# All nodes are of one kind. The run's folder is runs/slurm-JOB; Ray's logs are in /tmp/ray-JOB of each node.
#SBATCH --job-name=apex-acer
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
set -euo pipefail

usage='usage: sbatch launch/slurm.sh RUN --actors N [flags of apex-acer train]'
: "${1:?$usage}" "${SLURM_JOB_ID:?$usage}"
out=runs/slurm-$SLURM_JOB_ID
join_seconds=300

ray_pids=()
fail() { echo "slurm.sh: $1" >&2 && exit 1; }
# SLURM would end Ray with the job, but gives its processes no time to leave; here a process that does not leave in time is killed.
# shellcheck disable=SC2329  # called by the trap
stop_ray() {
    trap '' TERM
    for pid in "${ray_pids[@]}"; do
        kill "$pid" 2>/dev/null || continue
        timeout 40 tail --pid="$pid" --follow /dev/null || kill -KILL "$pid" || true
    done
}
trap stop_ray EXIT
trap 'exit 143' TERM

# Counts only nodes that live. `ray status` may take half a minute to say that there is no cluster yet.
await_nodes() {
    until (($(timeout 15 ray status 2>/dev/null | grep -c '^ [0-9]* node_') >= $1)); do
        kill -0 "${ray_pids[0]}" 2>/dev/null || fail "Ray has ended; the lines above say why"
        ((SECONDS < join_seconds)) || fail "not all of $1 nodes have joined Ray within $join_seconds s"
        sleep 1
    done
}

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
mapfile -t hosts <<<"$nodes"
head=${hosts[0]} # where this script runs
# Asked of the last node, because a node may know itself by a loopback address only.
ip=$(srun --nodes=1 --ntasks=1 --nodelist="${hosts[-1]}" getent ahostsv4 "$head" | awk 'NR == 1 { print $1 }') ||
    fail "node ${hosts[-1]} does not know the address of $head"
# Of the job's own, below those that the kernel gives out, so that two jobs on a node do not meet; Ray's others are free ones.
port=$((20000 + SLURM_JOB_ID % 6000 * 2))
export RAY_ADDRESS=$ip:$port # what `auto` means to Ray
# Nobody else on the cluster's network may command this Ray.
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
common=(--block --num-cpus="$SLURM_CPUS_PER_TASK" --temp-dir="/tmp/ray-$SLURM_JOB_ID")

ray start --head --node-ip-address="$ip" --port="$port" --ray-client-server-port=$((port + 1)) \
    --include-dashboard=false --disable-usage-stats "${common[@]}" &
ray_pids=($!)
await_nodes 1
if ((${#hosts[@]} > 1)); then
    srun --nodes=$((${#hosts[@]} - 1)) --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --exclude="$head" \
        --no-kill --kill-on-bad-exit=0 ray start --address="$RAY_ADDRESS" "${common[@]}" &
    ray_pids=($! "${ray_pids[@]}") # workers leave first
fi
await_nodes "${#hosts[@]}"

if [[ -e $out/checkpoint ]]; then
    apex-acer resume "$out" &
else
    [[ ! -e $out ]] || mv "$out" "$out-unsaved-${SLURM_RESTART_COUNT:-0}" # of this job, ended before it saved
    apex-acer train "$@" --engine ray --ray.address auto --out "$out" &
fi
run=$!
trap 'kill -TERM "$run"' TERM
code=0
# A signal ends `wait`, not the run: that saves first.
while kill -0 "$run" 2>/dev/null; do wait "$run" || true; done
wait "$run" || code=$?
exit "$code"
