#!/usr/bin/env bash
# Shows that Apache Flink's own command line works against REST: starts a cluster on
# a free port, submits jobs that do not end, and has Flink's CliFrontend list one, take
# a savepoint of it and stop it with another, and cancel the other one. Needs `make build`, Java 17 and, the first time, pip, which fetches
# Flink's jars (330 MB). Usage: flink-cli.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

engine=target/release/engine
lib=target/bench-flink/lib
benches/flink/compare.py --fetch-only
work=$(mktemp -d)
cluster=
clean_up() {
    if [ -n "$cluster" ]; then
        kill "$cluster" 2>/dev/null || true
        wait "$cluster" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap clean_up EXIT

fail() {
    echo "error: $1" >&2
    exit 1
}

mkfifo "$work/cluster"
$engine cluster --port 0 --allow-write "$work/savepoints" --output json --log-level error >"$work/cluster" 2>"$work/log" &
cluster=$!
read -r served <"$work/cluster" || { cat "$work/log" >&2; fail 'the cluster did not start'; }
url=$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["rest-url"])' "$served")

# Prints the state of a job.
state_of() {
    $engine list --jobmanager "$url" -a --output json |
        python3 -c 'import json, sys; print({job["jid"]: job["state"] for job in json.load(sys.stdin)}[sys.argv[1]])' "$1"
}

# Prints the id of a job that has begun to run.
submit() {
    local id
    id=$($engine submit --jobmanager "$url" --detached -D execution.checkpointing.interval=1s \
        target/plugins/nexmark.wasm --query q1 --events 1000000000 --rate 100)
    for _ in $(seq 100); do
        # A checkpoint needs all tasks.
        $engine checkpoints --jobmanager "$url" "$id" | grep -q COMPLETED && break
        sleep 0.1
    done
    echo "$id"
}
job=$(submit)

echo 'jobmanager.rpc.address: localhost' >"$work/config.yaml"
# Flink looks for plugins of its own, and would take ours for them.
mkdir "$work/plugins"
flink() {
    FLINK_CONF_DIR=$work FLINK_PLUGINS_DIR=$work/plugins java --add-opens java.base/java.util=ALL-UNNAMED -cp "$lib/*" \
        org.apache.flink.client.cli.CliFrontend "$1" -m "${url#http://}" "${@:2}"
}

# check TEXT ACTION [ARGUMENT ...]: Flink's command line must succeed and print the text.
check() {
    local text=$1
    shift
    echo "--- flink $*"
    flink "$@" >"$work/answer" 2>&1 || { cat "$work/answer" >&2; fail "flink $1 failed"; }
    cat "$work/answer"
    grep -qF -- "$text" "$work/answer" || fail "flink $1 does not print \"$text\""
}

check "$job : " list -a
grep -qF '(RUNNING)' "$work/answer" || fail 'flink list does not show the job as RUNNING'
check "Cancelled job $job" cancel "$job"
for _ in $(seq 100); do
    state=$(state_of "$job")
    [ "$state" = CANCELED ] && break
    sleep 0.1
done
[ "$state" = CANCELED ] || fail "the job is $state after flink cancel"
check '(CANCELED)' list -a

job=$(submit)
check "Savepoint completed. Path: $work/savepoints/savepoint-" savepoint "$job" "$work/savepoints"
check "Savepoint completed. Path: $work/savepoints/savepoint-" stop --savepointPath "$work/savepoints" "$job"
state=$(state_of "$job")
[ "$state" = FINISHED ] || fail "the job is $state after flink stop"
for savepoint in "$work"/savepoints/savepoint-*; do
    $engine savepoint inspect "$savepoint" >/dev/null || fail "$savepoint cannot be read"
done
echo "Apache Flink's command line listed, cancelled and stopped jobs, and took savepoints"
