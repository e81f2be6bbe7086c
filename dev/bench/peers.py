#!/usr/bin/env python3
"""Seconds per training step: our trainers compared with PyTorch, in interleaved rounds on one machine.

    python3 dev/bench/peers.py [--contenders PATTERN,...] [--rounds N] [--seconds S] [--json FILE] ...

A step is forward, backward, clipping at norm 1 and AdamW, with dropout. README.md says what is measured and how.
"""

import argparse
import collections
import ctypes
import fnmatch
import functools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import step as bench
from step import DROPOUT, PRECISIONS, fail

# Ours: all threads, one thread, no libraries. "auto": the trainer chooses the precision.
TRAINER_VARIANTS = {"c": (*PRECISIONS, "auto"), "c-one-thread": PRECISIONS, "c-built-in": ("fp32",)}
PYTORCH_MODES = ("eager-fp32", "compile-fp32", "compile-bf16")
PYTORCH_VARIANTS = {
    "fastformer": ("published", "ours"),
    "gpt2": ("huggingface", "flash", "ours"),
    "bert": ("huggingface",),
    "translate": ("huggingface", "torch"),
}
# train_fastformer with other attention, in TODAY's blocks. The attention of four layers repeats.
ATTENTION = {
    "hybrid": "additive:2+additive:4+additive:8+softmax:global --positions rotary",
    "hybrid-local": "additive:2+additive:4+additive:8+softmax:256 --positions rotary",
    "hybrid-shift": "softmax:2+additive:global+softmax:2+softmax:global --positions none --token-shift 0.5",
    "hybrid-shift-local": "softmax:2+additive:global+softmax:2+softmax:256 --positions none --token-shift 0.5",
    "windows": "softmax:2+softmax:4+softmax:8+softmax:global --positions rotary",
    "windows-local": "softmax:2+softmax:4+softmax:8+softmax:256 --positions rotary",
    "softmax": "softmax:global --positions rotary",
}
TODAY = "--norm rms --ffn swiglu --scores qknorm --pool raw --rescale 2".split()
WARMUP_STEPS = 3  # one step compiles, another settles the allocator
LOCKED_SECONDS = 45  # after this time the lock is released once, for others

# Makes PyTorch faster here: large blocks stay with the process, on huge pages. Variables that are
# already set keep their values.
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
        names += [f"{model}/{whose}/{mode}" for whose, modes in TRAINER_VARIANTS.items() for mode in modes]
        names += [f"{model}/{variant}/{mode}" for variant in variants for mode in PYTORCH_MODES]
    return names + [f"{model}/c/{mode}" for model in ATTENTION for mode in TRAINER_VARIANTS["c"]]


def is_trainer(name):
    return name.split("/")[1] in TRAINER_VARIANTS


def program_of(model):
    return f"train_{'fastformer' if model in ATTENTION else model}"


