#!/usr/bin/env python3
"""What a training step of one of our trainers costs in one configuration: a JSON object.

    python3 dev/bench/step.py [--model fastformer|gpt2|bert] [--precision bf16|fp32] [--config T=8192,B=1,...] [--steps N] ...

README.md says what the members mean. What peers.py shares with it is here, too.
"""

import argparse
import array
import contextlib
import json
import os
import platform
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
DEFAULTS = {"B": 2, "T": 2048, "C": 128, "H": 4, "L": 6, "V": 32000}
DROPOUT = 0.1
MODELS = ("fastformer", "gpt2", "bert")
PRECISIONS = ("fp32", "bf16")


def fail(message):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


# ---- the configuration and its data ----------------------------------------------------------------------------------


def parse_config(text):
    """Returns {"B": .., "T": .., ...} from "T=8192,B=1"; DEFAULTS for keys that are missing."""
    config = dict(DEFAULTS)
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in config or not value.isdigit() or int(value) < 1:
            fail(f"--config {text}: expected KEY=N,... with keys {' '.join(config)}, found {part!r}")
        config[key] = int(value)
    if config["C"] % config["H"] != 0:
        fail(f"--config {text}: the {config['C']} channels do not divide into {config['H']} heads")
    return config


def write_shard(path, vocabulary, tokens):
    """Writes a shard in llm.c's format."""
    wide = vocabulary > 1 << 16
    with open(path, "wb") as file:
        array.array("I", [20240520, 7 if wide else 1, len(tokens)] + [0] * 253).tofile(file)
        array.array("I" if wide else "H", tokens).tofile(file)


def read_shard(path):
    """Returns the tokens of a shard, 16 bits each."""
    with open(path, "rb") as file:
        header = array.array("I", file.read(1024))
        if list(header[:2]) != [20240520, 1]:
            fail(f"{path}: expected a shard of 16-bit tokens, found magic {header[0]}, version {header[1]}")
        return array.array("H", file.read(2 * header[2]))


def random_tokens(vocabulary, count, lowest=1):
    return random.Random(1).choices(range(lowest, vocabulary), k=count)


def write_dataset(directory, config, validation=0):
    """Writes random training tokens, `validation` batches of validation tokens, and meta.json with
    the vocabulary for the loader."""
    batch = config["B"] * config["T"]
    vocabulary = config["V"]
    write_shard(os.path.join(directory, "train_000000.bin"), vocabulary, random_tokens(vocabulary, 8 * batch + 1))
    if validation:
        tokens = random_tokens(vocabulary, validation * batch + 1)
        write_shard(os.path.join(directory, "val_000000.bin"), vocabulary, tokens)
    with open(os.path.join(directory, "meta.json"), "w") as file:
        json.dump({"tokenizer": "none", "vocab_size": config["V"], "pad": 0, "mask": 1, "end": -1}, file)


