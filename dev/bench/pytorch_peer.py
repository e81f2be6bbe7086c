#!/usr/bin/env python3
"""Our CUDA trainers compared with PyTorch on one GPU.

    python3 dev/bench/pytorch_peer.py check [--device cpu]
    python3 dev/bench/pytorch_peer.py gpu --json FILE
    python3 dev/bench/pytorch_peer.py measure MODEL [--config B=32,...]... [--modes MODE,...] [--llmc PROGRAM]... [--json FILE]

check compares the PyTorch models that are measured with the reference vectors in float64. gpu says what the GPU is and how
fast: products in bf16, copies of memory. measure takes training steps (forward, backward, clipping at norm 1, AdamW, with
dropout 0.1, on random tokens): with ./train_MODELcu, then with PyTorch in each mode,

    eager-bf16      autocast, fused AdamW
    compile-bf16    torch.compile as well
    graphs-bf16     torch.compile(mode="reduce-overhead"): CUDA graphs, as ours has
    eager-fp32, compile-fp32, graphs-fp32

then with llm.c's train_gpt2cu where it is named, and our trainer once more, so that a drift of the machine shows. Each row
is printed and written as soon as it is measured. Needs nothing but PyTorch. Fails where one contender could not be
measured, and says what was.
"""

import argparse
import collections
import glob
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import peers
import pytorch_models
import step as bench
import torch
from step import fail

ROOT = bench.ROOT
MODES = tuple(f"{how}-{precision}" for precision in ("bf16", "fp32") for how in ("eager", "compile", "graphs"))

# llm.c's models: {layers: (channels, heads)}. All have this vocabulary and number of positions.
LLMC_MODELS = {12: (768, 12), 24: (1024, 16), 36: (1280, 20), 48: (1600, 25)}
LLMC_VOCABULARY, LLMC_LENGTH = 50257, 1024

# The makers' FLOP/s in bf16 without sparsity, and bytes/s. The first name that the GPU's name
# contains applies.
GPUS = (
    ("H200", 989.4e12, 4.8e12),
    ("H100 PCIe", 756e12, 2.0e12),
    ("H100 NVL", 835e12, 3.9e12),
    ("H100", 989.4e12, 3.35e12),
    ("GH200", 989.4e12, 4.0e12),
    ("B200", 2250e12, 8.0e12),
    ("A100-SXM4-80GB", 311.9e12, 2.039e12),
    ("A100", 311.9e12, 1.555e12),
    ("L40S", 362e12, 0.864e12),
    ("L4", 121e12, 0.3e12),
    ("RTX 4090", 165.2e12, 1.008e12),
    ("A10G", 70e12, 0.6e12),
)


# ---- the machine -----------------------------------------------------------------------------------------------------


def seconds_of(function, repeats=10):
    """Returns the shortest of a few runs on the GPU, in seconds."""
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return min(times)


