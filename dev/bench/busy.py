#!/usr/bin/env python3
"""How long a training step takes while other programs want the cores: idle, with one busy process in all, with one and
two per core, and another run of the same; for the trainer as it is and for other ways in which OpenMP's threads may
wait, or run on any core; the library is gcc's, or LLVM's where the trainer was built with clang. Writes medians in
milliseconds, and their ratios. About 9 minutes; leave the machine alone meanwhile.
"""

import argparse
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import step as bench
from step import fail

WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_USE_YIELD", "KMP_LIBRARY", "OMP_PROC_BIND", "OMP_PLACES")
HOG = [sys.executable, "-c", "while True: pass"]


def settings_of(trainer):
    """Returns the OpenMP library's default setting and all settings to measure; "" is the trainer's
    own."""
    llvm = "libomp" in subprocess.run(["ldd", trainer], capture_output=True, text=True, check=True).stdout
    default, *others = (
        ("KMP_BLOCKTIME=200", "KMP_BLOCKTIME=1", "KMP_BLOCKTIME=0")
        if llvm
        else ("GOMP_SPINCOUNT=300000", "GOMP_SPINCOUNT=10000", "GOMP_SPINCOUNT=1000")
    )
    return default, ["", "OMP_PROC_BIND=false", default, *others]


class Run:
    """The trainer running with an environment setting, until end() kills it."""

    def __init__(self, arguments, setting):
        self.directory = tempfile.TemporaryDirectory()
        self.output = os.path.join(self.directory.name, "run")
        environment = {key: value for key, value in os.environ.items() if key not in WAITING}
        environment.update([setting.split("=")] if setting else [])
        command = [arguments.trainer, *shlex.split(arguments.options), "-o", self.output, "-x", "100000", "-v", "100000"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def log(self):
        try:
            return bench.read_log(self.output)
        except (OSError, ValueError):  # no log yet, or an incomplete line
            return []

    def wait_for(self, count):
        while len(bench.step_times(self.log())) < count:
            if self.process.poll() is not None:
                fail(f"{' '.join(self.process.args)}: ended with exit code {self.process.returncode}")
            time.sleep(0.1)

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        log = self.log()
        self.directory.cleanup()
        return log


def steps(arguments, setting):
    """Returns the milliseconds of all steps but the first, of some seconds and at least 4 steps,
    and the log's first line."""
    run = Run(arguments, setting)
    run.wait_for(1)
    time.sleep(arguments.seconds)
    run.wait_for(5)
    log = run.end()
    return bench.step_times(log)[1:], log[0]


def measure(arguments, loads, settings):
    """Returns {(setting, load): median milliseconds} and a log's first line. Each round measures
    all settings, so that drift of the machine affects all of them."""
    times, first = {}, None
    for load in loads:
        hogs = [] if load == "run" else [subprocess.Popen(HOG) for _ in range(load)]
        for _ in range(arguments.rounds):
            for setting in settings:
                other = Run(arguments, setting) if load == "run" else None
                found, first = steps(arguments, setting)
                times.setdefault((setting, load), []).extend(found)
                if other:
                    other.end()
        for hog in hogs:
            hog.kill()
            hog.wait()
    return {key: statistics.median(values) for key, values in times.items()}, first


def report(arguments, loads, settings, default, medians, first):
    cores = bench.cores()
    trainer = f"{os.path.basename(arguments.trainer)} {arguments.options}"
    print(
        "# Training next to other programs\n\n"
        f"`dev/bench/busy.py` on {bench.processor()}, {cores} cores: `{trainer}`, {first['products']}.\n"
        f"Medians of the steps of {arguments.rounds} rounds, in milliseconds; in brackets, how many times as long as that "
        "setting's idle step.\nWith N busy processes per core a fair share is N + 1 times, next to another run 2.\n\n"
        f"| threads | idle | one busy process | one per core | two per core | another run | idle, against {default} |\n"
        "|---|---|---|---|---|---|---|"
    )
    names = {
        "": "as the trainer has them",
        "OMP_PROC_BIND=false": "`OMP_PROC_BIND=false`, on any core",
        default: f"`{default}`, the library's default",
    }
    for setting in settings:
        idle = medians[setting, 0]
        busy = [f"{medians[setting, load]:.4g} ({medians[setting, load] / idle:.1f})" for load in loads[1:]]
        ratio = f"{100 * (idle / medians[default, 0] - 1):+.1f}%"
        print("| " + " | ".join([names.get(setting, f"`{setting}`"), f"{idle:.4g}", *busy, ratio]) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=os.path.join(bench.ROOT, "train_fastformer"), help="default: ./train_fastformer")
    parser.add_argument("--options", default="-L 4 -C 128 -H 4 -b 8 -t 256", help="default: those of make run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of steps at a time")
    arguments = parser.parse_args()
    if not os.path.exists(arguments.trainer):
        fail(f"{arguments.trainer} is missing: make train_fastformer")
    default, settings = settings_of(arguments.trainer)
    loads = [0, 1, bench.cores(), 2 * bench.cores(), "run"]
    report(arguments, loads, settings, default, *measure(arguments, loads, settings))


if __name__ == "__main__":
    main()
