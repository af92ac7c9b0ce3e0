#!/usr/bin/env python3
"""Runs the same work on the engine and on Apache Flink in interleaved pairs.

Fetches Apache Flink from PyPI, compiles `src/*.java`, writes the input, checks
that both give the same rows, and prints three ratios, times with their spread:

cold      wall time of the whole process on the small input
marginal  wall and CPU time per event between the small and the large input,
          which leaves start-up and warm-up out
memory    peak resident memory on the large input, Flink's least over our greatest

Needs `make build`, Java 17 and pip. Usage: compare.py [--fetch-only] [--pairs N] [--heap MB] [--checkpoints MS] [QUERY ...]
"""

import argparse
import glob
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORK = os.path.join(ROOT, "target", "bench-flink")
FLINK_VERSION = "2.3.0"
SMALL = 2_000_000
LARGE = 10_000_000
PARALLELISM = 2
WORDS_PER_LINE = 10
HEAPS_MB = [128, 192, 256, 384, 512, 1024, 2048, 4096]
STATELESS = ["q0", "q1", "q2"]
STATEFUL = ["q3", "q4", "q5", "q7", "q8", "q9", "q11", "q15", "q17", "q18", "q19", "q20"]
# Flink's side has these also with its window operator, as its users write them.
WINDOWED = ["q5", "q7", "q8", "q11"]
QUERIES = STATELESS + STATEFUL + ["word-count"]
# Milliseconds between two checkpoints of both sides; none: no checkpoints.
CHECKPOINTS = None
OPENED = ["java.base/java.util", "java.base/java.lang", "java.base/java.time"]


def run(command, timeout=900):
    """Runs a command; returns wall seconds, CPU seconds, peak bytes, exit code. One that takes
    more than `timeout` seconds is killed."""
    with open(os.path.join(WORK, "last-run.log"), "wb") as log:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        alarm = threading.Timer(timeout, process.kill)
        alarm.start()
        _, status, usage = os.wait4(process.pid, 0)
        alarm.cancel()
        wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, process.returncode