def measured_peaks():
    """Returns the FLOP/s of a large bf16 product and the bytes/s of a copy."""
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * size**3 / seconds_of(lambda: a @ b)
    source = torch.empty(1 << 29, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return flops, 2 * source.numel() / seconds_of(lambda: target.copy_(source))


def gpu():
    properties = torch.cuda.get_device_properties(0)
    flops, bandwidth = measured_peaks()
    known = next((row for row in GPUS if re.search(rf"\b{row[0]}\b", properties.name)), (None, flops, bandwidth))
    return {
        "gpu": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "measured_flops": flops,
        "measured_bandwidth": bandwidth,
        "peaks_from": "the maker" if known[0] else "measurement",
        "peak_flops": known[1],
        "peak_bandwidth": known[2],
    }


# ---- lower bounds of a step's cost -----------------------------------------------------------------------------------


def flops_per_token(model, c, window=0):
    """Returns the FLOP per token in matrix products: 2 per multiply-add, once forward and twice
    backward, as the trainers count."""
    C, T = c["C"], c["T"]
    keys = min(window or T, T / 2)
    layer = 11 * C * C if model == "fastformer" else 12 * C * C + 2 * C * keys
    return 6 * (c["L"] * layer + c["V"] * C)


def model_config(c, dropout=bench.DROPOUT, window=0):
    return pytorch_models.Config(
        vocabulary=c["V"],
        length=c["T"],
        channels=c["C"],
        heads=c["H"],
        layers=c["L"],
        dropout=dropout,
        attention_dropout=dropout,
        windows=(window,) * c["L"] if window else (),
    )


def parameter_count(model, c):
    with torch.device("meta"):
        module = pytorch_models.create_model(model, "plain", model_config(c), compiled=False)
    return sum(p.numel() for p in module.parameters())


def bytes_per_step(model, c):
    """Returns the bytes that a step has to move between the GPU and its memory even if everything
    else stays in caches. Per parameter, 42: AdamW reads and writes the value, the gradient and two
    moments in float32 and writes the bf16 copy; forward and backward read the copy; backward writes
    the gradient. Per token and layer: the activations for the backward pass are written and read
    once, the residual stream in float32 and the rest in bf16: two residual streams, two norms,
    queries, keys, values, attention's output, and 8C of the feed-forward network."""
    activations = 2 * (2 * 4 + (2 + 3 + 1 + 8) * 2) * c["C"]
    return 42 * parameter_count(model, c) + c["B"] * c["T"] * c["L"] * activations


# ---- contenders ------------------------------------------------------------------------------------------------------


def create_stepper(model, mode, sizes, device, dropout=bench.DROPOUT, window=0):
    """Returns a function that takes one training step on fresh random tokens and returns its
    milliseconds. A step ends with the loss on the host, so it is complete when its time is
    taken."""
    how, precision = mode.split("-")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # TF32
    module = pytorch_models.create_model(model, "plain", model_config(sizes, dropout, window), compiled=False).to(device)
    loss = pytorch_models.plain_loss(module)
    if how != "eager":
        loss = torch.compile(loss, dynamic=False, mode="reduce-overhead" if how == "graphs" else None)
    optimizer = pytorch_models.create_optimizer(module)
    parameters = list(module.parameters())

    def cast_loss(*batch):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
            return loss(*batch)

    def step():
        tokens = torch.randint(1, sizes["V"], (sizes["B"], sizes["T"]), device=device)
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        pytorch_models.training_step(cast_loss, parameters, optimizer, tokens, tokens)
        return 1e3 * (time.perf_counter() - start)

    return step


def step_count(milliseconds, seconds):
    """Returns how many steps take about `seconds`."""
    return min(max(3, round(1e3 * seconds / milliseconds)), 200)


def time_pytorch(mode, sizes, settings):
    torch.compiler.reset()
    step = create_stepper(settings.model, mode, sizes, settings.device, settings.dropout, settings.window)
    warmup = [step() for _ in range(peers.WARMUP_STEPS)]
    return [step() for _ in range(step_count(warmup[-1], settings.seconds))]


def time_ours(data, sizes, settings):
    program = os.path.join(settings.build, f"train_{settings.model}cu")
    if not os.path.exists(program):
        fail(f"{program} is not built")
    options = shlex.split(settings.options)
    if settings.window:
        options += ["--windows", ",".join([str(settings.window)] * sizes["L"])]
    trainer = peers.Trainer(
        f"{settings.model}/cuda/bf16", program, sizes, data, bench.cores(), settings.dropout, options
    )
    try:
        trainer.start()
        return trainer.steps(step_count(trainer.steps(3)[-1], settings.seconds))
    finally:
        trainer.stop()


def llmc_command(words, data, c):
    """Returns llm.c's command: options for endless training steps and nothing else, then its own
    options in `words`. -m 0: validation runs at the first and last step anyway, so it gets no
    batch. -r 0: llm.c recomputes GELU by default."""
    if LLMC_MODELS.get(c["L"]) != (c["C"], c["H"]) or c["V"] != LLMC_VOCABULARY or c["T"] > LLMC_LENGTH:
        known = " or ".join(f"L={L},C={C},H={H}" for L, (C, H) in LLMC_MODELS.items())
        fail(f"llm.c has only models of {known}, with V={LLMC_VOCABULARY} and T of at most {LLMC_LENGTH}")
    shard = os.path.join(data, "train_000000.bin")
    options = {"-i": shard, "-j": shard, "-e": f"d{c['L']}", "-b": c["B"], "-t": c["T"], "-d": c["B"] * c["T"]}
    options |= {"-x": 1 << 30, "-v": 1 << 30, "-m": 0, "-s": 0, "-h": 0, "-n": 0, "-r": 0}
    command = [os.path.abspath(words[0])] + [str(word) for option in options.items() for word in option]
    return ["stdbuf", "-oL", *command, *words[1:]]  # flushes each line


def llmc_environment():
    """Returns an environment in which llm.c finds PyTorch's cuDNN, and its cuBLAS if no other is
    installed."""
    packages = {path for root in sys.path for path in glob.glob(os.path.join(root, "nvidia", "*", "lib"))}
    paths = [*filter(None, [os.environ.get("LD_LIBRARY_PATH")]), *sorted(packages)]
    return bench.environment(bench.cores()) | {"LD_LIBRARY_PATH": ":".join(paths)}


def time_llmc(words, data, sizes, settings):
    """Returns llm.c's own milliseconds per step, from reading the batch to the end of the
    update."""
    if settings.dropout:
        fail("llm.c has no dropout: take --dropout 0")
    command = llmc_command(words, data, sizes)
    if not os.path.exists(command[2]):
        fail(f"{command[2]} is not built")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=data,
        env=llmc_environment(),
    )
    said, times, enough = collections.deque(maxlen=20), [], None
    try:
        while enough is None or len(times) < enough:
            line = process.stdout.readline()
            if not line:
                fail(f"{words[0]}: ended with exit code {process.wait()}\n{''.join(said)}")
            said.append(line)
            found = re.match(r"step +\d+/\d+ \|.*\| ([0-9.]+) ms \|", line)
            if found:
                times.append(float(found[1]))
                if len(times) == peers.WARMUP_STEPS:
                    enough = peers.WARMUP_STEPS + step_count(times[-1], settings.seconds)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    return times[peers.WARMUP_STEPS :]