def write_pairs(directory, config):
    """Writes pairs of sentences that all have T tokens including their end, which is token 1."""
    T, vocabulary = config["T"], config["V"]
    tokens = random_tokens(vocabulary, 8 * 2 * config["B"] * T, lowest=2)
    tokens[T - 1 :: T] = [1] * (len(tokens) // T)
    write_shard(os.path.join(directory, "train_000000.bin"), vocabulary, tokens)
    with open(os.path.join(directory, "meta.json"), "w") as file:
        json.dump({"tokenizer": "none", "vocab_size": vocabulary, "pad": 0, "end": 1, "paired": True}, file)


def trainer_command(program, data, output, precision, config, steps, dropout=DROPOUT):
    """Returns a command that only takes steps until the end, and prints a line for each."""
    sizes = {"-b": config["B"], "-t": config["T"], "-C": config["C"], "-H": config["H"], "-L": config["L"]}
    if os.path.basename(program) == "train_translate":  # as many encoder layers as decoder layers
        sizes |= {"-b": config["B"] * config["T"], "-D": config["L"], "--ffn": 2 * config["C"]}
    command = [program, "-i", data, "-o", output, "-p", precision]
    command += [word for option, size in sizes.items() for word in (option, str(size))]
    command += ["-x", str(steps), "--dropout", str(dropout), "--clip", "1", "--log-every", "1"]
    return command + ["-v", str(1 << 40), "-n", str(1 << 40)]


def read_log(output):
    with open(os.path.join(output, "log.jsonl")) as file:
        return [json.loads(line) for line in file]


def step_times(log):
    """Returns the milliseconds of each step."""
    return [line["ms"] for line in log if "loss" in line]


# ---- the machine -----------------------------------------------------------------------------------------------------


def cores():
    return len(os.sched_getaffinity(0))


def processor():
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.lower().startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def machine():
    return {
        "processor": processor(),
        "cores": cores(),
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
    }


def commit():
    """Returns the commit of this tree; empty if it is not a clone."""
    command = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


class Lock:
    """A lock that a command such as "flock FILE" holds while a program runs under it; no lock if
    the command is empty."""

    def __init__(self, command):
        self.command, self.holder, self.since = shlex.split(command or ""), None, 0

    def take(self):
        if self.command:
            wait = [*self.command, "sh", "-c", "echo; read -r end"]
            self.holder = subprocess.Popen(wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.holder.stdout.readline()
        self.since = time.monotonic()

    def release(self):
        if self.holder:
            self.holder.stdin.close()
            self.holder.stdout.close()
            self.holder.wait()
            self.holder = None

    def renew(self, seconds):
        """Releases and takes the lock again if it was held for longer than `seconds`, so that
        others can take it."""
        if self.command and time.monotonic() - self.since > seconds:
            self.release()
            self.take()

    @contextlib.contextmanager
    def held(self):
        self.take()
        try:
            yield
        finally:
            self.release()


def add_common_arguments(parser):
    parser.add_argument("--config", default="", help="such as T=8192,B=1; default: B=2,T=2048,C=128,H=4,L=6,V=32000")
    parser.add_argument("--threads", type=int, default=cores(), help="of every program")
    parser.add_argument("--build", default=ROOT, metavar="DIR", help="where the trainers are")
    parser.add_argument("--lock", default="", metavar="COMMAND", help="measure under it, such as 'flock FILE'")


def environment(threads):
    return dict(os.environ, OMP_NUM_THREADS=str(threads))


# ---- one run ---------------------------------------------------------------------------------------------------------


def run(command, threads):
    """Runs the trainer to its end. Returns the seconds until its first step ended, and its peak
    resident set size in bytes."""
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(threads),
    )
    said, first = [], None
    for line in process.stdout:
        said.append(line)
        if first is None and " step 1/" in line:
            first = time.monotonic() - begin
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or first is None:
        fail(f"{' '.join(command)}: exit code {process.returncode}\n{''.join(said[-20:])}")
    return first, usage.ru_maxrss * 1024


def summarise(log, config, first, peak):
    steps = step_times(log)
    counted = steps[1:] or steps  # the first step creates kernels and touches memory
    profile = next(line for line in log if line.get("event") == "profile")
    flops = sum(row.get("gflops", 0) * row.get("ms", 0) for row in profile["kinds"]) / 1e3
    tokens, median = config["B"] * config["T"], statistics.median(counted)
    result = {
        "version": log[0]["version"],
        "products": log[0]["products"],
        "steps": len(counted),
        "s_per_step": median / 1e3,
        "s_lowest": min(counted) / 1e3,
        "s_highest": max(counted) / 1e3,
        "tokens_per_s": tokens / median * 1e3,
        "gflops": flops / median * 1e3,
        "peak_gflops": profile["peak_gflops"],
        "percent_of_peak": 100 * flops / median * 1e3 / profile["peak_gflops"],
        "peak_bytes": peak,
        "start_s": first - steps[0] / 1e3,
    }
    for line in log:
        if "val_ms" in line:
            result["eval_tokens_per_s"] = line["val_tokens"] / line["val_ms"] * 1e3
    result["profile"] = profile["kinds"]
    return result


def vocabulary_of(data):
    with open(os.path.join(data, "meta.json")) as file:
        return json.load(file)["vocab_size"]


def measure(settings):
    config = parse_config(settings.config)
    program = os.path.join(settings.build, f"train_{settings.model}")
    with tempfile.TemporaryDirectory(prefix="step-") as directory:
        data, output = settings.input or directory, os.path.join(directory, "run")
        if settings.input:
            config["V"] = vocabulary_of(data)
        else:
            write_dataset(data, config, validation=4)
        command = trainer_command(program, data, output, settings.precision, config, settings.steps)
        command += ["--profile", "-m", "4", *settings.options]
        with Lock(settings.lock).held():
            first, peak = run(command, settings.threads)
        log = read_log(output)
    where = machine() | {"threads": settings.threads}
    about = {"model": settings.model, "precision": settings.precision, "config": config}
    return about | summarise(log, config, first, peak) | {"environment": where}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="fastformer")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--input", metavar="DIR", help="a data set; without: random tokens")
    add_common_arguments(parser)
    parser.add_argument("options", nargs="*", metavar="OPTION", help="after --: more of the trainer's options")
    settings = parser.parse_args()
    if settings.steps < 2 or settings.threads < 1:
        fail("--steps must be above 1, --threads above 0")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs the cleanup
    print(json.dumps(measure(settings), indent=1))


if __name__ == "__main__":
    main()
