#!/usr/bin/env python3
"""What exactly-once checkpoints each second cost: CPU seconds of Nexmark q5 on ten million
events with them and without, in interleaved pairs, and the ratio with its 95 % interval.

Needs `make build`. Usage: checkpoint_cost.py [--pairs N] [--query QUERY]
"""

import argparse
import glob
import math
import os
import shutil
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = os.path.join(ROOT, "target", "bench-checkpoints")
EVENTS = 10_000_000
PARALLELISM = 2
# Student's t for 95 % by degrees of freedom, up to those of 20 pairs.
STUDENT = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
           2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093]


def inputs():
    """Events in time order in as many files as subtasks; those of `make bench-flink` if they are there."""
    others = sorted(glob.glob(os.path.join(ROOT, "target", "bench-flink", f"nexmark-dealt-{EVENTS}-[0-9]")))
    prefix = others[0][:-1] if others else os.path.join(WORK, "events-")
    if not glob.glob(prefix + "[0-9]"):
        generate = os.path.join(ROOT, "target", "release", "generate")
        subprocess.run([generate, "nexmark-dealt", str(EVENTS), str(PARALLELISM), prefix + "partial"], check=True)
        for part in range(PARALLELISM):
            os.rename(f"{prefix}partial-{part}", f"{prefix}{part}")
    for file in glob.glob(prefix + "[0-9]"):
        with open(file, "rb") as warm:
            while warm.read(1 << 24):
                pass
    return prefix + "[0-9]"


def cpu_seconds(query, pattern, has_checkpoints):
    output, checkpoints = (os.path.join(WORK, name) for name in ("rows", "checkpoints"))
    for directory in (output, checkpoints):
        shutil.rmtree(directory, ignore_errors=True)
    settings = ["-D", "execution.checkpointing.interval=1 s", "-D", f"execution.checkpointing.dir={checkpoints}"]
    command = [os.path.join(ROOT, "target", "release", "engine"), "submit", "-p", str(PARALLELISM),
               *(settings if has_checkpoints else []), os.path.join(ROOT, "target", "plugins", "nexmark.wasm"),
               "--query", query, "--input", pattern, "--output", output]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{' '.join(command)} failed:\n{said}")
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, choices=range(2, len(STUDENT) + 2), default=11, metavar="N")
    parser.add_argument("--query", default="q5")
    arguments = parser.parse_args()
    os.makedirs(WORK, exist_ok=True)
    pattern = inputs()
    cpu_seconds(arguments.query, pattern, False)
    ratios = []
    for _ in range(arguments.pairs):
        without, having = (cpu_seconds(arguments.query, pattern, has) for has in (False, True))
        ratios.append(having / without)
        print(f"{arguments.query}: {without:.2f} s without, {having:.2f} s with checkpoints, ratio {ratios[-1]:.3f}", flush=True)
    mean = statistics.mean(ratios)
    half = STUDENT[len(ratios) - 2] * statistics.stdev(ratios) / math.sqrt(len(ratios))
    print(f"{arguments.query}, {len(ratios)} pairs: {100 * (mean - 1):.1f} % more CPU, "
          f"95 % interval {100 * (mean - half - 1):.1f} to {100 * (mean + half - 1):.1f} %")


if __name__ == "__main__":
    main()