def attempt(name, function, *arguments):
    """Returns a row of the results: milliseconds per step, or the error. A contender that fails
    does not stop the others."""
    print(name, file=sys.stderr, flush=True)
    try:
        times = function(*arguments)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        return {"contender": name, "error": f"{type(error).__name__}: {lines[0]}"[:300]}
    finally:
        torch.cuda.empty_cache()
    return {"contender": name, "ms": statistics.median(times), "ms_of_steps": [round(t, 4) for t in times]}


def measure(sizes, settings):
    """Yields the rows of the results, each as soon as it is measured."""
    name = f"{settings.model}/cuda/bf16"
    with tempfile.TemporaryDirectory(prefix="peer-") as data:
        bench.write_dataset(data, sizes)
        yield attempt(name, time_ours, data, sizes, settings)
        for mode in settings.modes:
            yield attempt(f"{settings.model}/pytorch/{mode}", time_pytorch, mode, sizes, settings)
        for words in settings.llmc:
            row = " ".join([os.path.basename(words[0]), *words[1:]])
            yield attempt(f"{settings.model}/llm.c/{row}", time_llmc, words, data, sizes, settings)
        if settings.modes or settings.llmc:
            yield attempt(f"{name} again", time_ours, data, sizes, settings)


# ---- the report ------------------------------------------------------------------------------------------------------


def complete(row, ours, model, c, where, window=0):
    """Adds to a row the values that follow from its time and from ours (None: unknown)."""
    if "ms" not in row:
        return
    row["tokens_per_s"] = c["B"] * c["T"] / row["ms"] * 1e3
    row["times_ours"] = row["ms"] / ours if ours else None
    if where:
        flops = flops_per_token(model, c, window) * row["tokens_per_s"]
        row["share_of_peak"] = flops / where["peak_flops"]
        row["share_of_bandwidth"] = bytes_per_step(model, c) / row["ms"] * 1e3 / where["peak_bandwidth"]


def share(row, key):
    return f"{100 * row[key]:.1f} %" if key in row else "-"


def markdown_head(model, sizes, dropout, window=0, options=""):
    title = ", ".join(f"{key} {value}" for key, value in sizes.items())
    if dropout != bench.DROPOUT:
        title += f", dropout {dropout:g}"
    if window:
        title += f", window {window}"
    if options:
        title += f", {options}"
    return (
        f"### {model}: {title}\n\n"
        "| | ms/step | tokens/s | of bf16 peak | of memory bandwidth | times ours |\n|---|---|---|---|---|---|"
    )


