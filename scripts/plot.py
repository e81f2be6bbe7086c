#!/usr/bin/env python3
"""Draws the curves of training runs, by step and by time: loss, bits per byte of the validation
where the log has them, norm of the gradients, learning rate.

  scripts/plot.py [-o DIR] [-t TITLE] [-n NAME]... RUN...

RUN is a directory with a log.jsonl, or a log. Runs that differ in their seeds alone are one curve,
their mean, unless they have names (-n). Writes loss_by_step.png, loss_by_time.png and the same as
.svg into DIR. Needs matplotlib.
"""

import argparse
import itertools
import os
import re
import sys

import logs

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MODELS = {"fastformer": "Fastformer", "gpt2": "GPT-2", "bert": "BERT", "translate": "Transformer"}
DATA = {
    "wikitext2": "WikiText-2",
    "wikitext2-bert": "WikiText-2",
    "multi30k": "Multi30k",
    "wikitext2-words": "WikiText-2 by words",
    "tinyshakespeare": "Tiny Shakespeare",
    "linux": "the kernel's source",
    "embedded": "the project's source",
}
MISSING = "matplotlib is missing: pip install matplotlib (Debian: apt install python3-matplotlib)"


def matplotlib():
    """Returns pyplot, set up; None if matplotlib is missing."""
    try:
        import matplotlib as library

        library.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    pyplot.rcParams.update(
        {
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": "#444444",
            "axes.grid": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.8,
            "axes.axisbelow": True,
            "legend.frameon": False,
            "font.size": 10,
            "figure.dpi": 100,
            "savefig.dpi": 100,
            "svg.hashsalt": "fastformer",
            "lines.linewidth": 1.6,
            "lines.markersize": 4,
        }
    )
    return pyplot


