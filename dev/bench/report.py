#!/usr/bin/env python3
"""One report of what run.sh measured: Markdown on standard output.

    python3 dev/bench/report.py PARTS [--json FILE] [--plot DIR]
    python3 dev/bench/report.py --rows PARTS...      the rows of docs/results.md, one a machine

PARTS is a directory of parts, or a file that --json wrote, which has all of them. tokens_by_length.png goes into DIR.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys

PRECISIONS = {"bf16": "bf16", "fp32": "float32"}


def load(path):
    """Returns a file's JSON object, or the list of objects if it has one per line."""
    with open(path) as file:
        text = file.read()
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def load_parts(directory):
    if os.path.isfile(directory):
        return load(directory)["parts"]
    names = sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    return {name[: -len(".json")]: load(os.path.join(directory, name)) for name in names}


# ---- reading the parts -----------------------------------------------------------------------------------------------


def rows_of(parts, name, **config):
    """Returns {contender: row} of a part that peers.py wrote, for the first configuration with
    these sizes."""
    for run in parts.get(name, {}).get("runs", []):
        if all(run["config"][key] == value for key, value in config.items()):
            return {row["contender"]: row for row in run["results"]}
    return {}


def ratio(rows, slow, fast):
    """Returns the median over the rounds of one contender's time over another's; None if one is
    missing."""
    if slow not in rows or fast not in rows:
        return None
    return statistics.median(a / b for a, b in zip(rows[slow]["ms_of_rounds"], rows[fast]["ms_of_rounds"]))


def over_fastest(rows, model, mode):
    """Returns the fastest PyTorch's time over our trainer's in the same precision, and that
    contender's name and speed."""
    ours = f"{model}/c/{mode.split('-')[-1]}"
    peers = [n for n in rows if n.startswith(f"{model}/") and "/c" not in n.rsplit("/", 1)[0] and n.endswith(mode)]
    if not peers:
        return None, ""
    fastest = min(peers, key=lambda name: rows[name]["ms"])
    return ratio(rows, fastest, ours), f"{fastest} {rows[fastest]['tokens_per_s']:,.0f} tokens/s"


def lengths_of(parts, name, contender):
    """Returns a contender's [(T, row)] over the lengths of a part."""
    found = []
    for run in parts.get(name, {}).get("runs", []):
        found += [(run["config"]["T"], row) for row in run["results"] if row["contender"] == contender]
    return sorted(found, key=lambda pair: pair[0])


# ---- targets ---------------------------------------------------------------------------------------------------------


def ours(rows, contender):
    return f"ours {rows[contender]['tokens_per_s']:,.0f} tokens/s" if contender in rows else ""


def fast_precision(parts):
    """Returns the precision of the parts that run.sh measures in one precision only: float32 if the
    processor has no bf16 products."""
    return "bf16" if "steps-fastformer-bf16" in parts or "steps-fastformer-fp32" not in parts else "fp32"