def markdown_row(row):
    if "error" in row:
        return f"| {row['contender']} | failed: {row['error'].replace('|', '/')} | | | | |"
    times = f"{row['times_ours']:.2f}" if row["times_ours"] else "-"
    return (
        f"| {row['contender']} | {row['ms']:.3f} | {row['tokens_per_s']:,.0f} | {share(row, 'share_of_peak')} | "
        f"{share(row, 'share_of_bandwidth')} | {times} |"
    )


# ---- command line ----------------------------------------------------------------------------------------------------


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="the PyTorch models against the reference vectors")
    speeds = commands.add_parser("gpu", help="what the GPU is and how fast")
    steps = commands.add_parser("measure", help="milliseconds a training step")
    steps.add_argument("model", choices=("fastformer", "gpt2"))
    steps.add_argument(
        "--config", action="append", help="such as T=8192,B=1, any number; default: B=2,T=2048,C=128,H=4,L=6,V=32000"
    )
    steps.add_argument("--modes", default="eager-bf16,compile-bf16,graphs-bf16", help=f"some of {','.join(MODES)}; or ''")
    steps.add_argument(
        "--llmc", action="append", metavar="PROGRAM", help="llm.c's train_gpt2cu, maybe with options; any number; gpt2 only"
    )
    steps.add_argument("--dropout", type=float, default=bench.DROPOUT, metavar="X", help="default: %(default)s; llm.c has none")
    steps.add_argument(
        "--window", type=int, default=0, metavar="W", help="of all layers; PyTorch by FlexAttention; gpt2 and --dropout 0"
    )
    steps.add_argument("--options", default="", help="of our trainer, such as --options=--fused-output")
    steps.add_argument("--seconds", type=float, default=2, help="of steps a contender takes")
    steps.add_argument("--build", default=ROOT, metavar="DIR", help="where train_fastformercu is")
    for command in (check, steps):
        command.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of PyTorch")
    for command in (speeds, steps):
        command.add_argument("--json", metavar="FILE", help="all of it, for programs")
    settings = parser.parse_args()
    if settings.command == "measure":
        settings.sizes = [bench.parse_config(text) for text in settings.config or [""]]
        settings.modes = list(filter(None, settings.modes.split(",")))
        settings.llmc = [shlex.split(text) for text in settings.llmc or []]
        if settings.llmc and settings.model != "gpt2":
            fail("--llmc: llm.c has only gpt2")
        if settings.window and (settings.model != "gpt2" or settings.dropout):
            fail("--window: FlexAttention is in gpt2, and drops no weights: --dropout 0")
        if not all(settings.llmc):
            fail("--llmc: no program")
        for mode in settings.modes:
            if mode not in MODES:
                fail(f"--modes: {mode!r} is none of {', '.join(MODES)}")
    if getattr(settings, "device", "cuda") == "cuda" and not torch.cuda.is_available():
        fail("PyTorch finds no GPU")
    return settings


def write_json(path, value):
    """Writes the file atomically, as a caller may be killed at any time."""
    if path:
        with open(f"{path}.new", "w") as file:
            json.dump(value, file, indent=1)
        os.replace(f"{path}.new", path)


def main():
    settings = parse_arguments()
    if settings.command == "check":
        variants = {model: ("plain",) for model in pytorch_models.VARIANTS}
        sys.exit(1 if pytorch_models.check(pytorch_models.reference_files(), variants, settings.device) else 0)
    if settings.command == "gpu":
        where = gpu()
        write_json(settings.json, where)
        print("\n".join(f"{key} {value}" for key, value in where.items()))
        return
    where = gpu() if settings.device == "cuda" else None
    results = []
    for sizes in settings.sizes:
        rows = []
        about = {key: getattr(settings, key) for key in ("dropout", "window", "options")}
        results.append({"model": settings.model, "config": sizes, **about, "results": rows})
        print(markdown_head(settings.model, sizes, **about), flush=True)
        for row in measure(sizes, settings):
            rows.append(row)
            complete(row, rows[0].get("ms"), settings.model, sizes, where, settings.window)
            print(markdown_row(row), flush=True)
            write_json(settings.json, results)
        print()
    sys.exit(1 if any("error" in row for result in results for row in result["results"]) else 0)


if __name__ == "__main__":
    main()
