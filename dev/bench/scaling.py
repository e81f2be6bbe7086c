#!/usr/bin/env python3
"""How far several machines carry: a model of the time of a step, computed and not measured.

  scaling.py                       the tables, for 2 to 256 machines at 1 to 400 Gb/s
  scaling.py --check DIR...        beside runs: each directory's log.jsonl (training with MPI) against the model

A machine computes its micro-batches, then gradients are summed over all machines. What the model takes:

  compute    seconds of a micro-batch on one machine, measured by us (two cores); --times makes it faster
  bytes      4 a parameter, or 2 with --reduce bf16
  bandwidth  of a machine's link, each way; latency of a message
  ring       2 (n-1)/n bytes / bandwidth + 2 (n-1) latency
  tree       2 log2(n) (bytes / bandwidth + latency)
  direct     what dev/ranks/mpi.c does: the bytes of a ring, and 2 messages to each other machine and chunk, sent side by side
  hidden     the share of the sum that is through before the backward pass ends: what is not in the token
             embedding, which is final at its end, as far as the backward pass (two thirds of compute) lasts

What it leaves out: switches that are full, machines that are late, evaluation.
"""
import argparse
import json
import math
import sys

# parameters, of these in the token embedding, tokens and seconds of a micro-batch (README: Speed)
MODELS = {
    "Fastformer, published": (5_476_352, 32_000 * 128, 4096, 0.205),
    "GPT-2 124M": (124_439_808, 50_257 * 768, 4096, 4096 / 796),
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


def step_seconds(model, n, gigabits, latency, batches=1, width=4, times=1, how=direct):
    parameters, embedding, _, compute = model
    compute = compute / times
    total = how(n, width * parameters, gigabits * 1e9 / 8, latency)
    early = total * (1 - embedding / parameters)
    return batches * compute + total - min(early, compute * 2 / 3)


def efficiency(model, n, *rest, batches=1, times=1, **more):
    return batches * model[3] / times / step_seconds(model, n, *rest, batches=batches, times=times, **more)


def batches_for(model, n, gigabits, latency, wanted, **more):
    """Micro-batches a step and machine with which the machines are used that much; None: more than 10,000."""
    batches = 1
    while efficiency(model, n, gigabits, latency, batches=batches, **more) < wanted:
        batches = math.ceil(batches * 1.05) if batches > 20 else batches + 1
        if batches > 10_000:
            return None
    return batches


def table(name, times):
    model = MODELS[name]
    machine = "two cores, as measured" if times == 1 else f"{times:g} times the two cores that were measured"
    print(f"\n### {name}, each machine {machine}\n")
    print("Tokens/s of n machines, of n times one machine's; in brackets the micro-batches a step and machine from which it is")
    print("90%, where one is not enough.\n")
    print("| machines | " + " | ".join(f"{g} Gb/s" for g, _ in LINKS) + " | 10 Gb/s, bf16 |")
    print("|---" * (len(LINKS) + 2) + "|")
    for n in MACHINES:
        cells = []
        for gigabits, latency, width in [(g, l, 4) for g, l in LINKS] + [(10, 20e-6, 2)]:
            share = efficiency(model, n, gigabits, latency, width=width, times=times)
            needed = batches_for(model, n, gigabits, latency, 0.9, width=width, times=times)
            cells.append(f"{share:.0%}" + ("" if share >= 0.9 else f" ({needed or 'more than 10,000'})"))
        print(f"| {n} | " + " | ".join(cells) + " |")


def algorithms():
    print("\n### Seconds of the sum alone, at 10 Gb/s\n")
    print("| | machines | ring | tree | direct (ours) |\n|---|---|---|---|---|")
    for name, model in MODELS.items():
        for n in (2, 16, 256):
            cells = [f"{how(n, 4 * model[0], 10e9 / 8, 20e-6):.3f}" for how in (ring, tree, direct)]
            print(f"| {name} | {n} | " + " | ".join(cells) + " |")


def read_log(directory):
    """Processes, bytes and milliseconds of the sum of a step."""
    start = report = None
    with open(directory + "/log.jsonl", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row.get("event") in ("start", "resume"):
                start = row
            if row.get("event") == "processes":
                report = row
    if not report:
        sys.exit(f"{directory}: no run of several processes")
    return int(start["processes"].split()[0]), report["bytes_a_step"], report["reduction_ms"]


def check(directories):
    """Fits latency and bandwidth to the first and the last run, and shows all of them beside the model."""
    runs = [read_log(d) for d in directories]
    # ms = bytes / bandwidth + chunks * latency, from the smallest and the largest; of one number of processes
    (_, low, low_ms), (_, high, high_ms) = min(runs, key=lambda r: r[1]), max(runs, key=lambda r: r[1])
    bandwidth = (high - low) / max(1e-9, high_ms - low_ms) * 1e3
    base = low_ms - low / bandwidth * 1e3
    print(f"fitted: {bandwidth * 8e-9:.1f} Gb/s, {base:.2f} ms a step beside it\n")
    print("| run | processes | MB sent a step | measured, ms | computed, ms | |\n|---|---|---|---|---|---|")
    for directory, (n, size, milliseconds) in zip(directories, runs):
        computed = base + size / bandwidth * 1e3
        print(f"| {directory} | {n} | {size * 1e-6:.2f} | {milliseconds:.1f} | {computed:.1f} | {computed / milliseconds - 1:+.0%} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="+", metavar="DIR")
    parser.add_argument("--times", type=float, nargs="+", default=(1, 32), help="how much faster a machine is")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.check)
        return
    print("# Several machines, computed\n")
    print("**Computed by `dev/bench/scaling.py`, not measured**: nobody has run this on more than one machine yet. What goes in,")
    print("and what is left out, stands at its top.")
    for name in MODELS:
        for times in arguments.times:
            table(name, times)
    algorithms()


main()
