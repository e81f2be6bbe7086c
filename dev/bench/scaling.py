#!/usr/bin/env python3
"""How far several machines carry: a model of the time of a step, computed and not measured.

  scaling.py                       the tables, for 2 to 256 machines at 1 to 400 Gb/s
  scaling.py --check               compared with runs of two processes on this machine: its compute, and latency and bandwidth of messages
                                   between processes, are measured; step times are predicted and measured. A few minutes;
                                   needs make train_fastformer bench, mpirun and two quiet cores

A machine computes its micro-batches, then gradients are summed over all machines. What the model takes:

  compute    seconds of a micro-batch on one machine, measured by us (two cores); --times makes it faster
  bytes      4 per parameter, or 2 with --reduce bf16
  bandwidth  of a machine's link, each way; latency of a message
  ring       2 (n-1)/n bytes / bandwidth + 2 (n-1) latency
  tree       2 log2(n) (bytes / bandwidth + latency)
  direct     what dev/ranks/mpi.c does: the bytes of a ring, and 2 messages to each other machine and chunk, sent side by side
  lookups    rows of the token embedding that a last micro-batch looked up, on all machines together (at most all): their
             gradients are summed for themselves at the end, and nothing hides that
  hidden     of all else, as much as the backward pass after the classifier lasts: by FLOP, two thirds of compute but for the
             classifier's

What it leaves out: switches that are full, machines that are late, evaluation.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import typing


class Model(typing.NamedTuple):
    parameters: int
    vocabulary: int
    channels: int
    tokens: int  # per micro-batch
    seconds: float  # per micro-batch

    def behind(self):
        """Returns the seconds of the backward pass after the classifier."""
        return self.seconds * 2 / 3 * (1 - self.vocabulary * self.channels / self.parameters)


# Measured on two cores: dev/results/zen4/report.md, and run.sh's part `large` of an earlier report (Zen 5, 796 tokens/s).
MODELS = {
    "Fastformer, published": Model(5_476_352, 32_000, 128, 4096, 0.432),
    "GPT-2 124M": Model(124_439_808, 50_257, 768, 4096, 4096 / 796),
}
MACHINES = (2, 4, 8, 16, 32, 64, 128, 256)
LINKS = ((1, 50e-6), (10, 20e-6), (100, 3e-6), (400, 2e-6))  # Gb/s, seconds of latency
CHUNK = 16 * 16384  # elements, dev/ranks/mpi.c


def ring(n, size, bandwidth, latency):
    return 2 * (n - 1) / n * size / bandwidth + 2 * (n - 1) * latency


def tree(n, size, bandwidth, latency):
    return 2 * math.ceil(math.log2(n)) * (size / bandwidth + latency)


def direct(n, size, bandwidth, latency, width=4):
    chunks = math.ceil(size / width / max(CHUNK, 16384 * n))
    return 2 * (n - 1) / n * size / bandwidth + 2 * chunks * latency


def step_seconds(model, n, bandwidth, latency, batches=1, width=4, how=direct):
    total = how(n, width * model.parameters, bandwidth, latency)
    rows = min(model.vocabulary, n * model.tokens)
    lookups = how(n, width * rows * model.channels, bandwidth, latency)
    return batches * model.seconds + max(0.0, total - model.behind()) + lookups


def efficiency(model, n, *rest, batches=1, **more):
    return batches * model.seconds / step_seconds(model, n, *rest, batches=batches, **more)


def batches_for(model, n, bandwidth, latency, wanted, **more):
    """Returns the micro-batches per step and machine at which efficiency reaches `wanted`; None if
    more than 10,000."""
    batches = 1
    while efficiency(model, n, bandwidth, latency, batches=batches, **more) < wanted:
        batches = math.ceil(batches * 1.05) if batches > 20 else batches + 1
        if batches > 10_000:
            return None
    return batches


def table(name, times):
    model = MODELS[name]._replace(seconds=MODELS[name].seconds / times)
    machine = "two cores, as measured" if times == 1 else f"{times:g} times the two cores that were measured"
    print(f"\n### {name}, each machine {machine}\n")
    print("Tokens/s of n machines, of n times one machine's; in brackets the micro-batches per step and machine from which it is")
    print("90%, where one is not enough.\n")
    print("| machines | " + " | ".join(f"{g} Gb/s" for g, _ in LINKS) + " | 10 Gb/s, bf16 |")
    print("|---" * (len(LINKS) + 2) + "|")
    for n in MACHINES:
        cells = []
        for gigabits, latency, width in [(g, l, 4) for g, l in LINKS] + [(10, 20e-6, 2)]:
            share = efficiency(model, n, gigabits * 1e9 / 8, latency, width=width)
            needed = batches_for(model, n, gigabits * 1e9 / 8, latency, 0.9, width=width)
            cells.append(f"{share:.0%}" + ("" if share >= 0.9 else f" ({needed or 'more than 10,000'})"))
        print(f"| {n} | " + " | ".join(cells) + " |")


def algorithms():
    print("\n### Seconds of the sum alone, at 10 Gb/s\n")
    print("| | machines | ring | tree | direct (ours) |\n|---|---|---|---|---|")
    for name, model in MODELS.items():
        for n in (2, 16, 256):
            cells = [f"{how(n, 4 * model.parameters, 10e9 / 8, 20e-6):.3f}" for how in (ring, tree, direct)]
            print(f"| {name} | {n} | " + " | ".join(cells) + " |")


# ---- compared with runs on this machine

TRAINER = ["./train_fastformer", "--no-test", "-v", "1000000", "-L", "2", "-p", "fp32", "--log-every", "1000000"]
# (channels, tokens per micro-batch): from sums of gradients that take almost no time to sums that
# take longer than compute
SIZES = ((64, 512), (128, 512), (128, 128), (256, 128))
ALONE = {"OMP_NUM_THREADS": "1"}
TOGETHER = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "--bind-to", "core"]


def fit(points):
    """Fits the latency per message and the bytes/s each way to (elements, seconds), by least
    squares of relative errors."""
    rows = [(2 * math.ceil(n / CHUNK) / t, 4 * n / t) for n, t in points]
    aa, bb, ab = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (1, 1), (0, 1)))
    a, b = sum(r[0] for r in rows), sum(r[1] for r in rows)
    latency, inverse = (a * bb - b * ab) / (aa * bb - ab * ab), (b * aa - a * ab) / (aa * bb - ab * ab)
    return max(0.0, latency), 1 / inverse


def step_times(commands, directory, steps):
    """Runs the commands side by side. Returns the median seconds per step and the parameters of the
    first one."""
    runs = [subprocess.Popen(c, env={**os.environ, **ALONE}, stdout=subprocess.DEVNULL) for c in commands]
    for run in runs:
        if run.wait() != 0:
            sys.exit(f"failed: {' '.join(run.args)}")
    with open(directory + "/log.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    times = sorted(row["ms"] for row in rows if "ms" in row and row.get("step", 0) > steps // 4)
    return times[len(times) // 2] / 1e3, int(rows[0]["model"].split(", ")[1].split()[0])


def check():
    """Prints predicted and measured step times of two processes of one thread each, on two
    cores."""
    lines = subprocess.run(TOGETHER + ["build/float-onednn/bench/reduction"], check=True, capture_output=True, text=True).stdout
    points = [(int(n), float(t)) for n, t in (line.split() for line in lines.splitlines())]
    latency, bandwidth = fit(points)
    print(f"Messages between two processes: {latency * 1e6:.0f} us each, {bandwidth * 8e-9:.1f} Gb/s each way (sums of gradients "
          "alone, fitted):\n")
    print("| elements | measured, ms | computed, ms | |\n|---|---|---|---|")
    for n, t in points:
        computed = direct(2, 4 * n, bandwidth, latency)
        print(f"| {n:,} | {t * 1e3:.2f} | {computed * 1e3:.2f} | {computed / t - 1:+.0%} |")
    print("\nSteps of two processes of one thread; compute is that of two runs side by side that do not know of each other:\n")
    print("| channels | tokens per micro-batch | parameters | micro-batches per process | compute, ms | predicted step, ms | measured, ms | |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as top:
        for number, (channels, tokens) in enumerate(SIZES):
            for batches in (1, 4):
                steps = 40
                options = ["-C", str(channels), "-H", "4", "-b", "1", "-t", str(tokens), "-x", str(steps)]
                name = f"{top}/{number}-{batches}"
                alone = [TRAINER + options + ["-d", str(tokens * batches), "-o", f"{name}-{i}"] for i in range(2)]
                bound = [["taskset", "-c", str(i)] + command for i, command in enumerate(alone)]
                compute, parameters = step_times(bound, f"{name}-0", steps)
                together = TOGETHER + TRAINER + options + ["-d", str(2 * tokens * batches), "-o", name]
                measured, _ = step_times([together], name, steps)
                model = Model(parameters, 1024, channels, tokens, compute / batches)
                predicted = step_seconds(model, 2, bandwidth, latency, batches)
                print(f"| {channels} | {tokens} | {parameters:,} | {batches} | {compute * 1e3:.1f} | {predicted * 1e3:.1f} | "
                      f"{measured * 1e3:.1f} | {predicted / measured - 1:+.0%} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--times", type=float, nargs="+", default=(1, 32), help="how much faster a machine is")
    arguments = parser.parse_args()
    if arguments.check:
        check()
        return
    print("# Several machines, computed\n")
    print("**Computed by `dev/bench/scaling.py`, not measured**: this has not been run on more than one machine yet. What goes in,")
    print("and what is left out, is at its top.")
    for name in MODELS:
        for times in arguments.times:
            table(name, times)
    algorithms()


main()
