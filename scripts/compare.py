#!/usr/bin/env python3
"""Trains models in several ways, several times, and compares them; experiments.py says which.

  scripts/compare.py EXPERIMENT [OPTION...]     (--help), or scripts/run_EXPERIMENT.sh
  scripts/compare.py --page FILE RUN...         one page with the curves of these runs

A run is finished when its log ends with the test. An interrupted comparison resumes by the same command.
Needs Python 3.9 alone, and matplotlib for the pictures.
"""

import argparse
import collections
import csv
import fnmatch
import glob
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import logs
import page
import plot
from experiments import CLAIMS, DATA, EXPERIMENTS
from logs import Error, UsageError

Run = collections.namedtuple("Run", "name data arm value seed command cost")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Stopped(Exception):
    """A signal stopped the comparison."""


# ---- trainers, and the signals that stop them


class Trainers:
    """The running trainers. A signal to this process or to one of them stops all; each saves a
    checkpoint."""

    def __init__(self):
        self.running, self.lock, self.stopped = set(), threading.Lock(), False
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.stop())

    def stop(self):
        if not self.stopped:
            self.stopped = True
            for process in list(self.running):
                process.terminate()

    def run(self, directory, command):
        """Trains in the directory, or resumes the run there, with output to output.txt. Returns the
        exit code."""
        os.makedirs(directory, exist_ok=True)
        begun = os.path.exists(os.path.join(directory, "log.jsonl"))
        if begun and "-e" in command:  # a resumed run has its own weights
            at = command.index("-e")
            command = command[:at] + command[at + 2 :]
        with open(os.path.join(directory, "output.txt"), "wb") as output:
            with self.lock:
                if self.stopped:
                    raise Stopped
                process = subprocess.Popen(
                    [*command, "-o", directory, *(["-y"] if begun else [])],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
                self.running.add(process)
            if self.stopped:  # a signal came after the check above
                process.terminate()
            code = process.wait()
        with self.lock:
            self.running.discard(process)
        if self.stopped or code in (130, 143, -signal.SIGINT, -signal.SIGTERM):
            self.stop()
            raise Stopped
        return code


def last_line(directory):
    with open(os.path.join(directory, "output.txt"), errors="replace") as file:
        lines = file.read().split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")


# ---- programs and data


def make(target):
    if subprocess.run(["make", target], stdin=subprocess.DEVNULL).returncode:
        raise Error(f"{target} cannot be made")


def meta_of(name):
    """Returns meta.json of a data set; None if ./tokenize did not finish it."""
    try:
        with open(f"data/{name}/meta.json", encoding="utf-8") as file:
            meta = json.load(file)
        return meta if "splits" in meta else None
    except (OSError, ValueError):
        return None


def open_data(name):
    """Returns meta.json of a data set, which is made if it is missing. Raises Error if it is not
    the expected one. For data that the trainer generates, returns no splits."""
    if DATA[name] is None:
        return {"splits": {}}
    if meta_of(name) is None:
        make(f"data/{name}")
    meta, expected = meta_of(name), DATA[name]
    if meta is None:
        raise Error(f"data/{name}/meta.json: is missing or not finished")
    remedy = f"move data/{name} away, and `make data/{name}` makes it"
    if meta.get("tokenizer") != expected:
        raise Error(
            f"data/{name}: its tokenizer is {meta.get('tokenizer')}, expected {expected}; {remedy}"
        )
    if name == "wikitext2-bert" and meta.get("mask", -1) < 0:
        raise Error(f"data/{name}: has no mask token; {remedy}")
    return meta


def describe(meta):
    """Returns the description of a data set in the trainers' logs."""
    splits = ", ".join(
        f"{meta['splits'][s]['tokens']} {s}"
        for s in ("train", "val", "test")
        if s in meta["splits"]
    )
    return f"{splits} tokens, vocabulary {meta.get('vocab_size', 'unknown')}"


def replace(path, text):
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


# ---- a comparison


def chosen(flag, names, patterns):
    """Returns the names that match one of the patterns, which are separated by spaces; all names if
    patterns is None."""
    found = set(names if patterns is None else ())
    for pattern in (patterns or "").split():
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise UsageError(f"{flag} {pattern}: nothing is called so; there are {', '.join(names)}")
        found.update(matches)
    if not found:
        raise UsageError(f"{flag}: expected names; there are {', '.join(names)}")
    return [name for name in names if name in found]


class Comparison:
    def __init__(self, name, arguments):
        self.name, self.arguments = name, arguments
        self.experiment = EXPERIMENTS[name]
        self.quick, self.jobs, self.gpu = arguments.quick, arguments.jobs, arguments.gpu
        self.keep, self.report_only = arguments.keep, arguments.report
        self.data = list(self.experiment["data"])
        self.arms = dict(self.experiment["arms"])
        self.value_name, self.values = self.experiment.get("values", (None, [None]))
        self.settings, self.rows, self.failed, self.total = {}, [], [], 0
        if "choose" in self.experiment:
            self.experiment["choose"](self)
        self.all_arms, self.all_values = self.arms, self.values
        self.arms = {arm: self.arms[arm] for arm in chosen("--arms", self.arms, arguments.arms)}
        if self.value_name:
            self.values = chosen("--values", self.values, arguments.values)
        self.out = arguments.output or f"runs/{name}{'-quick' if self.quick else ''}"

    def below(self, directory, data, *names):
        """Returns a path in the directory, with a subdirectory for the data set if there are
        several."""
        return os.path.join(
            directory, *([data] if len(self.experiment["data"]) > 1 else []), *names
        )

    # -- settings: runs are compared only if theirs are equal

    def stored_settings(self, data):
        """Returns (settings, number of seeds) of the existing runs."""
        for directory in (self.keep, self.out):
            path = directory and self.below(directory, data, "settings")
            if path and os.path.isfile(path):
                with open(path, encoding="utf-8") as file:
                    lines = [*file.read().splitlines(), ""]
                return lines[0], int(lines[1].split()[1]) if lines[1] else None
        return None, None

    def open_settings(self, data):
        """Stores the settings of this call next to the runs; with --report uses the stored ones."""
        stored, seeds = self.stored_settings(data)
        if self.report_only:
            if stored:
                self.settings[data] = stored
                self.arguments.seeds = self.arguments.seeds or seeds
            return
        meta = open_data(data)
        options, steps, self.evaluations = self.experiment["settings"](self, data, meta)
        line = f"{options} -x {steps}, data {describe(meta)}"
        for directory in (self.out, self.keep):
            if not directory:
                continue
            path = self.below(directory, data, "settings")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.isfile(path):
                with open(path, encoding="utf-8") as file:
                    lines = [*file.read().splitlines(), ""]
                if lines[0] != line:
                    raise Error(
                        f"{path}: the runs in its directory have other settings; "
                        "choose another directory"
                    )
                seeds = int(lines[1].split()[1]) if lines[1] else 0
                replace(path, f"{line}\nseeds {max(seeds, self.seed_count)}\n")
            else:
                replace(path, f"{line}\nseeds {self.seed_count}\n")
        self.settings[data] = line

    @property
    def seed_count(self):
        return self.arguments.seeds or (self.experiment.get("quick_seeds", 1) if self.quick else 3)

    def options_of(self, data):
        return self.settings[data].partition(", data ")[0].rpartition(" -x ")[0]

    def steps_of(self, data, arm=None):
        """Returns the steps of the settings, or those of the arm if it has its own."""
        steps = int(self.settings[data].partition(", data ")[0].rpartition(" -x ")[2])
        own = self.experiment.get("steps")
        return own(arm, steps, self) if arm and own else steps

    def tokens_of(self, data, split):
        found = re.search(rf"(\d+) {split}\b", self.settings[data].partition(", data ")[2])
        return found[1] if found else "?"

    # -- the plan

    def plan(self):
        """Yields all runs. In a tuned experiment the first seed runs at the values that tuning()
        tries; when these are finished, the other seeds run at each arm's best value. A run that
        begins with another run's weights waits for that run."""
        first = self.experiment.get("first_seed", 1)
        tuned = "tuned" in self.experiment
        for data in self.settings:
            tunings = {arm: self.tuning(data, arm) for arm in self.arms if tuned}
            for seed in range(first, first + self.seed_count):
                for value in self.values:
                    for arm in self.arms:
                        run = self.planned(data, arm, value, seed)
                        if tuned:
                            tried, best, final = tunings[arm]
                            later = value == best and (final or self.log_of(run))
                            if not (value in tried if seed == first else later):
                                continue
                        if self.log_of(run) or self.can_begin(run):
                            yield run

    def before(self, data, arm, value, seed):
        """Returns the directory of the run whose weights this run begins with, or None."""
        earlier = self.experiment.get("after", {}).get(value)
        name = self.below("", data, f"{arm}-{earlier}-seed-{seed}")
        return earlier and os.path.join(self.out, name)

    def can_begin(self, run):
        before = self.before(run.data, run.arm, run.value, run.seed)
        return not before or self.is_finished(before)

    def tuning(self, data, arm):
        """Returns (values to try, the best of the finished ones, whether it is final). Begins with
        the experiment's values, and adds the next value while the best is the first or the last."""
        values = [v for v in self.values if v in self.experiment["tuned"]] or self.values
        while True:
            best, complete = self.best_value(data, arm, values)
            before, after = self.values.index(values[0]) - 1, self.values.index(values[-1]) + 1
            if best is None or not complete:
                return values, best, False
            if best == values[0] and before >= 0:
                values = [self.values[before], *values]
            elif best == values[-1] and after < len(self.values):
                values = [*values, self.values[after]]
            else:
                return values, best, True

    def best_value(self, data, arm, values):
        """Returns (the value with the arm's lowest validation loss among the finished runs of the
        first seed, or None; whether all of these runs are finished)."""
        losses, complete = {}, True
        for value in values:
            run = self.planned(data, arm, value, self.experiment.get("first_seed", 1))
            path = self.log_of(run)
            if not path:
                complete = False
            elif not self.diverged(run):
                row = logs.measure(logs.read(path))
                if row["val_loss"] is not None and not over(row["last_val_loss"], row["val_loss"]):
                    losses[value] = row["val_loss"]
        return min(losses, key=losses.get) if losses else None, complete

    def planned(self, data, arm, value, seed):
        program, *rest = self.experiment["command"](arm, value, self).split()
        own = DATA[data] is None or "-i" in self.options_of(data).split()
        source = [] if own else ["-i", f"data/{data}"]
        command = [
            program + ("cu" if self.gpu and program.startswith("./train_") else ""),
            *rest,
            *source,
            *self.options_of(data).split(),
            "-x",
            str(self.steps_of(data, arm)),
            "-S",
            str(seed),
        ]
        if program.startswith("./train_") and program != "./train_translate":
            command += ["--offsets", "fixed"]  # as in the kept runs
        if value is not None:
            command += self.experiment["value_options"](value).split()
        before = self.before(data, arm, value, seed)
        if before:
            command += ["-e", before]
        name = f"{arm}{'' if value is None else f'-{value}'}-seed-{seed}"
        cost = self.experiment.get("cost", lambda arm, value: arm)(arm, value)
        return Run(
            self.below("", data, name), data, arm, value, seed, command, self.below("", data, cost)
        )

    def log_of(self, run):
        """Returns the path of a finished run's log; None if the run is not finished."""
        directory = os.path.join(self.out, run.name)
        path = os.path.join(directory, "log.jsonl")
        if os.path.isfile(os.path.join(directory, "diverged")) or self.is_finished(directory):
            return path
        kept = self.keep and os.path.join(self.keep, f"{run.name}.jsonl")
        return kept if kept and os.path.isfile(kept) else None

    def is_finished(self, directory):
        path = os.path.join(directory, "log.jsonl")
        if not os.path.isfile(path):
            return False
        with open(path, encoding="utf-8") as file:
            return self.experiment.get("done", '"test_loss"') in file.read()

    def is_kept(self, run):
        return self.keep and os.path.isfile(os.path.join(self.keep, f"{run.name}.jsonl"))

    def diverged(self, run):
        marks = [os.path.join(self.out, run.name, "diverged")]
        if self.keep:
            marks.append(os.path.join(self.keep, f"{run.name}.diverged"))
        return any(map(os.path.isfile, marks))

    def keep_run(self, run):
        """Stores the thinned log of a finished run in --keep."""
        if not self.keep or self.is_kept(run):
            return
        path = os.path.join(self.keep, f"{run.name}.jsonl")
        if self.diverged(run):
            replace(path.replace(".jsonl", ".diverged"), "")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            every = self.experiment.get("thin", logs.THIN_EVERY)
            logs.write(logs.thin(logs.read(self.log_of(run)), every), file)
        os.replace(f"{path}.new", path)


# ---- training


class Runner:
    """Trains the unfinished runs of a comparison, several at a time."""

    def __init__(self, comparison, trainers):
        self.c, self.trainers = comparison, trainers
        self.runs = list(comparison.plan())
        self.seconds, self.planned, self.spent = {}, 0.0, 0.0
        self.error = None
        self.lock = threading.Lock()

    def probe(self, run):
        """Measures the cost of a run by training for five steps. Returns the seconds per step, per
        evaluation, and of everything that a run does once; None on a GPU, where starting takes as
        long as many steps."""
        path = os.path.join(self.c.out, f"{run.cost}.cost")
        if self.c.gpu:
            return None
        if not os.path.isfile(path):
            with tempfile.TemporaryDirectory(dir=os.path.dirname(path), suffix=".tmp") as directory:
                begin = time.monotonic()
                command = run.command.copy()
                command[command.index("-x") + 1] = "5"
                if self.trainers.run(directory, command):
                    raise Error(last_line(directory))
                wall = time.monotonic() - begin
                events = logs.read(os.path.join(directory, "log.jsonl"))
            ms = logs.values(events, "ms")
            evaluation = logs.last(logs.values(events, "val_ms")) or 0
            # The median step: the first is slow because it creates kernels.
            once = wall - (sum(ms) + evaluation) / 1000
            replace(path, f"{logs.low_median(ms) / 1000} {evaluation / 1000} {once}\n")
        with open(path, encoding="utf-8") as file:
            return [float(x) for x in file.read().split()]

    def time_left(self, run):
        """Returns the estimated seconds until a run is finished; on a GPU 1 for each unfinished
        run."""
        if self.c.log_of(run):
            return 0.0
        cost = self.probe(run)
        if not cost:
            return 1.0
        path = os.path.join(self.c.out, run.name, "log.jsonl")
        steps = self.c.steps_of(run.data, run.arm)
        passed = logs.last(logs.values(logs.read(path), "step")) if os.path.isfile(path) else 0
        step, evaluation, once = cost
        return (1 - (passed or 0) / steps) * (steps * step + self.c.evaluations * evaluation) + once

    def to_go(self):
        """Returns ", about 1h 02m to go". Scales the planned time by the ratio of time taken to
        time planned of the finished runs."""
        left = sum(self.seconds.values()) - self.planned
        if self.planned:
            left *= self.spent / self.planned
        elif self.c.gpu:
            return ""
        return f", about {logs.duration(left / self.c.jobs)} to go"

    def train(self, number, run):
        title = f"{number:3d}/{len(self.runs)}  {run.name:<32}"
        print(f"{title}  starts", flush=True)
        directory, begin = os.path.join(self.c.out, run.name), time.monotonic()
        code = self.trainers.run(directory, run.command)
        if not code:
            row = logs.measure(logs.read(os.path.join(directory, "log.jsonl")))
            result = (
                f"test perplexity {logs.perplexity(row['test_loss']):.2f}"
                if row["test_loss"] is not None
                else f"validation loss {logs.show(row['val_loss'])}"
            )
        elif self.c.experiment.get("diverges") and self.says_not_finite(directory):
            result = "diverged"
            replace(os.path.join(directory, "diverged"), "")
        else:
            result = f"failed: {last_line(directory)}"
            self.c.failed.append(run.name)
        if self.c.log_of(run):
            self.c.keep_run(run)
        with self.lock:
            took = time.monotonic() - begin
            self.planned += self.seconds[run.name]
            self.spent += took
            print(f"{title}  {result} in {logs.duration(took)}{self.to_go()}", flush=True)

    @staticmethod
    def says_not_finite(directory):
        with open(os.path.join(directory, "output.txt"), errors="replace") as file:
            return "not finite" in file.read()

    def work(self, waiting):
        try:
            while not self.trainers.stopped and not self.error:
                self.train(*waiting.get_nowait())
        except queue.Empty:
            pass
        except Stopped:
            self.trainers.stop()
        except (Error, OSError) as error:
            self.error = error

    def run(self):
        if not self.c.gpu:
            print("measuring what a run costs", flush=True)
        self.seconds = {run.name: self.time_left(run) for run in self.runs}
        waiting = queue.Queue()
        for number, run in enumerate(self.runs, 1):
            if self.c.log_of(run):
                self.c.keep_run(run)
            else:
                waiting.put((number, run))
        finished = len(self.runs) - waiting.qsize()
        print(f"{len(self.runs)} runs, of which {finished} are finished{self.to_go()}", flush=True)
        workers = [threading.Thread(target=self.work, args=(waiting,)) for _ in range(self.c.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self.error:
            raise self.error
        if self.trainers.stopped:
            raise Stopped


# ---- results


def key_of(row):
    return tuple(str(row.get(key) or "") for key in ("data", "arm", "value", "seed"))


def kept_rows(c, directory):
    """Returns the rows of a runs.csv, for runs whose logs are missing."""
    path = directory and os.path.join(directory, "runs.csv")
    if not path or not os.path.isfile(path):
        return {}
    names = ("data", "arm", c.value_name, "seed")
    with open(path, encoding="utf-8", newline="") as file:
        rows = [
            {k: v if k in names else number_or_text(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]
    for row in rows:
        row.setdefault("data", c.data[0])
        row["value"] = row.pop(c.value_name, None) if c.value_name else None
        row["seed"] = int(row["seed"])
    return {key_of(row): row for row in rows}


def number_or_text(text):
    try:
        return float(text) if text else None
    except ValueError:
        return text


def collect(c):
    """Sets c.rows to the measures of each finished run, and c.logs to the lines of their logs."""
    c.rows, c.logs, c.unfinished = [], {}, 0
    known = {**kept_rows(c, c.out), **kept_rows(c, c.keep)}
    for run in c.plan():
        c.total += 1
        row = {"data": run.data, "arm": run.arm, "value": run.value, "seed": run.seed}
        earlier = known.get(key_of(row), {})
        path = c.log_of(run)
        if path:
            events = logs.read(path) if os.path.isfile(path) else []
            c.logs[run.data, run.arm, run.value, run.seed] = events
            row.update(logs.measure(events))
            row["diverged"] = int(c.diverged(run) or over(row["last_val_loss"], row["val_loss"]))
            row.update({k: v for k, v in earlier.items() if row.get(k) is None})
        elif earlier and c.report_only:
            row.update({**earlier, **row})
        else:
            c.unfinished += 1
            continue
        c.rows.append(row)
    if not c.rows:
        raise Error(f"{c.keep or c.out}: no run is finished")
    own = set(map(key_of, c.rows))
    c.others = [
        row
        for key, row in known.items()
        if key not in own
        and row["data"] in c.data
        and row["arm"] in c.all_arms
        and (row["value"] or None) in c.all_values
    ]
    for arm, pattern in c.experiment.get("borrowed", {}).items():
        borrow(c, arm, pattern)
    if "collect" in c.experiment:
        c.experiment["collect"](c)


def over(last, best):
    """Returns whether a run ended more than a tenth above its best validation loss."""
    return last is not None and last > 1.1 * best


def borrow(c, arm, pattern):
    """Adds the runs that another comparison kept."""
    for path in sorted(glob.glob(pattern)):
        events, seed = logs.read(path), int(re.search(r"-seed-(\d+)", path)[1])
        c.rows.append(
            {
                "data": c.data[0],
                "arm": arm,
                "value": None,
                "seed": seed,
                "diverged": 0,
                **logs.measure(events),
            }
        )
        c.logs[c.data[0], arm, None, seed] = events


def write_csv(path, names, rows):
    with open(f"{path}.new", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow([f"{x:.8g}" if isinstance(x, float) else x for x in row])
    os.replace(f"{path}.new", path)


def write_tables(c, directory):
    """Writes runs.csv, one line per run, including arms that this call did not select; results.csv,
    one line per arm; and layers.csv, one line per layer of a run."""
    several = len(c.experiment["data"]) > 1
    names = (
        (["data"] if several else [])
        + ["arm"]
        + ([c.value_name] if c.value_name else [])
        + ["seed"]
    )
    keys = [c.value_name and "value" if name == c.value_name else name for name in names]
    columns = [*c.experiment["measures"], *c.experiment.get("texts", ()), "machine", "diverged"]
    own = sorted(
        [row for row in c.rows if row["arm"] in c.arms] + c.others,
        key=lambda r: (
            c.data.index(r["data"]),
            r["seed"],
            c.all_values.index(r["value"] or None),
            list(c.all_arms).index(r["arm"]),
        ),
    )
    write_csv(
        os.path.join(directory, "runs.csv"),
        names + columns,
        [[row.get(key) for key in keys + columns] for row in own],
    )
    results = []
    for data, arm, value in dict.fromkeys((r["data"], r["arm"], r["value"]) for r in c.rows):
        rows = [r for r in c.rows if (r["data"], r["arm"], r["value"]) == (data, arm, value)]
        line = ([data] if several else []) + [arm] + ([value] if c.value_name else []) + [len(rows)]
        for key in c.experiment["measures"]:
            numbers = [r[key] for r in rows if r.get(key) is not None]
            line += [logs.mean(numbers), logs.spread(numbers)]
        results.append(line)
    heads = [f"{key}_{kind}" for key in c.experiment["measures"] for kind in ("mean", "sd")]
    write_csv(os.path.join(directory, "results.csv"), names[:-1] + ["seeds"] + heads, results)
    layers = [
        [r["data"], r["arm"], r["seed"], *layer] for r in c.rows for layer in r.get("layers") or []
    ]
    if several and layers:
        write_csv(
            os.path.join(directory, "layers.csv"),
            [
                "data",
                "arm",
                "seed",
                "layer",
                "weight_kurtosis",
                "activation_kurtosis",
                "largest_activation",
            ],
            layers,
        )


def write_results(c):
    """Writes tables and pictures: with --report into --output, or else --keep; after training into
    the output directory and --keep."""
    given = c.arguments.output
    places = [given or c.keep or c.out] if c.report_only else [c.out] + ([c.keep] if c.keep else [])
    lines = [f"# {c.experiment['title']}", ""]
    if c.unfinished:
        lines += [f"**{c.total - c.unfinished} of {c.total} runs are finished so far.**", ""]
    text = "\n".join([*lines, *c.experiment["report"](c)]) + "\n"
    formats = ("png",) if c.report_only and places[0] == c.keep else ("png", "svg")
    drawn = [
        f"{name}.png"
        for name, panels, title in c.experiment["plots"](c)
        if plot.draw(places[0], name, panels, title, formats)
    ]
    for directory, groups, title in c.experiment.get("curves", lambda c: [])(c):
        if plot.draw_runs(os.path.join(places[0], directory), groups, title, formats):
            drawn += [os.path.join(directory, f"loss_by_{by}.png") for by in ("step", "time")]
    for place in places:
        os.makedirs(place, exist_ok=True)
        write_tables(c, place)
        replace(os.path.join(place, "results.md"), text)
        for name in drawn if place != places[0] else ():
            os.makedirs(os.path.dirname(os.path.join(place, name)), exist_ok=True)
            shutil.copy(os.path.join(places[0], name), os.path.join(place, name))
    print(text, end="")


def compare(name, arguments, trainers):
    """Runs a whole comparison."""
    c = Comparison(name, arguments)
    if not c.report_only:
        cores = len(os.sched_getaffinity(0))
        given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # of the outer level
        cores = int(given) if given.isdigit() and int(given) > 0 else cores
        if c.jobs > cores:
            raise Error(f"--jobs {c.jobs}: there are {cores} cores")
        if c.jobs > 1:
            os.environ["OMP_NUM_THREADS"] = str(cores // c.jobs)
        for program in [*c.experiment["programs"], "tokenize"]:
            program += "cu" if c.gpu and program != "tokenize" else ""
            if not os.access(program, os.X_OK):
                make(program)
        if "prepare" in c.experiment:
            c.experiment["prepare"](c)
    for data in c.data:
        c.open_settings(data)
    if not c.report_only:
        try:
            runs = None
            while runs != (runs := list(c.plan())):  # a tuned experiment adds runs
                Runner(c, trainers).run()
        finally:
            if c.jobs > 1:
                os.environ["OMP_NUM_THREADS"] = str(cores)
    collect(c)
    write_results(c)
    if c.failed:
        raise Error(
            f"{len(c.failed)} runs failed and are not in the table; "
            "the same command tries them again"
        )


# ---- the command line


def whole_number(text):
    if not re.fullmatch("[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text or 'nothing'}: expected a whole number above 0")
    return int(text)


def path(text):
    """Returns the absolute path; relative paths begin at the caller's directory."""
    if not text:
        raise argparse.ArgumentTypeError("expected a directory")
    return os.path.abspath(text)


def parser_of(name):
    experiment = EXPERIMENTS.get(name, {})
    claims = name == "claims"
    about = CLAIMS["about"] if claims else experiment["about"]
    parser = argparse.ArgumentParser(
        prog=experiment.get("script", f"run_{name}.sh"), description=about, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--quick",
        action="store_true",
        help=experiment.get("quick", "small models, one seed, about a quarter of an hour"),
    )
    add(
        "--seeds",
        type=whole_number,
        metavar="N",
        help="runs that differ in nothing else (3; with "
        f"--quick {experiment.get('quick_seeds', 1)})",
    )
    add("--arms", metavar="PATTERNS", help="only these, as in 'softmax* additive' (all)")
    if "values" in experiment:
        names = f"{experiment['values'][1][0]}, ..."
        add("--values", metavar="PATTERNS", help=f"only these of {names} (all)")
    for flag, help_text, options in experiment.get("flags", ()):
        add(flag, help=help_text, **options)
    add(
        "--jobs",
        type=whole_number,
        default=1,
        metavar="N",
        help="runs side by side, which share the cores (1)",
    )
    add("--gpu", action="store_true", help="train on a GPU")
    add(
        "--report",
        action="store_true",
        help="tables and plots of what is finished: trains nothing, "
        "needs neither data nor programs",
    )
    if claims:
        parser.set_defaults(output=None, keep=None)
        return parser
    add(
        "--output",
        type=path,
        metavar="DIR",
        help=f"results and runs (runs/{name}, runs/{name}-quick)",
    )
    add(
        "--keep",
        type=path,
        metavar="DIR",
        help="results and thinned logs of finished runs are "
        "stored there, too; a run whose log exists is not made again",
    )
    return parser


def claims(arguments, trainers):
    """Runs every comparison of the README, and keeps each in dev/results/NAME."""
    failures = 0
    for name, options in CLAIMS["comparisons"]:
        if trainers.stopped:
            raise Stopped
        print(f"== {name}", flush=True)
        own = argparse.Namespace(
            **{
                **vars(parser_of(name).parse_args(options)),
                **{
                    key: value
                    for key, value in vars(arguments).items()
                    if key not in ("output", "keep")
                },
            }
        )
        own.keep = f"dev/results/{name}"
        try:
            compare(name, own, trainers)
        except Error as error:
            print(f"run_{name}.sh: {error}", file=sys.stderr)
            failures += 1
    if failures:
        raise Error(f"{failures} comparisons failed")


def main():
    names = [*EXPERIMENTS, "claims"]
    if sys.argv[1:2] == ["--page"] and len(sys.argv) > 3:
        try:
            page.write(sys.argv[2], sys.argv[3:])
        except (Error, OSError) as error:
            sys.exit(f"compare.py: {error}")
        return
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print(f"{__doc__.strip()}\n\nexperiments: {', '.join(names)}")
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    name, words = sys.argv[1], sys.argv[2:]
    parser = parser_of(name)
    rest = []
    if "--" in words and "rest" in EXPERIMENTS.get(name, {}):
        words, rest = words[: words.index("--")], words[words.index("--") + 1 :]
    arguments = parser.parse_args(words)
    arguments.rest = rest
    os.chdir(ROOT)
    trainers = Trainers()
    try:
        if name == "claims":
            claims(arguments, trainers)
        else:
            compare(name, arguments, trainers)
    except UsageError as error:
        parser.error(str(error))
    except Error as error:
        sys.exit(f"{parser.prog}: {error}")
    except Stopped:
        print("stopped; the same command resumes", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