def fetch_flink():
    """Downloads Flink's jars once."""
    lib = os.path.join(WORK, "lib")
    if not glob.glob(os.path.join(lib, "flink-dist-*.jar")):
        print(f"fetching apache-flink-libraries {FLINK_VERSION} from PyPI (330 MB, once)", flush=True)
        wheels = os.path.join(WORK, "wheel")
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", wheels,
                    f"apache-flink-libraries=={FLINK_VERSION}"]
        if subprocess.run(download).returncode != 0:
            sys.exit(f"Flink could not be fetched; the lines above say why. It was tried by: {' '.join(download)}")
        os.makedirs(lib, exist_ok=True)
        [wheel] = glob.glob(os.path.join(wheels, "*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if "/lib/" in name and name.endswith(".jar"):
                    with archive.open(name) as source, open(os.path.join(lib, os.path.basename(name)), "wb") as target:
                        shutil.copyfileobj(source, target)
        shutil.rmtree(wheels)


def compile_peer():
    lib = os.path.join(WORK, "lib")
    classes = os.path.join(WORK, "classes")
    sources = glob.glob(os.path.join(ROOT, "benches", "flink", "src", "*.java"))
    subprocess.run(["javac", "-nowarn", "-cp", os.path.join(lib, "*"), "-d", classes, *sources], check=True)


def kind_of(query):
    """The kind of input of a query. Queries with event time or state read files that cover the
    same time: of two that follow one another, the windows of the second would stay open until
    the first has ended."""
    if query == "word-count":
        return "words"
    return "nexmark" if query in STATELESS else "nexmark-dealt"


def write_input(kind, count):
    """Writes `count` events (bids and the like, or words) in as many files as subtasks; returns the files."""
    prefix = os.path.join(WORK, f"{kind}-{count}")
    files = [f"{prefix}-{part}" for part in range(PARALLELISM)]
    if not all(os.path.exists(file) for file in files):
        print(f"writing {count} {kind} events", flush=True)
        generate = os.path.join(ROOT, "target", "release", "generate")
        lines = count // WORDS_PER_LINE if kind == "words" else count
        subprocess.run([generate, kind, str(lines), str(PARALLELISM), prefix + ".partial"], check=True)
        for part, file in enumerate(files):
            os.rename(f"{prefix}.partial-{part}", file)
    return files


def flink_command(query, files, output, heap_mb):
    opened = [flag for package in OPENED for flag in ("--add-opens", f"{package}=ALL-UNNAMED")]
    classpath = os.path.join(WORK, "classes") + ":" + os.path.join(WORK, "lib", "*")
    checkpoints = [f"-Dcheckpoints={CHECKPOINTS}", f"-Dcheckpoints.dir=file://{fresh('flink-checkpoints')}"]
    return ["java", f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", "-XX:+UseParallelGC", *opened, "-cp", classpath,
            *(checkpoints if CHECKPOINTS else []), "Peer", query, str(PARALLELISM), output, *files]


def engine_command(query, files, output):
    pattern = files[0][:-1] + "[0-9]"
    engine = os.path.join(ROOT, "target", "release", "engine")
    plugins = os.path.join(ROOT, "target", "plugins")
    if query == "word-count":
        program = [os.path.join(plugins, "word_count.wasm")]
    else:
        program = [os.path.join(plugins, "nexmark.wasm"), "--query", query]
    checkpoints = ["-D", f"execution.checkpointing.interval={CHECKPOINTS} ms",
                   "-D", f"execution.checkpointing.dir={fresh('engine-checkpoints')}"]
    return [engine, "submit", "-p", str(PARALLELISM), *(checkpoints if CHECKPOINTS else []), *program, "--input", pattern, "--output", output]


def fresh(name):
    path = os.path.join(WORK, "out", name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def checked(command, what):
    result = run(command)
    if result[3] != 0:
        with open(os.path.join(WORK, "last-run.log"), errors="replace") as log:
            sys.exit(f"{what} failed with exit code {result[3]}:\n" + log.read()[-4000:])
    return result


def digest(directory):
    """Number and digest of the sorted rows of all files of a directory."""
    command = f"cat '{directory}'/* | LC_ALL=C sort | tee >(wc -l >&2) | sha256sum"
    result = subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True)
    return result.stdout.split()[0], int(result.stderr.strip() or 0)


def best_of_flink(query, files, heaps):
    """The fastest way that Flink's side has for a query, and the smallest of the heaps (MB)
    whose run takes at most 1.1 times the wall time of its best."""
    found = []
    for way in [query, f"{query}-window"] if query in WINDOWED else [query]:
        walls = {}
        # From the largest on: one that is too small may collect garbage for ever.
        for heap in reversed(heaps):
            timeout = 3 * min(walls.values()) if walls else 900
            wall, _, _, code = run(flink_command(way, files, fresh("flink"), heap), timeout)
            if code != 0:
                break
            walls[heap] = wall
        if not walls:
            sys.exit(f"the peer does not run {way} with a heap of {heaps[-1]} MB; see {WORK}/last-run.log")
        best = min(walls.values())
        found.append((best, way, min(heap for heap, wall in walls.items() if wall <= 1.1 * best)))
    _, way, heap = min(found)
    return way, heap


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def compare(query, pairs, heaps):
    kind = kind_of(query)
    small, large = write_input(kind, SMALL), write_input(kind, LARGE)
    way, heap = best_of_flink(query, large, heaps)
    checked(engine_command(query, small, fresh("engine")), "the engine")
    checked(flink_command(way, small, fresh("flink"), heap), "Flink")
    ours, theirs = digest(os.path.join(WORK, "out", "engine")), digest(os.path.join(WORK, "out", "flink"))
    if ours != theirs:
        sys.exit(f"{query}: the engine wrote {ours[1]} rows ({ours[0]}), Flink {theirs[1]} ({theirs[0]})")
    runs = []
    for pair in range(pairs):
        measured = {}
        order = ["engine", "flink"] if pair % 2 == 0 else ["flink", "engine"]
        for size, files in (("small", small), ("large", large)):
            for who in order:
                output = fresh(who)
                command = (engine_command(query, files, output) if who == "engine"
                           else flink_command(way, files, output, heap))
                measured[who, size] = checked(command, who)
        runs.append(measured)
        print(f"  {query} pair {pair + 1} of {pairs} done", file=sys.stderr, flush=True)

    def marginal(measured, who, figure):
        return (measured[who, "large"][figure] - measured[who, "small"][figure]) / (LARGE - SMALL)

    print(f"{query}: {ours[1]} equal rows; Flink runs {way} with a heap of {heap} MB; median (least to greatest) of {pairs} pairs")
    for size in ("small", "large"):
        print(f"  wall seconds, {size}:  engine {spread([r['engine', size][0] for r in runs])}"
              f"   Flink {spread([r['flink', size][0] for r in runs])}")
    for name, figure in (("wall", 0), ("CPU", 1)):
        print(f"  marginal {name}, µs an event:  engine "
              f"{spread([1e6 * marginal(r, 'engine', figure) for r in runs], 3)}   Flink "
              f"{spread([1e6 * marginal(r, 'flink', figure) for r in runs], 3)}")
    memory = {"engine": max(r["engine", "large"][2] for r in runs), "flink": min(r["flink", "large"][2] for r in runs)}
    print(f"  peak memory, MB:  engine {memory['engine'] / 1e6:.0f}   Flink {memory['flink'] / 1e6:.0f}")
    print(f"  COLD {spread([r['flink', 'small'][0] / r['engine', 'small'][0] for r in runs])}"
          f"   MARGINAL wall {spread([marginal(r, 'flink', 0) / marginal(r, 'engine', 0) for r in runs])}"
          f"   CPU {spread([marginal(r, 'flink', 1) / marginal(r, 'engine', 1) for r in runs])}"
          f"   MEMORY {memory['flink'] / memory['engine']:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--heap", type=int, metavar="MB", help="Flink's heap, instead of a search for the smallest")
    parser.add_argument("--checkpoints", type=int, metavar="MS", help="both take checkpoints as often as this and write through their file sinks of exactly once")
    parser.add_argument("--fetch-only", action="store_true", help="fetch Flink's jars and measure nothing")
    parser.add_argument("queries", nargs="*", default=QUERIES, metavar="QUERY")
    arguments = parser.parse_args()
    unknown = [query for query in arguments.queries if query not in QUERIES]
    if unknown:
        parser.error(f"unknown query {unknown[0]}: use {', '.join(QUERIES)}")
    global CHECKPOINTS
    CHECKPOINTS = arguments.checkpoints
    missing = [] if arguments.fetch_only else [tool for tool in ("java", "javac") if not shutil.which(tool)]
    if missing:
        sys.exit(f"there is no {' and no '.join(missing)}: install a JDK 17, for example `apt-get install openjdk-17-jdk-headless`")
    os.makedirs(WORK, exist_ok=True)
    fetch_flink()
    if arguments.fetch_only:
        return
    compile_peer()
    for query in arguments.queries:
        compare(query, arguments.pairs, [arguments.heap] if arguments.heap else HEAPS_MB)


if __name__ == "__main__":
    main()