def speed_targets(parts):
    """Returns [(what, target, measured, remark)]; a target is (">=" or "<=", number), or ("",
    None)."""
    fastformer, gpt2, large = rows_of(parts, "fastformer"), rows_of(parts, "gpt2"), rows_of(parts, "large")
    fast = fast_precision(parts)
    step = parts.get(f"steps-fastformer-{fast}", {})
    targets = []
    for what, rows, model, precision, target in (
        ("Fastformer", fastformer, "fastformer", "bf16", (">=", 4)),
        ("Fastformer", fastformer, "fastformer", "fp32", (">=", 3)),
        ("GPT-2", gpt2, "gpt2", "bf16", (">=", 2.5)),
        ("GPT-2", gpt2, "gpt2", "fp32", ("", None)),
        ("GPT-2 124M", large, "gpt2", fast, (">=", 1.6) if fast == "bf16" else ("", None)),
    ):
        times, fastest = over_fastest(rows, model, f"compile-{precision}")
        remark = f"{ours(rows, f'{model}/c/{precision}')}; {fastest}"
        targets.append((f"{what}, {PRECISIONS[precision]}: times the fastest torch.compile", target, times, remark))
    flash = "PyTorch's flash attention, which drops no weights"
    for what, rows, slow, ours_of in (
        ("Fastformer, {}: times the published class", fastformer, "fastformer/published", "fastformer/c"),
        ("GPT-2, {}: times " + flash, gpt2, "gpt2/flash", "gpt2/c"),
        ("GPT-2 124M, {}: times " + flash, large, "gpt2/flash", "gpt2/c"),
    ):
        times = ratio(rows, f"{slow}/compile-{fast}", f"{ours_of}/{fast}")
        targets.append((f"{what.format(PRECISIONS[fast])}, torch.compile", ("", None), times, ""))
    what = f"Fastformer, {PRECISIONS[fast]}: percent of a large product's speed"
    remark = f"of {step['peak_gflops']:,.0f} GFLOP/s" if step else ""
    targets.append((what, (">=", 70), step.get("percent_of_peak"), remark))
    built_in = ratio(fastformer, "fastformer/c/fp32", "fastformer/c-built-in/fp32")
    targets.append(("no library: percent of float32 with oneDNN", (">=", 60), built_in and 100 * built_in, ""))
    eager = ratio(fastformer, "fastformer/published/eager-fp32", "fastformer/c-built-in/fp32")
    targets.append(("no library: times the published class, float32 eager", (">=", 1), eager, ""))
    for precision in ("bf16", "fp32"):
        threads = ratio(fastformer, f"fastformer/c-one-thread/{precision}", f"fastformer/c/{precision}")
        targets.append((f"all threads: times one thread, {precision}", (">=", 1.8), threads, ""))
    return targets


def length_targets(parts):
    targets = []
    fast = fast_precision(parts)
    curve = lengths_of(parts, "lengths-ours", f"fastformer/c/{fast}")
    speeds = [row["tokens_per_s"] for _, row in curve]
    if curve:
        slowest = 100 * (1 - min(speeds) / max(speeds))
        remark = f"T {curve[0][0]:,} .. {curve[-1][0]:,}: {min(speeds):,.0f} .. {max(speeds):,.0f} tokens/s"
        targets.append(("tokens/s by length: percent from highest to lowest", ("<=", 10), slowest, remark))
        memory = [row["peak_bytes"] / 1e6 for _, row in curve]
        remark = f"{min(memory):,.0f} .. {max(memory):,.0f} MB with the same tokens per step"
        targets.append(("memory by length: largest over smallest", ("<=", 1.1), max(memory) / min(memory), remark))
    rows = rows_of(parts, "lengths-peers", T=16384)
    times = ratio(rows, f"gpt2/c/{fast}", f"fastformer/c/{fast}")
    targets.append(("T = 16,384: times our GPT-2", (">=", 5), times, ""))
    return targets


def other_targets(parts):
    targets = []
    decoding = {name: part for name, part in parts.items() if name.startswith("decoding-")}
    for name, part in decoding.items():
        if part["streams"] == 1:
            what = f"{name.split('-')[1]}, position {part['position']:,}"
            remark = (
                f"{part['tokens_per_s']:,.0f} tokens/s; {part['percent_of_memory']:.0f}% of reading them from memory"
            )
            targets.append(
                (f"decoding, {what}: percent of reading the weights", (">=", 70), part["percent_of_read"], remark)
            )
    start, step = parts.get("steps-wikitext2", {}), parts.get(f"steps-fastformer-{fast_precision(parts)}", {})
    targets.append(("WikiText-2: seconds from start to first step", ("<=", 1), start.get("start_s"), ""))
    evaluation = step and step["eval_tokens_per_s"] / step["tokens_per_s"]
    targets.append(("evaluation: times the training speed", (">=", 2.5), evaluation or None, ""))
    return targets


def show_targets(parts):
    lines = ["| | target | measured | reached | |", "|---|---|---|---|---|"]
    for what, (sign, target), measured, remark in speed_targets(parts) + length_targets(parts) + other_targets(parts):
        if measured is None:
            continue
        if target is None:
            aim, reached = "", ""
        else:
            aim = f"{sign} {target}"
            reached = "yes" if (measured >= target if sign == ">=" else measured <= target) else "no"
        lines.append(f"| {what} | {aim} | {measured:.2f} | {reached} | {remark} |")
    return lines


# ---- the row of a machine --------------------------------------------------------------------------------------------

