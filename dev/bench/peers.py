#!/usr/bin/env python3
"""Seconds a training step takes: our trainers beside PyTorch, in interleaved rounds on one machine.

    python3 dev/bench/peers.py [--contenders PATTERN,...] [--rounds N] [--seconds S] [--json FILE] ...

A step is forward, backward, clipping at norm 1 and AdamW, with dropout. README.md says what is measured and how.
"""

import argparse
import array
import ctypes
import fnmatch
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
DEFAULTS = {"B": 2, "T": 2048, "C": 128, "H": 4, "L": 6, "V": 32000}
DROPOUT = 0.1

TRAINER_MODES = ("fp32", "bf16")
PYTORCH_MODES = ("eager-fp32", "compile-fp32", "compile-bf16")
PYTORCH_VARIANTS = {"fastformer": ("published", "ours"), "gpt2": ("huggingface", "flash", "ours")}
WARMUP_STEPS = 3  # a step compiles, another settles the allocator

# What makes PyTorch faster here: large blocks stay with the process, on huge pages. A variable that is set already stays
# as it is.
PYTORCH_ENVIRONMENT = {
    "GLIBC_TUNABLES": ":".join(
        f"glibc.malloc.{name}={value}"
        for name, value in (("hugetlb", 1), ("mmap_threshold", 1 << 35), ("trim_threshold", 1 << 35))
    ),
    "PYTHONDONTWRITEBYTECODE": "1",
}


def contender_names():
    names = []
    for model, variants in PYTORCH_VARIANTS.items():
        names += [f"{model}/c/{mode}" for mode in TRAINER_MODES]
        names += [f"{model}/{variant}/{mode}" for variant in variants for mode in PYTORCH_MODES]
    return names


def fail(message):
    sys.exit(f"peers.py: {message}")


# ---- our trainer -----------------------------------------------------------------------------------------------------


def write_dataset(directory, config):
    """One shard of random tokens in llm.c's format, and the meta.json that tells the loader the vocabulary."""
    count = 16 * config["B"] * config["T"] + 1
    wide = config["V"] > 1 << 16
    header = array.array("I", [20240520, 7 if wide else 1, count] + [0] * 253)
    tokens = array.array("I" if wide else "H", random.Random(1).choices(range(1, config["V"]), k=count))
    with open(os.path.join(directory, "train_000000.bin"), "wb") as file:
        header.tofile(file)
        tokens.tofile(file)
    with open(os.path.join(directory, "meta.json"), "w") as file:
        json.dump({"tokenizer": "none", "vocab_size": config["V"], "pad": 0, "end": -1}, file)


class Trainer:
    """Our trainer: a short run a round, whose log has the milliseconds of each step."""

    def __init__(self, name, config, data, settings):
        model, _, self.precision = name.split("/")
        self.name, self.config, self.data, self.settings = name, config, data, settings
        self.program = os.path.join(settings.build, f"train_{model}")
        self.peak = 0
        self.versions = {}

    def start(self):
        pass

    def steps(self, count):
        """Milliseconds of `count` steps."""
        c = self.config
        sizes = {"-b": "B", "-t": "T", "-C": "C", "-H": "H", "-L": "L"}
        with tempfile.TemporaryDirectory(dir=self.data) as run:
            output = os.path.join(run, "run")
            command = [self.program, "-i", self.data, "-o", output, "-p", self.precision]
            command += [word for option, key in sizes.items() for word in (option, str(c[key]))]
            command += ["-x", str(WARMUP_STEPS + count), "--dropout", str(DROPOUT), "--clip", "1"]
            command += ["-v", str(1 << 40), "-n", str(1 << 40)]  # nothing but steps until the last checkpoint
            self.execute(command, os.path.join(run, "output"))
            with open(os.path.join(output, "log.jsonl")) as file:
                lines = [json.loads(line) for line in file]
        first = lines[0]
        self.versions = {"C": first["version"], f"C in {self.precision}": first["products"]}
        return [line["ms"] for line in lines if "ms" in line][WARMUP_STEPS:]

    def execute(self, command, path):
        with open(path, "w+") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.settings.environment,
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                output.seek(0)
                fail(f"{' '.join(command)}: exit code {process.returncode}\n{output.read()}")
        self.peak = max(self.peak, usage.ru_maxrss * 1024)

    def stop(self):
        pass


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