def shrink(path):
    """Reduces a PNG to a third of its size: its palette has our colours, each in 16 steps to white,
    and greys."""
    from PIL import Image

    colours = [tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in COLOURS]
    shades = [round(255 + (x - 255) * step / 16) for c in colours for step in range(17) for x in c]
    palette = Image.new("P", (1, 1))
    palette.putpalette((shades + [x // 3 * 8 for x in range(96)])[:768])
    image = Image.open(path).convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
    image.save(path, "png", optimize=True)


def save(figure, directory, name, formats=("png", "svg")):
    """Writes NAME.png and NAME.svg atomically."""
    os.makedirs(os.path.dirname(os.path.join(directory, name)) or ".", exist_ok=True)
    for kind in formats:
        path = os.path.join(directory, f"{name}.{kind}")
        figure.savefig(
            f"{path}.new", format=kind, metadata={"Date": None} if kind == "svg" else None
        )
        if kind == "png":
            shrink(f"{path}.new")
        os.replace(f"{path}.new", path)
        print(path)


# ---- axes


def plain(x, _=None):
    """Returns the label of a tick: 3e-4, 6.25e-4, 2.5e-3, 0.05, 20, 3,000, 1e6."""
    if 1000 <= abs(x) < 1e6:
        return f"{x:,.0f}"
    if x == 0 or 1e-2 <= abs(x) < 1e6:
        return f"{x:.6g}"
    return re.sub(r"\.?0*e\+?(-?)0*", r"e\1", f"{x:.3e}")


def logarithmic(axis, limits):
    """Labels a logarithmic axis at each power of ten, and between them if these are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = sorted(limits)
    ratio = high / low if low > 0 else 1
    between = (
        (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if ratio < 10 else (1, 2, 5) if ratio < 500 else (1,)
    )
    base = 10 if ratio < 1e8 else 1000
    axis.set_major_locator(LogLocator(base=base, subs=between, numticks=20))
    axis.set_major_formatter(FuncFormatter(plain))
    axis.set_minor_formatter(NullFormatter())


def finish(ax, panel):
    """Sets labels, scales and ticks of a panel after its curves are drawn."""
    ax.set_xlabel(panel.get("xlabel", ""))
    ax.set_ylabel(panel.get("ylabel", ""))
    ax.set_title(panel.get("title", ""), fontsize=10)
    if panel.get("ylim"):
        ax.set_ylim(*panel["ylim"])
    for name in ("x", "y"):
        if panel.get(f"{name}log"):
            getattr(ax, f"set_{name}scale")("log")
            logarithmic(getattr(ax, f"{name}axis"), getattr(ax, f"get_{name}lim")())
    if panel.get("xlabel") == "epoch":
        from matplotlib.ticker import MaxNLocator

        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.get("xticks"):
        from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

        ticks, names = panel["xticks"], panel.get("xnames")
        ax.xaxis.set_minor_locator(NullLocator())
        if names:
            ax.set_xticks(ticks, names)
        else:
            ax.xaxis.set_major_locator(FixedLocator(ticks))
            ax.xaxis.set_major_formatter(FuncFormatter(plain))


def draw_curve(ax, curve):
    """Draws a curve: label, colour (an index), points (x, y[, spread]); marks: points (x, y) where
    a run diverged."""
    colour = COLOURS[curve["colour"] % len(COLOURS)]
    style = {
        "color": colour,
        "linestyle": ("-", "--")[curve["colour"] // len(COLOURS) % 2],  # more curves than colours
        "alpha": curve.get("alpha", 1),
        "marker": curve.get("marker", "o"),
        "label": curve.get("label"),
    }
    columns = list(zip(*curve["points"]))
    if len(columns) > 2:
        ax.errorbar(*columns[:2], yerr=columns[2], capsize=3, **style)
    else:
        ax.plot(*columns[:2], **style)
    if curve.get("marks"):
        ax.plot(*zip(*curve["marks"]), "x", color=colour, markersize=11, markeredgewidth=2.5)


def draw(directory, name, panels, title=None, formats=("png", "svg")):
    """Writes NAME.png and NAME.svg: panels side by side with one legend to the right. Leaves out
    panels without curves, and draws nothing if no panel is left. Prints a message if matplotlib is
    missing. Returns whether it drew a picture."""
    panels = [{**p, "curves": [c for c in p["curves"] if c["points"]]} for p in panels]
    panels = [panel for panel in panels if panel["curves"]]
    if not panels:
        return False
    pyplot = matplotlib()
    if not pyplot:
        print(f"no {name}.png: {MISSING}; the same command with --report draws it then")
        return False
    longest = max(len(curve["label"]) for panel in panels for curve in panel["curves"])
    width = 4.2 * max(len(panels), 1.4) + 0.075 * longest + 0.8
    figure, axes = pyplot.subplots(
        1, len(panels), squeeze=False, layout="constrained", figsize=(width, 4.6)
    )
    handles = {}
    for ax, panel in zip(axes[0], panels):
        for curve in panel["curves"]:
            draw_curve(ax, curve)
        finish(ax, panel)
        handles.update(reversed(pair) for pair in zip(*ax.get_legend_handles_labels()))
    axes[0][-1].legend(handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(1.02, 1))
    if title:
        figure.suptitle(title, fontsize=11, x=0.01, horizontalalignment="left")
    save(figure, directory, name, formats)
    pyplot.close(figure)
    return True


# ---- curves of runs


def smooth(points):
    """Averages each value with the hundredth of the values before it and the hundredth after it; at
    the beginning, where the loss falls fast, with the same number on both sides. Returns at most
    1,000 points."""
    n = len(points)
    sums = [0, *itertools.accumulate(value for _, value, _ in points)]
    kept = []
    for i in range(0, n, n // 1000 + 1):
        half = min(max(n // 100, 2), i)  # at least a few points of a thinned log
        end = min(i + half + 1, n)
        kept.append((points[i][0], (sums[end] - sums[i - half]) / (end - i + half), points[i][2]))
    return kept


def mean_series(found):
    """Returns the mean of several runs' (step, value, seconds) at each step that all of them
    have."""
    by_step = {}
    for points in found:
        for step, value, seconds in points:
            by_step.setdefault(step, []).append((value, seconds))
    return [
        (step, logs.mean([v for v, _ in at]), logs.mean([s for _, s in at]))
        for step, at in sorted(by_step.items())
        if len(at) == len(found)
    ]


def time_unit(seconds):
    return (
        (1, "seconds") if seconds < 300 else (60, "minutes") if seconds < 10800 else (3600, "hours")
    )


def curves_of(groups, key, place, smoothed=False, **style):
    """Returns a curve for each group of runs: the mean of a number. place(point) is the point's
    x."""
    curves = []
    for colour, (label, runs) in enumerate(groups):
        if smoothed:
            runs = map(logs.evenly_spaced, runs)
        points = mean_series(
            [smooth(s) if smoothed else s for run in runs if (s := logs.series(run, key))]
        )
        curves.append(
            {
                "label": label,
                "colour": colour,
                "points": [(place(p), p[1]) for p in points],
                **style,
            }
        )
    return curves


def runs_figure(pyplot, groups, title, place, xlabel):
    """Draws the loss above; bits per byte, gradient norm and learning rate below."""
    lower = [
        ("val_bpb", "validation, bits per byte"),
        ("grad_norm", "gradient norm, smoothed"),
        ("lr", "learning rate"),
    ]
    lower = [
        pair
        for pair in lower
        if any(logs.values(run, pair[0]) for _, runs in groups for run in runs)
    ]
    figure = pyplot.figure(figsize=(10, 8), layout="constrained")
    grid = figure.add_gridspec(2, max(len(lower), 1), height_ratios=(3, 2))
    top = figure.add_subplot(grid[0, :])
    training = curves_of(groups, "loss", place, True, alpha=0.45, marker="", label=None)
    validation = curves_of(groups, "val_loss", place, marker="o")
    for curve in training + validation:
        if curve["points"]:
            draw_curve(top, curve)
    for colour, (label, _) in enumerate(groups):
        if not validation[colour]["points"]:
            top.plot([], color=COLOURS[colour % len(COLOURS)], label=label)
    top.plot([], color="#999999", label="training, smoothed")
    if any(curve["points"] for curve in validation):
        top.plot([], color="black", marker="o", label="validation")
    late = [y for c in training for _, y in c["points"][len(c["points"]) * 3 // 100 :]]
    late += [y for c in validation for _, y in c["points"]]
    low, high = min(late), max(late)
    finish(
        top,
        {
            "xlabel": xlabel,
            "ylabel": "loss, nats per token",
            "ylim": (low - 0.03 * (high - low), high + 0.05 * (high - low) + 1e-9),
        },
    )
    top.legend(loc="upper right")
    for column, (key, label) in enumerate(lower):
        ax = figure.add_subplot(grid[1, column])
        for curve in curves_of(groups, key, place, key == "grad_norm", marker=""):
            if curve["points"]:
                draw_curve(ax, {**curve, "marker": "o" if key == "val_bpb" else ""})
        finish(ax, {"xlabel": xlabel, "ylabel": label})
        ax.locator_params(axis="x", nbins=5)
    figure.suptitle(title, fontsize=12)
    return figure


def draw_runs(directory, groups, title="", formats=("png", "svg")):
    """Draws loss_by_step and loss_by_time of (label, logs of runs that differ in their seeds)."""
    pyplot = matplotlib()
    if not pyplot:
        print(f"no loss_by_step.png: {MISSING}")
        return False
    longest = max(logs.values(run, "seconds")[-1] for _, runs in groups for run in runs)
    unit, unit_name = time_unit(longest)
    for name, place, xlabel in (
        ("step", lambda p: p[0], "step"),
        ("time", lambda p: p[2] / unit, f"time, {unit_name}"),
    ):
        figure = runs_figure(pyplot, groups, title, place, xlabel)
        save(figure, directory, f"loss_by_{name}", formats)
        pyplot.close(figure)
    return True


def name_of(run, runs):
    """Returns the last part of a run's path, or the whole path if another run has the same last
    part."""

    def short(path):
        whole = os.path.abspath(path).removesuffix("/log.jsonl")
        return os.path.basename(whole).removesuffix(".jsonl")

    return short(run) if [short(r) for r in runs].count(short(run)) == 1 else os.path.normpath(run)


def heading(events):
    """Returns the model and data of a run, such as "Fastformer on WikiText-2"."""
    start = logs.start_of(events)
    model = start.get("model", "").split(",")[0]
    path = start.get("data", "").rpartition(": ")[0] or start.get("data", "")
    parts = [part for part in path.split("/") if part]
    data = parts[-2] if len(parts) > 1 and parts[-1] == "data" else parts[-1] if parts else ""
    names = MODELS.get(model, model), DATA.get(data, data)
    return " on ".join(name for name in names if name)


def next_to(runs):
    """Returns the directory that holds all these runs."""
    directories = [os.path.dirname(os.path.abspath(logs.path_of(run))) for run in runs]
    return os.path.relpath(os.path.commonpath([os.path.dirname(path) for path in directories]))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, prog="plot.py", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="default: next to the runs")
    parser.add_argument(
        "-t", "--title", help="default: model and data, where all runs have the same"
    )
    parser.add_argument("-n", "--name", action="append", help="in the legend, one for each run")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    arguments = parser.parse_args()
    names = arguments.name or [name_of(run, arguments.runs) for run in arguments.runs]
    try:
        if len(names) != len(arguments.runs):
            raise logs.Error(f"{len(names)} names of {len(arguments.runs)} runs")
        found = []
        for name, run in zip(names, arguments.runs):
            found.append((name, logs.read(logs.path_of(run))))
            if not logs.series(found[-1][1], "loss"):
                raise logs.Error(f"{logs.path_of(run)}: no training step in it")
        headings = {heading(events) for _, events in found}
        named = [(name, [events]) for name, events in found]
        groups = named if arguments.name else logs.by_seed(found)
        title = arguments.title or (headings.pop() if len(headings) == 1 else "")
        if not draw_runs(arguments.output or next_to(arguments.runs), groups, title):
            sys.exit(1)
    except logs.Error as error:
        sys.exit(f"plot.py: {error}")


if __name__ == "__main__":
    main()