ROW_HEADING = [
    "| machine, precision | measured | PyTorch | hardware | Fastformer, tokens/s | fastest PyTorch | times "
    "| GPT-2, tokens/s | fastest PyTorch | times |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


def machine_name(where):
    words = (where.get(key) for key in ("processor", "c/bf16", "c/fp32"))
    name, *products = (word for word in words if word)
    tiles = products[0].split("tiles by ")[-1].split(",")[0] if products else ""
    return f"{name}, {tiles}, {where.get('threads', where['cores'])} threads"


def hardware(peak):
    """Returns peak.c's measurements as text."""
    units = {
        "vectors_gflops": "vectors {:,.0f} GFLOP/s",
        "vectors_bf16_gflops": "bf16 {:,.0f}",
        "tiles_gflops": "tiles {:,.0f}",
        "memory_gb_per_s": "memory {:,.0f} GB/s",
    }
    return ", ".join(unit.format(peak[key]) for key, unit in units.items() if key in peak)


def machine_row(parts):
    """Returns a row of docs/results.md: the models in the precision that `-p auto` chooses,
    compared with the fastest torch.compile."""
    models = ("fastformer", "gpt2")
    where = environment_of({model: parts.get(model) for model in models})
    rows = {model: rows_of(parts, model) for model in models}
    # -p auto chooses float32 if its products are faster than those of bf16.
    speeds = {mode: rows["fastformer"][f"fastformer/c/{mode}"]["ms"] for mode in PRECISIONS
              if f"fastformer/c/{mode}" in rows["fastformer"]}
    if not speeds:
        return None
    mode = min(speeds, key=speeds.get)
    cells = [f"{machine_name(where)}, {PRECISIONS[mode]}",
             " ".join(where[key] for key in ("date", "commit") if where.get(key)) or "-",
             where.get("torch", "-").split("+")[0], hardware(parts.get("peak", {}))]
    for model, found in rows.items():
        times, fastest = over_fastest(found, model, f"compile-{mode}")
        row = found.get(f"{model}/c/{mode}")
        cells += [f"{row['tokens_per_s']:,.0f}" if row else "",
                  fastest.split(" ")[1] if fastest else "", f"{times:.2f}" if times else ""]
    return "| " + " | ".join(cells) + " |"


def show_machine(parts):
    row = machine_row(parts)
    return ["", "## The row of this machine", "", *ROW_HEADING, row] if row else []


# ---- tables ----------------------------------------------------------------------------------------------------------


def show_peers(part):
    lines = []
    for run in part["runs"]:
        lines += ["", ", ".join(f"{key} {value}" for key, value in run["config"].items()), ""]
        lines += [
            "| | s/step | lowest .. highest round | tokens/s | peak memory, MB | times C |",
            "|---|---|---|---|---|---|",
        ]
        for row in run["results"]:
            times = f"{row['times_c']:.2f}" if row["times_c"] else "-"
            lines.append(
                f"| {row['contender']} | {row['ms'] / 1e3:.3f} | {row['ms_lowest'] / 1e3:.3f} .. "
                f"{row['ms_highest'] / 1e3:.3f} | {row['tokens_per_s']:,.0f} | {row['peak_bytes'] / 1e6:,.0f} | {times} |"
            )
    return lines


def show_rows(rows, columns):
    """Returns the lines of a table; columns: {heading: (member, format)}."""
    lines = ["", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [format(row[key], form) if row.get(key) is not None else "" for key, form in columns.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


STEP_COLUMNS = {
    "s/step": ("s_per_step", ".3f"),
    "lowest": ("s_lowest", ".3f"),
    "highest": ("s_highest", ".3f"),
    "tokens/s": ("tokens_per_s", ",.0f"),
    "GFLOP/s": ("gflops", ",.0f"),
    "% of peak": ("percent_of_peak", ".1f"),
    "start, s": ("start_s", ".2f"),
    "evaluation, tokens/s": ("eval_tokens_per_s", ",.0f"),
}
PROFILE_COLUMNS = {
    "": ("kind", ""),
    "forward, ms": ("forward_ms", ".2f"),
    "backward, ms": ("backward_ms", ".2f"),
    "all, ms": ("ms", ".2f"),
    "%": ("percent", ".1f"),
    "GFLOP/s": ("gflops", ",.0f"),
}
LAYER_COLUMNS = {
    "": ("layer", ""),
    "direction": ("direction", ""),
    "precision": ("precision", ""),
    "ms": ("ms", ".3f"),
    "GFLOP/s": ("gflops", ",.0f"),
    "% of peak": ("percent_of_peak", ".1f"),
    "GB/s": ("gb_per_s", ".1f"),
    "% of reading": ("percent_of_read", ".0f"),
}
DECODING_COLUMNS = {
    "windows": ("name", ""),
    "C": ("channels", ""),
    "V": ("vocabulary", ""),
    "streams": ("streams", ""),
    "position": ("position", ",d"),
    "us/token": ("us_per_token", ",.0f"),
    "tokens/s": ("tokens_per_s", ",.0f"),
    "GB/s": ("gb_per_s", ".1f"),
    "read, GB/s": ("read_gb_per_s", ".1f"),
    "% of reading": ("percent_of_read", ".0f"),
}
PRODUCT_COLUMNS = {
    "": ("product", ""),
    "precision": ("precision", ""),
    "m": ("m", ""),
    "n": ("n", ""),
    "k": ("k", ""),
    "ms": ("ms", ".3f"),
    "GFLOP/s": ("gflops", ",.0f"),
    "% of peak": ("percent_of_peak", ".1f"),
}


def models_by_length(parts):
    """Returns {T: {contender: row}} of both models."""
    pairs = {}
    for name in parts:
        if name.startswith("models"):
            for contender in ("fastformer/c/auto", "gpt2/c/auto"):
                for length, row in lengths_of(parts, name, contender):
                    pairs.setdefault(length, {})[contender] = row
    return dict(sorted(pairs.items()))


def show_models(parts):
    pairs = models_by_length(parts)
    lines = [
        "",
        "## both models by length",
        "",
        "| T | Fastformer, tokens/s | GPT-2, tokens/s | times |",
        "|---|---|---|---|",
    ]
    for length, rows in pairs.items():
        fast, slow = (rows[name]["tokens_per_s"] for name in ("fastformer/c/auto", "gpt2/c/auto"))
        times = ratio(rows, "gpt2/c/auto", "fastformer/c/auto")
        lines.append(f"| {length:,} | {fast:,.0f} | {slow:,.0f} | {times:.2f} |")
    return lines if pairs else []


THREAD_COLUMNS = {
    "model": ("model", ""),
    "threads": ("threads", ""),
    "s/step": ("s_per_step", ".3f"),
    "tokens/s": ("tokens_per_s", ",.0f"),
    "times one thread": ("times", ".2f"),
}


def show_threads(parts):
    """Returns the section of the parts threads-MODEL-COUNT."""
    rows = []
    for name, part in parts.items():
        if name.startswith("threads-"):
            _, model, count = name.split("-")
            alone = parts.get(f"threads-{model}-001", part)
            times = part["tokens_per_s"] / alone["tokens_per_s"]
            rows.append(part | {"model": model, "threads": int(count), "times": times})
    return ["", "## threads", *show_rows(rows, THREAD_COLUMNS)] if rows else []


HYBRID_COLUMNS = {
    "size": ("size", ""),
    "attention": ("attention", ""),
    "short T": ("short", ",d"),
    "ms/step": ("short_ms", ",.0f"),
    "long T": ("long", ",d"),
    "ms/step there": ("long_ms", ",.0f"),
    "times the short one": ("times", ".2f"),
}


def show_hybrids(parts):
    """Returns the section of the parts hybrids-SIZE: the cost of the same tokens in the longest
    sequences, compared with the shortest."""
    rows = []
    for name, part in parts.items():
        if name.startswith("hybrids-"):
            for contender in (row["contender"] for row in part["runs"][0]["results"]):
                curve = lengths_of(parts, name, contender)
                (short, first), (long, last) = curve[0], curve[-1]
                rows.append({"size": name.split("-")[1], "attention": contender.split("/")[0],
                             "short": short, "short_ms": first["ms"], "long": long, "long_ms": last["ms"],
                             "times": last["ms"] / first["ms"]})
    return ["", "## mixed attention by length", *show_rows(rows, HYBRID_COLUMNS)] if rows else []


def show_sections(parts):
    lines = show_models(parts) + show_hybrids(parts) + show_threads(parts)
    for name, part in parts.items():
        if isinstance(part, dict) and "runs" in part:
            lines += ["", f"## {name}", *show_peers(part)]
    for name, part in parts.items():
        if name.startswith("steps-"):
            lines += ["", f"## {name}: {part['products']}, {part['peak_bytes'] / 1e6:,.0f} MB"]
            lines += show_rows([part], STEP_COLUMNS)
            shown = [row for row in part["profile"] if row.get("percent", 0) >= 0.05]
            lines += show_rows(shown, PROFILE_COLUMNS)
    decoding = [part | {"name": name.split("-")[1]} for name, part in parts.items() if name.startswith("decoding-")]
    if decoding:
        lines += ["", "## decoding", *show_rows(decoding, DECODING_COLUMNS)]
    for name, part in parts.items():
        if name.startswith("layers-"):
            lines += ["", f"## {name}", *show_rows(part, LAYER_COLUMNS)]
    if "products" in parts:
        lines += ["", "## products", *show_rows(parts["products"], PRODUCT_COLUMNS)]
    return lines


def environment_of(parts):
    """Merges the environments of all parts; a member that differs has the last part's value."""
    where = {}
    for part in parts.values():
        if isinstance(part, dict):
            where |= part.get("environment", {})
    return where


NAMES = {
    "fastformer/c": "Fastformer, this project",
    "gpt2/c": "GPT-2, this project",
    "fastformer/published": "Fastformer, PyTorch, published sums",
    "fastformer/ours": "Fastformer, PyTorch, faster sums",
    "gpt2/ours": "GPT-2, PyTorch",
    "gpt2/flash": "GPT-2, PyTorch, flash attention",
}


def name_of(contender):
    """Returns a readable name of a contender such as fastformer/c/auto."""
    model, _, mode = contender.rpartition("/")
    kind, _, precision = mode.rpartition("-")
    words = [NAMES.get(model, model), {"compile": "compiled"}.get(kind, kind), precision.replace("fp32", "float32")]
    return ", ".join(word for word in words if word and word != "auto")


def curves_of(parts):
    """Returns {name: [(T, tokens/s)]} of both models, of our trainer with more tokens per step, and
    of PyTorch."""
    curves = {}
    for length, rows in models_by_length(parts).items():
        for contender, row in rows.items():
            curves.setdefault(name_of(contender), []).append((length, row["tokens_per_s"]))
    for part, mark in (("lengths-peers", ""), ("lengths-ours", ", 65,536 tokens per step")):
        for contender in sorted({row["contender"] for run in parts.get(part, {}).get("runs", []) for row in run["results"]}):
            # The same trainer with the same tokens per step is already in its model's curve.
            alone = name_of(contender.replace(fast_precision(parts), "auto"))
            if part == "lengths-ours" or alone not in curves:
                rows = lengths_of(parts, part, contender)
                curves[name_of(contender) + mark] = [(length, row["tokens_per_s"]) for length, row in rows]
    return curves


def draw(parts, directory):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))
    import plot

    found = curves_of(parts)
    curves = [{"label": name, "colour": i, "points": points} for i, (name, points) in enumerate(found.items())]
    lengths = sorted({length for points in found.values() for length, _ in points})
    panel = {"xlabel": "sequence length T, tokens", "ylabel": "training, tokens/s", "xlog": True, "ylog": True,
             "xticks": lengths, "curves": curves}
    plot.draw(directory, "tokens_by_length", [panel], "The same number of tokens per step at each length", ("png",))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", metavar="PARTS", nargs="+")
    parser.add_argument("--rows", action="store_true", help="the rows of these machines alone")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="DIR")
    settings = parser.parse_args()
    if settings.rows:
        return print("\n".join(ROW_HEADING + [machine_row(load_parts(path)) for path in settings.parts]))
    parts = load_parts(settings.parts[0])
    where = environment_of(parts)
    lines = ["# Measured speed", "", "; ".join(f"{key} {value}" for key, value in where.items()) + ".", ""]
    print("\n".join(lines + show_targets(parts) + show_machine(parts) + show_sections(parts)))
    if settings.json:
        with open(settings.json, "w") as file:
            json.dump({"environment": where, "parts": parts}, file, indent=1)
    if settings.plot:
        with contextlib.redirect_stdout(sys.stderr):
            draw(parts, settings.plot)
    return None


if __name__ == "__main__":
    main()