class PyTorch:
    """A process that stays alive and takes steps on command: a JSON object a line in both directions."""

    def __init__(self, name, config, settings):
        self.name, self.config, self.settings = name, config, settings
        self.process = None
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.peak = 0
        self.versions = {}

    def start(self):
        request = {"name": self.name, "config": self.config, "threads": self.settings.threads}
        self.process = subprocess.Popen(
            [self.settings.python, os.path.abspath(__file__), "--worker", json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=PYTORCH_ENVIRONMENT | self.settings.environment,
        )
        self.versions = self.answer()["versions"]
        self.steps(WARMUP_STEPS)
        self.ask({"reset_peak": True})

    def steps(self, count):
        answer = self.ask({"steps": count})
        self.peak = answer["peak"]
        return answer["ms"]

    def ask(self, question):
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            fail(f"{self.name}: ended with exit code {self.process.wait()}\n{self.errors.read()[-4000:]}")
        return json.loads(line)

    def stop(self):
        self.errors.close()
        if self.process:
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()


def peak_memory():
    """Largest resident set, bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def reset_peak_memory():
    """So that what the compiler took does not count. Where the kernel does not offer it, that counts as well."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def release_memory():
    """Gives free memory back to the system, so that many processes that wait their turn fit into it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:  # not glibc
        pass


def create_stepper(name, sizes, threads):
    """A function that takes one training step on fresh random tokens and returns its milliseconds."""
    import pytorch_models
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, variant, mode = name.split("/")
    config = pytorch_models.Config(
        vocabulary=sizes["V"],
        length=sizes["T"],
        channels=sizes["C"],
        heads=sizes["H"],
        layers=sizes["L"],
        dropout=DROPOUT,
        attention_dropout=0.0 if variant == "flash" else DROPOUT,
    )
    variant = "huggingface" if variant == "flash" else variant
    compiled = mode.startswith("compile")
    precision = torch.bfloat16 if mode.endswith("bf16") else torch.float32
    module = pytorch_models.create_model(model, variant, config, compiled)
    loss = pytorch_models.loss_function(variant, module, compiled, precision)
    optimizer = pytorch_models.create_optimizer(module)
    parameters = list(module.parameters())

    def cast_loss(*batch):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
            return loss(*batch)

    def step():
        tokens = torch.randint(1, sizes["V"], (sizes["B"], sizes["T"]))
        start = time.perf_counter()
        pytorch_models.training_step(cast_loss, parameters, optimizer, tokens, tokens)
        return 1e3 * (time.perf_counter() - start)

    return step


def worker(request):
    answers = os.fdopen(os.dup(1), "w")  # ours alone: what libraries print goes to stderr
    os.dup2(2, 1)
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    step = create_stepper(request["name"], request["config"], request["threads"])
    if request["name"].startswith("gpt2"):
        import transformers

        versions["transformers"] = transformers.__version__
    print(json.dumps({"versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "reset_peak" in question:
            reset_peak_memory()
        times = []
        if "steps" in question:
            step()  # takes its memory again
            times = [step() for _ in range(question["steps"])]
            release_memory()
        print(json.dumps({"ms": times, "peak": peak_memory()}), file=answers, flush=True)


# ---- rounds ----------------------------------------------------------------------------------------------------------


def measure(contenders, rounds, seconds):
    """{name: [median milliseconds of each round]}, A B C A B C ..."""
    counts = {}
    for contender in contenders:
        print(f"starting {contender.name}", file=sys.stderr)
        contender.start()
        counts[contender.name] = max(2, round(1e3 * seconds / statistics.median(contender.steps(2))))
    medians = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in contenders:
            median = statistics.median(contender.steps(counts[contender.name]))
            medians[contender.name].append(median)
            print(f"round {number + 1}/{rounds} {contender.name} {median:.0f} ms", file=sys.stderr)
    return medians


def ratio(medians, name, other):
    """Median over the rounds of name's time over other's; None where one was not measured."""
    if name not in medians or other not in medians:
        return None
    return statistics.median(a / b for a, b in zip(medians[name], medians[other]))


def results(contenders, medians, config):
    rows = []
    for contender in contenders:
        name = contender.name
        model, _, mode = name.split("/")
        times = medians[name]
        median = statistics.median(times)
        rows.append(
            {
                "contender": name,
                "ms": median,
                "ms_lowest": min(times),
                "ms_highest": max(times),
                "tokens_per_s": config["B"] * config["T"] / median * 1e3,
                "peak_bytes": contender.peak,
                "times_c": ratio(medians, name, f"{model}/c/{mode[-4:]}"),
                "ms_of_rounds": times,
            }
        )
    return rows


# ---- the machine -----------------------------------------------------------------------------------------------------


def processor():
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.lower().startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def machine(settings):
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": settings.threads,
        "load before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
    }


def markdown(rows, where, config):
    lines = ["; ".join(f"{key} {value}" for key, value in where.items()) + "."]
    lines += [", ".join(f"{key} {value}" for key, value in config.items()) + f", dropout {DROPOUT}.", ""]
    lines += [
        "| | s/step | lowest .. highest round | tokens/s | peak memory, MB | times C |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = row["times_c"]
        lines.append(
            f"| {row['contender']} | {row['ms'] / 1e3:.3f} | {row['ms_lowest'] / 1e3:.3f} .. "
            f"{row['ms_highest'] / 1e3:.3f} | {row['tokens_per_s']:,.0f} | {row['peak_bytes'] / 1e6:,.0f} | "
            f"{f'{times:.2f}' if times else '-'} |"
        )
    return "\n".join(lines)


# ---- command line ----------------------------------------------------------------------------------------------------


def parse_config(text):
    config = dict(DEFAULTS)
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in config or not value.isdigit() or int(value) < 1:
            fail(f"--config {text}: expected KEY=N,... with keys {' '.join(config)}, found {part!r}")
        config[key] = int(value)
    if config["C"] % config["H"] != 0:
        fail(f"--config {text}: the {config['C']} channels do not divide into {config['H']} heads")
    return config


def chosen(patterns, settings):
    names = contender_names()
    for pattern in patterns.split(","):
        if not fnmatch.filter(names, pattern):
            fail(f"--contenders: {pattern!r} matches none of\n  " + "\n  ".join(names))
    picked = [n for n in names if any(fnmatch.fnmatch(n, p) for p in patterns.split(","))]
    missing = {f"train_{m}" for m in PYTORCH_VARIANTS if not os.path.exists(os.path.join(settings.build, f"train_{m}"))}
    for program in sorted(missing):
        print(f"{program} is not built: left out", file=sys.stderr)
    return [n for n in picked if not ("/c/" in n and f"train_{n.split('/')[0]}" in missing)]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="", help="such as T=8192,B=1; default: B=2,T=2048,C=128,H=4,L=6,V=32000")
    parser.add_argument(
        "--contenders",
        default="fastformer/*,gpt2/*",
        help="patterns of names MODEL/WHOSE/MODE, such as fastformer/*/*bf16; --list shows them",
    )
    parser.add_argument("--list", action="store_true", help="the contenders' names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of steps a contender takes in a round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every contender")
    parser.add_argument("--json", metavar="FILE", help="all of it, for programs")
    parser.add_argument("--build", default=ROOT, metavar="DIR", help="where train_fastformer is")
    parser.add_argument("--python", default=sys.executable, help="that has torch (and transformers for GPT-2)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if min(settings.rounds, settings.threads) < 1 or not settings.seconds > 0:
        fail("--rounds, --threads and --seconds must be above 0")
    settings.environment = dict(os.environ, OMP_NUM_THREADS=str(settings.threads))
    return settings


def main():
    settings = parse_arguments()
    if settings.worker:
        return worker(json.loads(settings.worker))
    if settings.list:
        return print("\n".join(contender_names()))
    config = parse_config(settings.config)
    names = chosen(settings.contenders, settings)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and clean up
    where = machine(settings)
    with tempfile.TemporaryDirectory(prefix="peers-") as data:
        write_dataset(data, config)
        contenders = [
            Trainer(name, config, data, settings) if "/c/" in name else PyTorch(name, config, settings)
            for name in names
        ]
        try:
            medians = measure(contenders, settings.rounds, settings.seconds)
        finally:
            for contender in contenders:
                contender.stop()
    for contender in contenders:
        where |= contender.versions
    rows = results(contenders, medians, config)
    print(markdown(rows, where, config))
    if settings.json:
        with open(settings.json, "w") as file:
            json.dump({"environment": where, "config": config, "results": rows}, file, indent=1)
    return None


if __name__ == "__main__":
    main()
