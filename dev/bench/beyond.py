#!/usr/bin/env python3
"""Perplexity by position beyond the last one: both models, each way that --beyond names, on WikiText-2 after a short
training. Prints a table. Half an hour on two cores.
"""

import argparse
import glob
import os
import subprocess

import step as bench

MODELS = {"fastformer": [], "fastformer-global": ["--windows", "global"], "gpt2": []}
TIMES = 8  # length of the texts, in multiples of T


def train(name, options, arguments):
    output = os.path.join(arguments.output, name)
    command = [f"./train_{name.split('-')[0]}", "-i", arguments.data, "-o", output, "-L", "3", "-C", "64", "-H", "2"]
    command += ["-b", "8", "-t", str(arguments.positions), "-x", str(arguments.steps), "-l", "2e-3", "-u", "100"]
    command += ["-k", "cosine", "-v", str(arguments.steps), "-m", "100", "--no-test", *options]
    if os.path.exists(os.path.join(output, "lock")):
        command.append("-y")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return output


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--positions", type=int, default=128, metavar="T")
    parser.add_argument("--data", default="data/wikitext2", metavar="DIR", help="default: %(default)s")
    parser.add_argument("--output", default="runs/beyond", metavar="DIR", help="default: %(default)s")
    arguments = parser.parse_args()
    os.chdir(bench.ROOT)
    subprocess.run(["make", "-s", "train_fastformer", "train_gpt2", "bench"], check=True)
    beyond = max(glob.glob("build/*/bench/beyond"), key=os.path.getmtime)
    print("| model | --beyond | tokens 0 .. T-1 " + "".join(f"| to {n}T " for n in range(2, TIMES + 1)) + "|")
    print("|---|---|" + TIMES * "---|")
    for name, options in MODELS.items():
        output = train(name, options, arguments)
        kind = name.split("-")[0]
        for how in ("slide", "repeat"):
            command = [beyond, "--type", kind, "-e", output, "-i", arguments.data, "--beyond", how]
            row = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            print(row.replace(f"| {kind} ", f"| {name} ", 1), end="", flush=True)


if __name__ == "__main__":
    main()
