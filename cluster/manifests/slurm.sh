#!/usr/bin/env bash
# raysim on Slurm: one Ray cluster for the job, on all of its nodes.
#
# Edit: the #SBATCH lines, `source` (an environment with raysim on storage that
# all nodes see) and RAYSIM_DATA (data sets, likewise).
#
# Start; what follows the script is what you would type after `raysim`:
#   sbatch slurm.sh run mnist-million --profile 8x8-gpus out=/shared/runs/first
#   squeue --me; tail -f raysim-JOB.log
# A job per seed, five at most at a time, each with as many nodes as below:
#   sbatch --array=0-9%5 slurm.sh run mnist-million out=/shared/runs/seed-%a seed=%a
# Two minutes before its time is up the run checkpoints and stops, and so does
# it on `scancel --signal=TERM --batch JOB`; the same sbatch line goes on.
#
# The job makes a token of its own, which only you can read, and every request
# to its cluster carries it. The dashboard listens on the first node's own
# 127.0.0.1 alone; the log names its port: ssh -L 8265:127.0.0.1:PORT NODE

#SBATCH --job-name=raysim
#SBATCH --output=raysim-%j.log
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
##SBATCH --partition=PARTITION
##SBATCH --account=ACCOUNT

set -euo pipefail

# shellcheck source=/dev/null
source "${RAYSIM_VENV:-$HOME/venv}/bin/activate"
export RAYSIM_DATA="${RAYSIM_DATA:-/shared/raysim-data}"

umask 077
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH="$HOME/.raysim-token-$SLURM_JOB_ID"
python3 -c 'import secrets; print(secrets.token_hex(32))' > "$RAY_AUTH_TOKEN_PATH"
trap 'kill $(jobs -p) 2> /dev/null || true; wait; rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

# Ports and folders of its own, as another job may be on the same machine.
port=$((20000 + SLURM_JOB_ID % 3000 * 3))
dashboard_port=$((port + 1))
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
on_node=(srun --nodes=1 --ntasks=1 --overlap --cpus-per-task="$SLURM_CPUS_PER_TASK")
ray_start=(ray start --block --disable-usage-stats --num-cpus="$SLURM_CPUS_PER_TASK")
head_ips=$("${on_node[@]}" --nodelist="${nodes[0]}" hostname --ip-address)
head_ip=${head_ips%% *}

"${on_node[@]}" --nodelist="${nodes[0]}" "${ray_start[@]}" --head \
  --node-ip-address="$head_ip" --port="$port" --temp-dir="/tmp/raysim-$SLURM_JOB_ID" \
  --ray-client-server-port=$((port + 2)) --dashboard-host=127.0.0.1 \
  --dashboard-port="$dashboard_port" &
until ray health-check --address "$head_ip:$port" > /dev/null 2>&1; do
  kill -0 $! 2> /dev/null || { echo "Ray did not start on ${nodes[0]}" >&2; exit 1; }
  sleep 2
done
for node in "${nodes[@]:1}"; do
  "${on_node[@]}" --nodelist="$node" "${ray_start[@]}" --address="$head_ip:$port" &
done
export RAY_ADDRESS="$head_ip:$port"
python3 - "${#nodes[@]}" << 'PYTHON'
import sys
import time

import ray

ray.init(logging_level="ERROR")
deadline = time.monotonic() + 300
while (joined := sum(node["Alive"] for node in ray.nodes())) < int(sys.argv[1]):
    if time.monotonic() > deadline:
        sys.exit(f"{joined} of {sys.argv[1]} nodes joined within 300 s")
    time.sleep(1)
PYTHON
echo "Ray at $RAY_ADDRESS, ${#nodes[@]} nodes; dashboard at ${nodes[0]}, port $dashboard_port"

raysim "${@//%a/${SLURM_ARRAY_TASK_ID:-%a}}" &
run=$!
trap 'kill -TERM "$run"' TERM
code=0
wait "$run" || code=$?
if kill -0 "$run" 2> /dev/null; then # the signal interrupted the wait, not the run
  code=0
  wait "$run" || code=$?
fi
exit "$code"