def peak_memory(process="self"):
    """Returns the peak resident set size in bytes."""
    with open(f"/proc/{process}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


# ---- our trainer -----------------------------------------------------------------------------------------------------


class Trainer:
    """An endless run of our trainer, stopped by SIGSTOP between its turns. Its log has the
    milliseconds of each step."""

    def __init__(self, name, program, config, data, threads, dropout=DROPOUT, options=()):
        self.name, self.program, self.config, self.data, self.threads = name, program, config, data, threads
        self.dropout, self.options = dropout, list(options)
        self.process = None
        self.said = collections.deque(maxlen=20)
        self.done = 0  # steps
        self.peak = 0
        self.versions = {}

    def start(self):
        _, whose, precision = self.name.split("/")
        self.directory = tempfile.TemporaryDirectory(dir=self.data)
        self.output = os.path.join(self.directory.name, "run")
        self.process = subprocess.Popen(
            bench.trainer_command(self.program, self.data, self.output, precision, self.config, 1 << 40, self.dropout)
            + self.options,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=bench.environment(self.threads),
        )
        self.run_until(WARMUP_STEPS)
        first = bench.read_log(self.output)[0]
        self.versions = {"C": first["version"], f"{whose}/{precision}": first["products"]}

    def run_until(self, step):
        """Runs at least until `step` is done and stops the trainer in the step after it. Returns
        the milliseconds of all finished steps."""
        while self.done < step:
            line = self.process.stdout.readline()
            if not line:
                fail(f"{self.name}: ended with exit code {self.process.wait()}\n{''.join(self.said)}")
            self.said.append(line)
            words = line.split()
            if "step" in words[:-1]:
                self.done = int(words[words.index("step") + 1].split("/")[0])
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # until it has stopped
        self.peak = peak_memory(self.process.pid)
        times = bench.step_times(bench.read_log(self.output))
        self.done = len(times)
        return times

    def steps(self, count):
        """Returns the milliseconds of `count` steps, without the step in which the trainer was
        stopped."""
        first = self.done + 1
        os.kill(self.process.pid, signal.SIGCONT)
        return self.run_until(first + count)[first : first + count]

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.stdout.close()
            self.process.wait()
            self.directory.cleanup()


def create_trainer(name, config, data, settings):
    model, whose, _ = name.split("/")
    directory = settings.built_in if whose == "c-built-in" else settings.build
    threads = 1 if whose == "c-one-thread" else settings.threads
    data = os.path.join(data, "pairs") if model == "translate" else data
    options = ["--attention", *ATTENTION[model].split(), *TODAY] if model in ATTENTION else []
    return Trainer(name, os.path.join(directory, program_of(model)), config, data, threads, options=options)


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


class PyTorch:
    """A process that stays alive and takes steps on command: one JSON object per line in both directions."""

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
            env=PYTORCH_ENVIRONMENT | bench.environment(self.settings.threads),
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


def reset_peak_memory():
    """Resets the peak, so that the compiler's memory does not count. Does nothing if the kernel
    does not support it."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def release_memory():
    """Returns free memory to the system, so that all waiting processes fit into memory."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:  # not glibc
        pass


def create_stepper(name, sizes, threads):
    """Returns a function that takes one training step on fresh random tokens and returns its
    milliseconds."""
    import pytorch_models
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, variant, mode = name.split("/")
    if model == "translate":
        return create_translation_stepper(variant, mode, sizes)
    if model == "bert":
        return create_bert_stepper(mode, sizes)
    config = pytorch_models.Config(
        vocabulary=sizes["V"],
        length=sizes["T"],
        channels=sizes["C"],
        heads=sizes["H"],
        layers=sizes["L"],
        dropout=DROPOUT,
        attention_dropout=0.0 if variant == "flash" else DROPOUT,
    )
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


def create_translation_stepper(variant, mode, sizes):
    import pytorch_translate
    import torch

    module = pytorch_translate.create_model(variant, sizes["V"], sizes["T"], sizes["C"], sizes["H"], sizes["L"], DROPOUT)

    def random_batch():
        return torch.randint(2, sizes["V"], (2, sizes["B"], sizes["T"]))

    return create_batch_stepper(module, pytorch_translate.loss_function(module), mode, random_batch)


def create_bert_stepper(mode, sizes):
    import pytorch_bert

    module = pytorch_bert.create_model(sizes, DROPOUT)
    return create_batch_stepper(
        module, pytorch_bert.loss_function(module), mode, functools.partial(pytorch_bert.random_batch, sizes)
    )


def create_batch_stepper(module, loss, mode, random_batch):
    """As create_stepper(), for a loss of the two token tensors that random_batch() returns."""
    import pytorch_models
    import torch

    loss = torch.compile(loss, dynamic=False) if mode.startswith("compile") else loss
    optimizer = pytorch_models.create_optimizer(module)
    parameters = list(module.parameters())

    def cast_loss(*batch):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode.endswith("bf16")):
            return loss(*batch)

    def step():
        inputs, labels = random_batch()
        start = time.perf_counter()
        pytorch_models.training_step(cast_loss, parameters, optimizer, inputs, labels)
        return 1e3 * (time.perf_counter() - start)

    return step


