#!/bin/sh
# Times the conversion of a 1.9 GB model to Megatron files (tp 4, pp 2) and back against `cp -r`, interleaved, on a hot
# cache, without and with waiting for the disk. Usage: sh examples/bench-convert.sh [FOLDER] [ROUNDS]; the folder needs 8 GB.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-$(mktemp -d)}
rounds=${2:-3}
cd "$root"
cargo build --release --locked -p ms-convert -p ms-ckpt --example make_model --bin ms-convert
convert=$root/target/release/ms-convert
mkdir -p "$work"
[ -d "$work/model" ] || "$root/target/release/examples/make_model" "$work/model"
cat "$work"/model/* > /dev/null

# Seconds that a command takes, and the most private memory it had, in MB.
measure() {
    name=$1
    shift
    python3 - "$name" "$@" <<'PY'
import subprocess, sys, threading, time
name, command = sys.argv[1], sys.argv[2:]
start = time.perf_counter()
process = subprocess.Popen(command)
most = 0
while process.poll() is None:
    try:
        lines = open(f"/proc/{process.pid}/status").read().splitlines()
        most = max([most] + [int(line.split()[1]) for line in lines if line.startswith("RssAnon")])
    except OSError:
        pass
    time.sleep(0.002)
if process.returncode:
    sys.exit(f"{name}: exit code {process.returncode}")
print(f"{name:28} {time.perf_counter() - start:6.2f} s  {most / 1024:6.1f} MB private")
PY
}

# Every command starts with nothing waiting to be written and with what it reads in memory: otherwise it pays for the
# one before it.
calm() {
    sync
    cat "$1"/* "$1"/*/*/* > /dev/null 2>&1 || true
}
export convert work
forth='"$convert" hf mcore --load "$work/model" --save "$work/mcore" --tp 4 --pp 2 -q'
back='"$convert" mcore hf --load "$work/mcore" --save "$work/back" -q'
measure "start-up" "$convert" --version

for round in $(seq "$rounds"); do
    rm -rf "$work/copy" "$work/mcore" "$work/back"
    calm "$work/model"
    measure "cp -r" cp -r "$work/model" "$work/copy"
    rm -rf "$work/copy"
    calm "$work/model"
    measure "cp -r, sync" sh -c 'cp -r "$work/model" "$work/copy" && sync'
    rm -rf "$work/copy"
    calm "$work/model"
    measure "hf mcore" sh -c "exec $forth --no-sync"
    rm -rf "$work/mcore"
    calm "$work/model"
    measure "hf mcore, synced" sh -c "exec $forth"
    calm "$work/mcore"
    measure "mcore hf" sh -c "exec $back --no-sync"
    rm -rf "$work/back"
    calm "$work/mcore"
    measure "mcore hf, synced" sh -c "exec $back"
    for file in "$work"/model/*; do
        cmp "$file" "$work/back/$(basename "$file")"
    done
done