def worker(request):
    answers = os.fdopen(os.dup(1), "w")  # for answers only; the libraries' output goes to stderr
    os.dup2(2, 1)
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    step = create_stepper(request["name"], request["config"], request["threads"])
    if request["name"].startswith(("gpt2", "bert", "translate/huggingface")):
        import transformers

        versions["transformers"] = transformers.__version__
    print(json.dumps({"versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "reset_peak" in question:
            reset_peak_memory()
        times = []
        if "steps" in question:
            step()  # allocates its memory again
            times = [step() for _ in range(question["steps"])]
            release_memory()
        print(json.dumps({"ms": times, "peak": peak_memory()}), file=answers, flush=True)


# ---- rounds ----------------------------------------------------------------------------------------------------------


def measure(contenders, settings):
    """Returns {name: [median milliseconds of each round]}. In each round all contenders take
    turns."""
    counts = {}
    medians = {contender.name: [] for contender in contenders}
    lock = bench.Lock(settings.lock)
    with lock.held():
        for contender in contenders:
            print(f"starting {contender.name}", file=sys.stderr)
            lock.renew(LOCKED_SECONDS)
            contender.start()
            counts[contender.name] = max(2, round(1e3 * settings.seconds / statistics.median(contender.steps(1))))
        for number in range(settings.rounds):
            for contender in contenders:
                lock.renew(LOCKED_SECONDS)
                median = statistics.median(contender.steps(counts[contender.name]))
                medians[contender.name].append(median)
                print(f"round {number + 1}/{settings.rounds} {contender.name} {median:.0f} ms", file=sys.stderr)
    return medians


def ratio(medians, name, other):
    """Returns the median over the rounds of name's time / other's time; None if one was not
    measured."""
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
                "tokens_per_s": (2 if model == "translate" else 1) * config["B"] * config["T"] / median * 1e3,
                "peak_bytes": contender.peak,
                "times_c": ratio(medians, name, f"{model}/c/{mode[-4:]}"),
                "ms_of_rounds": times,
            }
        )
    return rows


# ---- the table -------------------------------------------------------------------------------------------------------


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


def parse_lengths(settings):
    """Returns the configurations to measure: --config's, or one for each of --lengths with the same
    tokens per step."""
    config = bench.parse_config(settings.config)
    if not settings.lengths:
        return [config]
    tokens = config["B"] * config["T"]
    configs = []
    for word in settings.lengths.split(","):
        if not word.isdigit() or int(word) < 1 or tokens % int(word) != 0:
            fail(f"--lengths {settings.lengths}: {word!r} does not divide the {tokens} tokens of a step")
        configs.append(config | {"T": int(word), "B": tokens // int(word)})
    return configs


def chosen(patterns, settings):
    names = contender_names()
    for pattern in patterns.split(","):
        if not fnmatch.filter(names, pattern):
            fail(f"--contenders: {pattern!r} matches none of\n  " + "\n  ".join(names))
    picked = [n for n in names if any(fnmatch.fnmatch(n, p) for p in patterns.split(","))]
    found = [name for name in picked if is_there(name, settings)]
    if not found:
        fail("no contender is left to measure")
    return found


def is_there(name, settings):
    """Returns whether a contender's program or libraries are available; prints a message if not."""
    model, whose, _ = name.split("/")
    if is_trainer(name):
        directory = settings.built_in if whose == "c-built-in" else settings.build
        missing = not (directory and os.path.exists(os.path.join(directory, program_of(model)))) and "the trainer"
    else:
        with_transformers = model == "gpt2" or whose == "huggingface"
        modules = ("torch", "transformers") if with_transformers else ("torch",)
        missing = not all(has_module(settings.python, module) for module in modules) and " or ".join(modules)
    if missing:
        print(f"{name}: {missing} is missing, so it is left out", file=sys.stderr)
    return not missing


@functools.cache
def has_module(python, module):
    search = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", search], check=False).returncode == 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--contenders",
        default="fastformer/*,gpt2/*",
        help="patterns of names MODEL/WHOSE/MODE, such as fastformer/*/*bf16; --list shows them",
    )
    parser.add_argument("--list", action="store_true", help="the contenders' names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of steps a contender takes in a round")
    parser.add_argument("--lengths", default="", help="such as 512,2048: each T with --config's tokens per step")
    parser.add_argument("--json", metavar="FILE", help="all of it, for programs")
    parser.add_argument("--built-in", metavar="DIR", help="where trainers without oneDNN are, for c-built-in")
    parser.add_argument("--python", default=sys.executable, help="that has torch (and transformers for GPT-2)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    bench.add_common_arguments(parser)
    settings = parser.parse_args()
    if min(settings.rounds, settings.threads) < 1 or not settings.seconds > 0:
        fail("--rounds, --threads and --seconds must be above 0")
    return settings


def main():
    settings = parse_arguments()
    if settings.worker:
        return worker(json.loads(settings.worker))
    if settings.list:
        return print("\n".join(contender_names()))
    names = chosen(settings.contenders, settings)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs the cleanup
    where = bench.machine() | {"threads": settings.threads, "load before": round(os.getloadavg()[0], 2)}
    runs = []
    for config in parse_lengths(settings):
        contenders, medians = compete(names, config, settings)
        for contender in contenders:
            where |= contender.versions
        rows = results(contenders, medians, config)
        print(markdown(rows, where, config), flush=True)
        runs.append({"config": config, "results": rows})
    if settings.json:
        with open(settings.json, "w") as file:
            json.dump({"environment": where, "runs": runs}, file, indent=1)
    return None


def compete(names, config, settings):
    """Measures one configuration. Returns the contenders and their rounds' median milliseconds."""
    with tempfile.TemporaryDirectory(prefix="peers-") as data:
        bench.write_dataset(data, config)
        os.mkdir(os.path.join(data, "pairs"))
        bench.write_pairs(os.path.join(data, "pairs"), config)
        contenders = [
            create_trainer(name, config, data, settings) if is_trainer(name) else PyTorch(name, config, settings)
            for name in names
        ]
        try:
            medians = measure(contenders, settings)
        finally:
            for contender in contenders:
                contender.stop()
    return contenders, medians


if __name__ == "__main__":
    main()
