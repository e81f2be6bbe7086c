"""The comparisons that compare.py makes: an experiment is a dictionary.

title, about, quick       what it is called, and its help
data, programs            directories of data/ that it trains on, trainers that it needs
arms                      what is compared: {its name: how a plot names it}
values                    (name, list): each arm at each of these; value_options(value)
command(arm, value, c)    the trainer, and the options that make the arm
settings(c, data, meta)   (options of all arms, updates, evaluations on the way)
done                      part of what a trainer writes last into its log
diverges                  a run whose updates are not finite is a result, not a failure
measures                  columns of runs.csv, of what logs.measure() knows
report(c), plots(c)       lines of Markdown; (name, panels, title) of plot.draw()
"""

import csv
import math
import os
import shutil
import subprocess

import logs
from plot import DATA as DATA_NAMES, time_unit
from logs import Error, UsageError, both, perplexity
from tables import (
    arms_table,
    column,
    differences,
    difference,
    grid,
    largest,
    machine_list,
    machines,
    main_processor,
    mark,
    rows_of,
    show_p,
    signed,
    table,
    timed,
)

DATA = {
    "wikitext2": "spm",
    "wikitext2-bert": "bpe",
    "wikitext2-words": "word",
    "tinyshakespeare": "byte",
    "multi30k": "bpe",
}  # and their tokenizers

CLAIMS = {
    "about": (
        "Every training run of the README's tables: one comparison after the other, each with "
        "its logs, tables and plots in dev/results/NAME, where existing runs are not made "
        "again. On two cores all of them take weeks. Several processes use a GPU better than one, "
        "best under NVIDIA's MPS. Speeds are measured by dev/bench/run.sh and scripts/gpu_check.sh."
    ),
    "comparisons": [
        ("wikitext2", []),
        ("speedrun", []),
        ("lengths", []),
        ("rescale", []),
        ("words", []),
        ("ablation", ["--data", "wikitext2"]),
    ],
}

LANGUAGE_MODELS = {
    "fastformer-global": "Fastformer, global",
    "fastformer-windowed": "Fastformer, growing windows",
    "gpt2-softmax": "GPT-2",
}
LANGUAGE_COMMANDS = {
    "fastformer-global": "./train_fastformer --windows global",
    "fastformer-windowed": "./train_fastformer --windows auto",
    "gpt2-softmax": "./train_gpt2 --attention softmax",
}
# The published configuration of the Fastformer, and GPT-2 of the same size.
PUBLISHED = "-L 6 -C 128 -H 4 --dropout 0.1 -l 5e-4 -k linear"


VAL_LOSS = "best validation loss, nats per token"


def train_tokens(data, meta):
    tokens = meta["splits"].get("train", {}).get("tokens")
    if not tokens:
        raise Error(f"data/{data}/meta.json: does not say how many tokens the split 'train' has")
    return tokens


def recipe(c, data):
    """What all runs have in common, as code."""
    return f"`{c.options_of(data)} -x {c.steps_of(data)}`"


# ---- curves


def validation_curve(c, arm, key, value=None, by="epoch", unit=1):
    """(epoch or time, geometric mean over the seeds of a perplexity) at each evaluation. Time is
    that of the updates at the middle one's speed, of the runs on the main processor."""
    at, processor = {}, main_processor(c)
    for row in rows_of(c, arm, value):
        events = c.logs.get((row["data"], arm, value, row["seed"]), [])
        epochs = [(e["step"], e["epoch"]) for e in events if "epoch" in e]
        for step, x, _ in logs.series(events, key):
            place = step * epochs[-1][1] / epochs[-1][0] if by == "epoch" and epochs else None
            if by == "time" and row.get("ms") and row.get("processor") == processor:
                place = step * row["ms"] / 1000 / unit
            at.setdefault(step, []).append((place, math.log(x)))
    points = []
    for _, found in sorted(at.items()):
        places = [place for place, _ in found if place is not None]
        if places:
            points.append((logs.mean(places), math.exp(logs.mean([x for _, x in found]))))
    return points


def longest_time(c):
    return max(
        (
            r["steps"] * r["ms"] / 1000
            for r in c.rows
            if r.get("ms") and r.get("processor") == main_processor(c)
        ),
        default=0,
    )


def largest_by_step(c, arm, value, key):
    """(step, largest number of all seeds)."""
    found = {}
    for row in rows_of(c, arm, value):
        for step, x, _ in logs.series(c.logs.get((row["data"], arm, value, row["seed"]), []), key):
            found[step] = max(x, found.get(step, x))
    return sorted(found.items())


def arm_curves(c, points_of, **style):
    """A curve for each arm: points_of(arm) is its points."""
    return [
        {"label": label, "colour": i, "points": points_of(arm), **style}
        for i, (arm, label) in enumerate(c.arms.items())
    ]


def value_curve(c, arm, key, of=lambda x: x, xs=None):
    """(value, mean, spread) over the values, and where a run diverged."""
    points, marks = [], []
    for value in c.values:
        rows = rows_of(c, arm, value)
        numbers = [of(row[key]) for row in rows if row.get(key) is not None]
        if numbers:
            x = xs(value) if xs else float(value)
            points.append((x, logs.mean(numbers), logs.spread(numbers) or 0))
            if mark(rows):
                marks.append(points[-1][:2])
    return {"points": points, "marks": marks}


# ---- WikiText-2


def wikitext2_settings(c, data, meta):
    every = train_tokens(data, meta) // 4096
    evaluations = c.arguments.epochs or 25
    options = f"-i data/{data} {PUBLISHED} -t 2048 -b 2"
    if c.quick:
        evaluations = 5
        every //= evaluations
        options += " -m 10"
    return " ".join([options, f"-v {every}", *c.arguments.rest]), every * evaluations, evaluations


def wikitext2_choose(c):
    if c.quick and c.arguments.epochs:
        raise UsageError("--quick is one epoch: no --epochs")


def first_parameters(rows):
    return next((row["parameters"] for row in rows if row.get("parameters")), "-")


def wikitext2_report(c):
    steps = c.steps_of("wikitext2")
    sample = c.rows[0]
    return [
        *arms_table(
            c,
            [
                ("parameters", first_parameters),
                ("seeds", len),
                ("val ppl", column("val_ppl")),
                ("test ppl", column("test_ppl")),
                ("test ppl per word", column("test_word_ppl")),
                ("test bits per byte", column("test_bpb")),
                ("tokens/s", timed(c, "tokens_per_s")),
                ("minutes", timed(c, "ms", lambda ms: ms * steps / 60000)),
            ],
        ),
        *differences(c, "test_loss", "test loss, nats per token", lambda arm: "gpt2-softmax"),
        "",
        f"{recipe(c, 'wikitext2')}; {machines(c.rows)}.",
        "Perplexities are per token unless it says otherwise: validation (the best) over "
        f"{sample['val_tokens']} of {c.tokens_of('wikitext2', 'val')} tokens, test over "
        f"{sample['test_tokens']}. Minutes are those of all updates at the middle one's speed, "
        f"without evaluations; they and tokens/s are of the runs on {main_processor(c)}. Where "
        "there "
        "is more than one seed: mean ± standard deviation.",
        *machine_list(c),
        "",
        "![validation perplexity](validation_perplexity.png)",
    ]


def wikitext2_plots(c):
    unit, name = time_unit(longest_time(c))
    panels = [
        {
            "xlabel": xlabel,
            "ylabel": "validation perplexity, per token",
            "ylog": True,
            "curves": arm_curves(
                c, lambda arm: validation_curve(c, arm, "val_ppl", None, by, unit)
            ),
        }
        for by, xlabel in (("epoch", "epoch"), ("time", f"time of the updates, {name}"))
    ]
    yield "validation_perplexity", panels, "WikiText-2: validation perplexity"


WIKITEXT2 = {
    "title": "WikiText-2",
    "about": (
        "Three language models on WikiText-2 with the same budget: the Fastformer with every layer "
        "global, with windows that grow from layer to layer, and GPT-2. Options of the trainers "
        "after -- make another comparison than the published one: -- -t 8192 -l 1e-3"
    ),
    "quick": "one epoch, one seed, about a quarter of an hour",
    "flags": [("--epochs", "passes over the data (25)", {"type": int, "metavar": "N"})],
    "rest": True,
    "choose": wikitext2_choose,
    "data": ["wikitext2"],
    "programs": ["train_fastformer", "train_gpt2"],
    "arms": LANGUAGE_MODELS,
    "command": lambda arm, value, c: LANGUAGE_COMMANDS[arm],
    "settings": wikitext2_settings,
    "measures": "val_ppl test_loss test_ppl test_word_ppl test_bpb tokens_per_s ms".split(),
    "report": wikitext2_report,
    "plots": wikitext2_plots,
}


# ---- lengths of the context

UPDATE = 8192  # tokens


def lengths_settings(c, data, meta):
    options, steps = (
        (f"-i data/{data} -L 4 -C 64 -H 2 -m 4", 60)
        if c.quick
        else (f"-i data/{data} {PUBLISHED}", 5 * train_tokens(data, meta) // UPDATE)
    )
    return f"{options} -v {steps // 5}", steps, 5


def lengths_cell(rows):
    words = logs.mean([row["test_word_ppl"] for row in rows if row.get("test_word_ppl")])
    return f"{column('test_loss', perplexity)(rows)} ({logs.show(words)}){mark(rows)}"


def lengths_report(c):
    return [
        f"{recipe(c, 'wikitext2')}, {UPDATE} tokens an update; {machines(c.rows)}. Test perplexity "
        "per token; per word in brackets; mean ± standard deviation over seeds; x: a run "
        "diverged, or ended a tenth above its best validation loss.",
        "",
        *grid(c, [("T {}", lengths_cell)]),
        *differences(c, "test_loss", "test loss, nats per token", lambda arm: "gpt2-softmax"),
        *machine_list(c),
        "",
        "![test perplexity](perplexity_by_length.png)",
    ]


def lengths_plots(c):
    curves = [
        {"label": label, "colour": i, **value_curve(c, arm, "test_loss", perplexity)}
        for i, (arm, label) in enumerate(c.arms.items())
    ]
    yield (
        "perplexity_by_length",
        [
            {
                "xlabel": "context, tokens",
                "ylabel": "test perplexity, per token",
                "xlog": True,
                "xticks": [int(v) for v in c.values],
                "curves": curves,
            }
        ],
        "WikiText-2, five epochs",
    )


LENGTHS = {
    "title": "WikiText-2, by the length of the context",
    "about": (
        "Three language models on WikiText-2, trained with contexts of 512, 2,048 and 8,192 tokens "
        "and 8,192 tokens an update, so that all learn from the same tokens. How much is a longer "
        "context worth to each?"
    ),
    "data": ["wikitext2"],
    "programs": ["train_fastformer", "train_gpt2"],
    "diverges": True,
    "arms": LANGUAGE_MODELS,
    "command": lambda arm, value, c: LANGUAGE_COMMANDS[arm],
    "values": ("length", ["512", "2048", "8192"]),
    "value_options": lambda length: f"-t {length} -b {UPDATE // int(length)}",
    "cost": lambda arm, length: f"{arm}-{length}",
    "settings": lengths_settings,
    "measures": "val_loss last_val_loss test_loss test_word_ppl".split(),
    "report": lengths_report,
    "plots": lengths_plots,
}


# ---- rescale

RESCALES = ("5", "10", "15", "20", "30")


def rescale_settings(c, data, meta):
    if c.quick:
        options = f"-i data/{data} -L 4 -C 64 -H 2 -b 2 -t 512 -m 20 --stats 2 --no-test"
        steps = 500
    else:  # five epochs of 4,096 tokens per step
        options, steps = f"-i data/{data} --stats 2 --no-test", 5 * train_tokens(data, meta) // 4096
    return f"{options} -v {steps // 5}", steps, 5


def rescale_command(arm, value, c):
    """As published but for one thing; the sink of 1e-5 is rescale-10."""
    name, _, x = arm.partition("-")
    return f"./train_fastformer {'--pool raw' if name == 'raw' else f'--{name} {x}'}"


def saturated(rows):
    share = logs.mean([row["saturated"] for row in rows if row.get("saturated") is not None])
    return "-" if share is None else f"{100 * share:.2f}%"


def rescale_report(c):
    return [
        f"{recipe(c, 'wikitext2')}; {machines(c.rows)}. For each learning rate: best validation "
        "loss, "
        "mean ± standard deviation over seeds, x where a run diverged or ended a tenth above its "
        "best; the largest gradient norm of all steps; the share of scores beyond 0.9 s at the "
        "end.",
        "",
        *grid(
            c,
            [
                ("loss, {}", lambda rows: column("val_loss")(rows) + mark(rows)),
                (
                    "norm",
                    lambda rows: logs.show(
                        max(
                            (r["grad_norm"] for r in rows if r.get("grad_norm") is not None),
                            default=None,
                        )
                    ),
                ),
                ("saturated", saturated),
            ],
        ),
        *differences(c, "val_loss", "best validation loss", lambda arm: "rescale-10"),
        *machine_list(c),
        "",
        "![loss](loss_by_rescale.png)",
        "![gradient norm](grad_norm_by_step.png)",
    ]


def rescale_plots(c):
    curves = []
    for i, rate in enumerate(c.values):
        points, marks = [], []
        for s in RESCALES:
            rows = rows_of(c, f"rescale-{s}", rate)
            numbers = [row["val_loss"] for row in rows if row.get("val_loss") is not None]
            if numbers:
                points.append((int(s), logs.mean(numbers), logs.spread(numbers) or 0))
                marks += [points[-1][:2]] if mark(rows) else []
        curves.append(
            {"label": f"learning rate {rate}", "colour": i, "points": points, "marks": marks}
        )
    yield (
        "loss_by_rescale",
        [
            {
                "xlabel": "rescale s",
                "ylabel": VAL_LOSS,
                "xticks": [int(s) for s in RESCALES],
                "curves": curves,
            }
        ],
        None,
    )
    rate = c.values[-1]
    curves = [
        {
            "label": c.arms[f"rescale-{s}"],
            "colour": i,
            "marker": "",
            "points": largest_by_step(c, f"rescale-{s}", rate, "grad_norm"),
        }
        for i, s in enumerate(RESCALES)
    ]
    yield (
        "grad_norm_by_step",
        [
            {
                "xlabel": f"step, learning rate {rate}",
                "ylabel": "largest gradient norm of the seeds",
                "xlog": True,
                "ylog": True,
                "curves": curves,
            }
        ],
        None,
    )


RESCALE = {
    "title": "The Fastformer's rescale, what it pools, its sink",
    "about": (
        "The Fastformer's rescale s, which bounds its scores: 5, 10, 15, 20 and 30, each at two "
        "learning rates. Is 15 unstable, as the published report says? And at s = 10: pooling the "
        "raw q and k instead of the normalised ones, and other sinks."
    ),
    "data": ["wikitext2"],
    "programs": ["train_fastformer"],
    "diverges": True,
    "arms": {
        **{f"rescale-{s}": f"s = {s}" for s in RESCALES},
        "raw": "s = 10, raw q and k pooled",
        "sink-0": "s = 10, no sink",
        "sink-1": "s = 10, sink 1",
    },
    "command": rescale_command,
    "values": ("rate", ["5e-4", "2e-3"]),
    "value_options": lambda rate: f"-l {rate}",
    "cost": lambda arm, rate: "fastformer",
    "settings": rescale_settings,
    "done": '"event":"statistics"',
    "measures": "val_loss last_val_loss grad_norm saturated".split(),
    "report": rescale_report,
    "plots": rescale_plots,
}


# ---- cosine attention in BERT


def cosine_settings(c, data, meta):
    options, steps = (
        (f"-i data/{data} -L 3 -C 64 -H 2 -b 8 -t 128 -u 50 -m 20 --stats 4", 600)
        if c.quick
        else (f"-i data/{data} -L 6 -C 128 -H 4 -b 16 -t 512 -u 200 --stats 8", 5000)
    )
    return f"{options} -v {steps // 8}", steps, 8


def cosine_command(arm, value, c):
    kind, _, power = arm.partition("-")
    return f"./train_bert --attention {kind}" + (f" --cosine-power {power}" if power else "")


def cosine_report(c):
    def cell(rows):
        top = largest("attention_max")(rows)
        return column("val_loss")(rows) + ("" if top == "-" else f" ({top})") + mark(rows)

    return [
        f"{recipe(c, 'wikitext2-bert')}; {machines(c.rows)}. Best validation loss, mean ± "
        "standard deviation over seeds; in brackets the largest |attention output| of all "
        "evaluations and seeds; x: a run diverged, or ended a tenth above its best.",
        "",
        *grid(c, [("{}", cell)]),
        *differences(c, "val_loss", "best validation loss", lambda arm: "softmax"),
        *machine_list(c),
        "",
        "![loss](loss_by_rate.png)",
        "![attention output](attention_by_step.png)",
    ]


def cosine_plots(c):
    curves = [
        {"label": label, "colour": i, **value_curve(c, arm, "val_loss")}
        for i, (arm, label) in enumerate(c.arms.items())
    ]
    yield (
        "loss_by_rate",
        [
            {
                "xlabel": "learning rate",
                "ylabel": VAL_LOSS,
                "xlog": True,
                "xticks": [float(rate) for rate in c.values],
                "curves": curves,
            }
        ],
        "BERT on WikiText-2",
    )
    rate = c.values[-1]
    curves = arm_curves(c, lambda arm: largest_by_step(c, arm, rate, "val_attention_max_abs"))
    yield (
        "attention_by_step",
        [
            {
                "xlabel": f"step, learning rate {rate}",
                "ylabel": "largest |attention output|",
                "ylog": True,
                "curves": curves,
            }
        ],
        "BERT on WikiText-2",
    )


def kept_csv(c, name):
    """Lines of a CSV that was kept, for runs whose logs are not there: each with its row."""
    for directory in (c.keep, c.out):
        path = os.path.join(directory or "", name)
        if directory and os.path.isfile(path):
            with open(path, encoding="utf-8", newline="") as file:
                rows = {
                    (row["data"], row["arm"], row["value"], str(row["seed"])): row for row in c.rows
                }
                for line in csv.DictReader(file):
                    row = rows.get(
                        (
                            line.get("data", c.data[0]),
                            line["arm"],
                            line.get(c.value_name),
                            line["seed"],
                        )
                    )
                    if row and not c.logs.get((row["data"], row["arm"], row["value"], row["seed"])):
                        yield row, line
            return


def cosine_collect(c):
    found = {}
    for row, line in kept_csv(c, "attention.csv"):
        key = row["data"], row["arm"], row["value"], row["seed"]
        found.setdefault(key, []).append(
            {
                "step": int(line["step"]),
                "val_attention_max_abs": float(line["val_attention_max_abs"]),
            }
        )
    c.logs.update(found)


COSINE = {
    "title": "Cosine attention in BERT: the power of its divisor",
    "about": (
        "BERT with softmax attention, and with cosine attention whose sum is divided by a power of "
        "the number of tokens: 0, 0.5, 1 or learned; each at five learning rates. Which of them "
        "diverge, and at which rate?"
    ),
    "data": ["wikitext2-bert"],
    "programs": ["train_bert"],
    "diverges": True,
    "arms": {
        "softmax": "softmax",
        "cosine-0": "cosine, power 0",
        "cosine-0.5": "cosine, power 0.5",
        "cosine-1": "cosine, power 1",
        "cosine-learned": "cosine, learned power",
    },
    "command": cosine_command,
    "values": ("rate", ["1e-5", "1e-4", "3e-4", "1e-3", "3e-3"]),
    "value_options": lambda rate: f"-l {rate}",
    "cost": lambda arm, rate: arm.partition("-")[0],
    "settings": cosine_settings,
    "done": '"event":"statistics"',
    "measures": ["val_loss", "last_val_loss", "attention_max"],
    "collect": cosine_collect,
    "report": cosine_report,
    "plots": cosine_plots,
}


# ---- time to quality


def speedrun_settings(c, data, meta):
    steps = 60 if c.quick else 4800
    return (
        (
            "--windows auto -L 3 -C 128 -H 4 -t 256 -b 4 --dropout 0 --optimizer muon -l 1e-2 "
            f"-k linear -u 200 -v {steps // 6}"
        ),
        steps,
        6,
    )


def speedrun_report(c):
    data = "wikitext2-words"
    own = [row for row in c.rows if row["arm"] == "speedrun"]
    clock = ", ".join(f"{row['seconds'] / 60:.1f}" for row in own if row.get("seconds"))

    def minutes(rows):
        return timed(c, "ms", lambda ms: ms * rows[0]["steps"] / 60000)(rows)

    return [
        *arms_table(
            c,
            [
                ("parameters", first_parameters),
                ("seeds", len),
                ("updates", lambda rows: rows[0]["steps"]),
                ("minutes", minutes),
                ("val ppl per word", column("val_word_ppl")),
                ("test ppl per word", column("test_word_ppl")),
                ("test bits per byte", column("test_bpb")),
            ],
            head="recipe",
            arms=["published", "speedrun"],
        ),
        *differences(
            c, "test_word_ppl", "test perplexity per word", lambda arm: "published", paired=False
        ),
        "",
        f"{recipe(c, data)}, words as tokens; {machines(own)}.",
        "Minutes are those of all updates at the middle one's speed, of the runs on "
        f"{main_processor(c)}; with start, evaluations and test a run took, on the clock, {clock}.",
        "The validation is the best one; the test is of its weights.",
        "Where there is more than one seed: mean ± standard deviation.",
        "",
        "![validation perplexity](word_perplexity_by_time.png)",
    ]


def speedrun_plots(c):
    labels = {"published": "published recipe, 25 epochs", "speedrun": "speedrun, 2.4 epochs"}
    curves = [
        {
            "label": label,
            "colour": i,
            "points": validation_curve(c, arm, "val_word_ppl", None, "time", 60),
        }
        for i, (arm, label) in enumerate(labels.items())
    ]
    yield (
        "word_perplexity_by_time",
        [
            {
                "xlabel": "time of the updates, minutes",
                "ylabel": "validation perplexity, per word",
                "xlog": True,
                "ylog": True,
                "curves": curves,
            }
        ],
        "WikiText-2: time to quality",
    )


SPEEDRUN = {
    "title": "Time to quality: WikiText-2",
    "about": (
        "Time to quality: the test perplexity per word that the published recipe has after 25 "
        "epochs of WikiText-2 (run_wikitext2.sh, growing windows), in as few minutes as the best "
        "recipe found takes. It has words as tokens, three layers, Muon, 20 times the learning "
        "rate, a quarter of the tokens an update, short contexts and no dropout."
    ),
    "quick": "60 updates, one seed, a minute: far from the mark",
    "data": ["wikitext2-words"],
    "programs": ["train_fastformer"],
    "arms": {"speedrun": "speedrun"},
    "command": lambda arm, value, c: "./train_fastformer",
    "borrowed": {"published": "dev/results/wikitext2/fastformer-windowed-seed-*.jsonl"},
    "settings": speedrun_settings,
    "measures": "val_word_ppl test_word_ppl test_bpb steps ms seconds".split(),
    "report": speedrun_report,
    "plots": speedrun_plots,
}


# ---- words


def words_settings(c, data, meta):
    options = "--windows auto -H 4 -t 256 -b 4 --optimizer muon -l 1e-2 -k linear -u 200"
    # 2,088,628 words, 1,024 tokens an update.
    options, steps, evaluations = (
        (f"{options} -L 1 -m 4", 60, 2)
        if c.quick
        else (f"{options} -L 4", 20 * 2088628 // 1024, 20)
    )
    return f"{options} -v {steps // evaluations}", steps, evaluations


def words_report(c):
    return [
        f"{recipe(c, 'wikitext2-words')}, words as tokens; {machines(c.rows)}.",
        "Perplexity of the best validation, and of the test by its weights; x: the run ended a "
        "tenth "
        "above its best validation loss.",
        "AWD-LSTM's test perplexity is 65.8.",
        "",
        *grid(
            c,
            [
                ("dropout {}: val", lambda rows: column("val_loss", perplexity)(rows) + mark(rows)),
                ("test", column("test_word_ppl")),
            ],
        ),
        *machine_list(c),
        "",
        "![validation perplexity](perplexity_by_epoch.png)",
    ]


def words_plots(c):
    curves = [
        {
            "label": f"{label}, dropout {value}",
            "colour": i * len(c.values) + j,
            "points": validation_curve(c, arm, "val_word_ppl", value),
        }
        for i, (arm, label) in enumerate(c.arms.items())
        for j, value in enumerate(c.values)
    ]
    yield (
        "perplexity_by_epoch",
        [{"xlabel": "epoch", "ylabel": "validation perplexity, per word", "curves": curves}],
        "Fastformer on WikiText-2 by words",
    )


WORDS = {
    "title": "WikiText-2 by words",
    "about": (
        'WikiText-2 by words, 33,278 types, as AWD-LSTM (Merity et al. 2017, "Regularizing and '
        'Optimizing LSTM Language Models") counts them: its test perplexity of 65.8 is per word, '
        "the published Fastformer's is per piece of one. The Fastformer with 128 and 256 channels, "
        "each with three dropouts, for 20 epochs: a night of two cores."
    ),
    "quick": "60 updates of a small model, one seed, two minutes",
    "data": ["wikitext2-words"],
    "programs": ["train_fastformer"],
    "diverges": True,
    "arms": {"channels-128": "128 channels", "channels-256": "256 channels"},
    "command": lambda arm, value, c: f"./train_fastformer -C {arm.partition('-')[2]}",
    "values": ("dropout", ["0.1", "0.3", "0.5"]),
    "value_options": lambda x: f"--dropout {x}",
    "settings": words_settings,
    "measures": ["val_loss", "last_val_loss", "test_word_ppl"],
    "report": words_report,
    "plots": words_plots,
}


# ---- ablation of attention's denominator


ABLATION_OPTIONS = {  # (quick, data): options, updates (None: all epochs), evaluations
    # as nanoGPT's train_shakespeare_char
    (False, "tinyshakespeare"): (
        "-L 6 -H 6 -C 384 -t 256 -b 16 -d 16384 --dropout 0.2 -l 1e-3 -k cosine -q 0.1 -u 100 "
        "--beta2 0.99 --stats 8",
        8000,
        20,
    ),
    # the published configuration of the Fastformer
    (False, "wikitext2"): (
        "-L 6 -H 4 -C 128 -t 2048 -b 2 --dropout 0.1 -l 5e-4 -k linear --stats 8",
        None,
        25,
    ),
    (True, "tinyshakespeare"): (
        "-L 3 -H 4 -C 128 -t 256 -b 8 --dropout 0.1 -l 3e-3 -k cosine -q 0.1 -u 50 --beta2 0.99 "
        "--stats 8",
        800,
        5,
    ),
    (True, "wikitext2"): (
        "-L 3 -H 4 -C 64 -t 256 -b 4 --dropout 0.1 -l 3e-3 -k cosine -q 0.1 -u 50 -m 20 --stats 16",
        500,
        5,
    ),
}


def ablation_settings(c, data, meta):
    options, steps, evaluations = ABLATION_OPTIONS[c.quick, data]
    steps = steps or evaluations * (train_tokens(data, meta) // 4096)
    return f"-i data/{data} {options} -v {steps // evaluations}", steps, evaluations


def ablation_choose(c):
    if c.arguments.data:
        c.data = [c.arguments.data]
    if c.arguments.seeds == 1:
        raise UsageError("--seeds 1: a spread takes two")


def ablation_command(arm, value, c):
    model, _, kind = arm.partition("-")
    return (
        f"./train_gpt2 --attention {kind}"
        if model == "gpt2"
        else f"./train_fastformer --sink {kind.partition('-')[2]}"
    )


def ablation_base(arm):
    return "gpt2-softmax" if arm.startswith("gpt2") else "fastformer-sink-1e-5"


def ablation_table(c, data):
    numbers = [
        ("val ppl", "val_ppl"),
        ("test ppl", "test_ppl"),
        *(
            (name, name.replace(" ", "_"))
            for name in (
                "weight kurtosis",
                "activation kurtosis",
                "largest activation",
                "sink share",
            )
        ),
        ("tokens/s", "tokens_per_s"),
    ]
    lines = []
    for arm in c.arms:
        rows = rows_of(c, arm, data=data)
        if rows:
            loss, p = difference(c, arm, ablation_base(arm), "test_loss", data=data)
            ppl, _ = difference(c, arm, ablation_base(arm), "test_ppl", data=data)
            own = arm == ablation_base(arm)
            lines.append(
                [
                    arm,
                    len(rows),
                    *(both([r.get(key) for r in rows]) for _, key in numbers),
                    *(["-"] * 3 if own else [signed(loss), signed(ppl), show_p(p)]),
                ]
            )
    return table(
        [
            "arm",
            "seeds",
            *(name for name, _ in numbers),
            "test loss - baseline",
            "test ppl - baseline",
            "p",
        ],
        lines,
    )


def ablation_report(c):
    lines = []
    for data in c.settings:
        rows = [row for row in c.rows if row["data"] == data]
        if not rows:
            continue
        by_step = ["kurtosis_by_step"] if any(key[0] == data for key in c.logs) else []
        places = [
            f"![{name.replace('_', ' ')}]({data}/{name}.png)"
            for name in ("kurtosis_by_layer", *by_step, "loss_by_step")
        ]
        lines += [
            f"## {data}",
            "",
            *ablation_table(c, data),
            "",
            f"{recipe(c, data)}; {machines(rows)}.",
            f"Perplexities are per token: validation over {whole(rows[0]['val_tokens'])} of "
            f"{c.tokens_of(data, 'val')} tokens, test over {whole(rows[0]['test_tokens'])}.",
            "",
            *places,
            "",
        ]
    return lines + [
        "Numbers are mean ± standard deviation over the seeds.",
        "",
        "- weight kurtosis: excess kurtosis (0 for a normal distribution), mean over the weight "
        "matrices",
        "  of the layers of the best checkpoint; embeddings, norms and biases are left out.",
        "- activation kurtosis, largest activation: of the residual stream after each layer on "
        "validation",
        "  data; mean and maximum over the layers.",
        "- sink share: the part of the attention's mass that the sink in the denominator takes, "
        "mean over",
        "  layers (and both poolings).",
        "- baseline: gpt2-softmax for GPT-2, fastformer-sink-1e-5 for the Fastformer. The "
        "difference is",
        "  taken seed by seed; p is that of a paired t test (two-sided) of the test loss, not "
        "corrected",
        "  for the number of comparisons.",
    ]


def whole(x):
    return "?" if x is None else f"{x:.0f}"


def shifted(points, i, count, shift):
    """A little to the side, so that bars do not hide each other."""
    return [(x + (i - (count - 1) / 2) * shift, y, sd) for x, y, sd in points]


def layer_points(c, data, arm, column_number):
    by_layer = {}
    for row in rows_of(c, arm, data=data):
        for layer in row.get("layers") or []:
            by_layer.setdefault(layer[0], []).append(layer[column_number])
    return [(layer, logs.mean(x), logs.spread(x) or 0) for layer, x in sorted(by_layer.items())]


def step_points(c, data, arm, key):
    by_step = {}
    for row in rows_of(c, arm, data=data):
        for step, x, _ in logs.series(c.logs.get((data, arm, None, row["seed"]), []), key):
            by_step.setdefault(step, []).append(x)
    return [(step, logs.mean(x), logs.spread(x) or 0) for step, x in sorted(by_step.items())]


def ablation_plots(c):
    title = "mean and standard deviation over seeds"
    for data in c.settings:
        for name, xlabel, shift, of, kinds in (
            ("kurtosis_by_layer", "layer", 0.05, layer_points, (1, 2)),
            (
                "kurtosis_by_step",
                "step",
                0,
                step_points,
                ("val_weight_kurtosis", "val_activation_kurtosis"),
            ),
        ):
            panels = [
                {
                    "xlabel": xlabel,
                    "ylabel": "excess kurtosis",
                    "title": what,
                    "curves": [
                        {
                            **curve,
                            "points": shifted(curve["points"], curve["colour"], len(c.arms), shift),
                        }
                        for curve in arm_curves(c, lambda arm: of(c, data, arm, kind))
                    ],
                }
                for kind, what in zip(
                    kinds, ("weight matrices", "residual stream after each layer")
                )
            ]
            if xlabel == "layer":
                layers = {
                    int(x + 0.5) for p in panels for q in p["curves"] for x, _, _ in q["points"]
                }
                panels = [{**panel, "xticks": sorted(layers)} for panel in panels]
            yield f"{data}/{name}", panels, f"{DATA_NAMES.get(data, data)}: {title}"


def ablation_curves(c):
    for data in c.settings:
        groups = []
        for arm, label in c.arms.items():
            found = [c.logs[key] for key in c.logs if key[:2] == (data, arm) and c.logs[key]]
            if found:
                groups.append((label, found))
        if groups:
            yield data, groups, f"{DATA_NAMES.get(data, data)}: mean over seeds"


def ablation_collect(c):
    for row, line in kept_csv(c, "layers.csv"):
        row.setdefault("layers", []).append(
            (
                int(line["layer"]),
                *(
                    float(line[key])
                    for key in ("weight_kurtosis", "activation_kurtosis", "largest_activation")
                ),
            )
        )


ABLATION = {
    "title": "Ablation: the denominator of attention",
    "about": (
        "What the denominator of attention does: GPT-2 with softmax, softmax1 and cosine attention "
        "and the Fastformer with a sink of 0, 1e-5 and 1, on two data sets, the same seeds in each."
    ),
    "quick": "small models, a quarter of an hour",
    "quick_seeds": 3,
    "flags": [
        (
            "--data",
            "one data set; without: both, and the table of both",
            {"choices": ["tinyshakespeare", "wikitext2"]},
        )
    ],
    "choose": ablation_choose,
    "collect": ablation_collect,
    "data": ["tinyshakespeare", "wikitext2"],
    "programs": ["train_gpt2", "train_fastformer"],
    "arms": {
        "gpt2-softmax": "GPT-2, softmax",
        "gpt2-softmax1": "GPT-2, softmax1",
        "gpt2-cosine": "GPT-2, cosine",
        "fastformer-sink-0": "Fastformer, no sink",
        "fastformer-sink-1e-5": "Fastformer, sink 1e-5",
        "fastformer-sink-1": "Fastformer, sink 1",
    },
    "command": ablation_command,
    "cost": lambda arm, value: arm if arm == "gpt2-cosine" else arm.partition("-")[0],
    "settings": ablation_settings,
    "done": '"tensor":',
    "measures": (
        "val_loss val_ppl test_loss test_ppl weight_kurtosis activation_kurtosis "
        "largest_activation sink_share tokens_per_s val_tokens test_tokens"
    ).split(),
    "report": ablation_report,
    "plots": ablation_plots,
    "curves": ablation_curves,
}


# ---- translation


def multi30k_text(name):
    text = os.environ.get("MULTI30K_DIR") or "../shared/data/multi30k"
    return os.path.join(text if os.path.isdir(text) else "data/download/multi30k", name)


def translation_choose(c):
    if c.arguments.one:
        c.quick, c.arms = True, {"post-warmup": c.arms["post-warmup"]}


def translation_prepare(c):
    if not shutil.which("sacrebleu"):
        raise Error("sacrebleu is missing: pip install sacrebleu")
    if c.gpu and not os.access("train_translate", os.X_OK):
        raise Error("train_translate, which translates, is missing: make train_translate")


def translation_settings(c, data, meta):
    """Wu et al. 2021: 4 + 4 layers, 128 channels, FFN 256, 4 heads, dropout 0.3, smoothing 0.1."""
    updates = c.arguments.updates
    return (
        (
            f"-i data/{data} -L 4 -D 4 -C 128 --ffn 256 -H 4 --dropout 0.3 --label-smoothing 0.1 "
            f"-b 2048 --beta2 0.98 --weight-decay 0 --optimizer muon -l 5e-3 -k cosine "
            f"-v {(updates + 29) // 30} --keep 5"
        ),
        updates,
        30,
    )


def translation_command(arm, value, c):
    norm, _, warmup = arm.partition("-")
    return f"./train_translate --norm {norm}" + (
        f" -u {c.steps_of('multi30k') // 20}" if warmup else ""
    )


def bleu(directory, *options):
    return subprocess.run(
        [
            "sacrebleu",
            multi30k_text("test_2016_flickr.de"),
            "-i",
            os.path.join(directory, "test.de"),
            "-m",
            "bleu",
            *options,
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def translation_collect(c):
    """The mean of the last five checkpoints translates; sacrebleu scores."""
    if c.report_only:
        return
    for row in c.rows:
        directory = os.path.join(c.out, f"{row['arm']}-seed-{row['seed']}")
        path = os.path.join(directory, "test.de")
        if not os.path.isfile(path):
            source = multi30k_text("test_2016_flickr.en")
            with open(source, "rb") as source, open(f"{path}.new", "wb") as to:
                command = [
                    "./train_translate",
                    "-e",
                    directory,
                    "--average",
                    "5",
                    "--translate",
                    "--beam",
                    "5",
                    "--alpha",
                    "1",
                ]
                if subprocess.run(command, stdin=source, stdout=to).returncode:
                    raise Error(f"{directory}: cannot translate")
            os.replace(f"{path}.new", path)
        row["bleu"], row["bleu_lowercase"] = (
            float(bleu(directory, "-b", "-w", "2", *lower)) for lower in ([], ["-lc"])
        )
        text = bleu(directory, "--format", "text")
        row["signature"] = text.removeprefix("BLEU|").partition(" =")[0]


def translation_report(c):
    signature = next((row["signature"] for row in reversed(c.rows) if row.get("signature")), "-")
    return [
        *arms_table(
            c,
            [
                ("seeds", len),
                ("test loss", column("test_loss")),
                ("BLEU", column("bleu")),
                ("BLEU, lower case", column("bleu_lowercase")),
                ("training loss below 4 after, s", column("below_4_seconds")),
                ("minutes", column("seconds", lambda s: s / 60)),
            ],
            head="norm, warmup",
        ),
        *differences(
            c,
            "bleu",
            "BLEU",
            lambda arm: (
                "pre"
                if arm == "pre-warmup"
                else "post-warmup"
                if arm == "post"
                else "pre-warmup"
                if arm == "post-warmup"
                else "pre"
            ),
        ),
        "",
        f"{recipe(c, 'multi30k')}; {machines(c.rows)}.",
        "The mean of the last five checkpoints translates, beam 5, alpha 1. Losses are per token, "
        "without smoothing. Mean ± standard deviation over seeds.",
        f"Signature of the BLEU: `{signature}`",
    ]


TRANSLATION = {
    "title": "Multi30k, English to German, test_2016_flickr",
    "about": (
        'The Transformer of "Attention Is All You Need" in its published tiny configuration, '
        "English to German on Multi30k: BLEU of the test sentences, with normalisation after or "
        "before each sublayer, and with or without a warmup of the learning rate. Needs sacrebleu, "
        "which only scores."
    ),
    "quick": "one seed",
    "flags": [
        ("--one", "only the published configuration, one seed", {"action": "store_true"}),
        ("--updates", "of each run (9000)", {"type": int, "metavar": "N", "default": 9000}),
    ],
    "choose": translation_choose,
    "prepare": translation_prepare,
    "collect": translation_collect,
    "data": ["multi30k"],
    "programs": ["train_translate"],
    "first_seed": 42,
    "arms": {
        "post-warmup": "post-norm, warmup",
        "post": "post-norm",
        "pre-warmup": "pre-norm, warmup",
        "pre": "pre-norm",
    },
    "command": translation_command,
    "cost": lambda arm, value: "translate",
    "settings": translation_settings,
    "measures": "test_loss bleu bleu_lowercase below_4_seconds seconds".split(),
    "texts": ["signature"],
    "report": translation_report,
    "plots": lambda c: [],
    "curves": lambda c: multi30k_curves(c),
}


def multi30k_curves(c):
    groups = [
        (label, found)
        for arm, label in c.arms.items()
        if (found := [c.logs[key] for key in c.logs if key[1] == arm and c.logs[key]])
    ]
    return [("", groups, "Transformer on Multi30k: mean over seeds")] if groups else []


# ---- the published sums in float32


def exactness_prepare(c):
    python = c.arguments.python
    try:
        found = (
            subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode
            == 0
        )
    except OSError:
        found = False
    if not found:
        raise Error(f"{python} has no PyTorch: --python FILE names one that has")
    # Memory that stays with the process, on huge pages: half of PyTorch's time, otherwise.
    os.environ["GLIBC_TUNABLES"] = (
        "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=34359738368:"
        "glibc.malloc.trim_threshold=34359738368"
    )


def exactness_command(arm, value, c):
    sums, _, rescale = arm.partition("-")
    if sums == "train_fastformer":
        return (
            f"./train_fastformer -k constant -v {c.steps_of('wikitext2')} --no-test "
            f"--rescale {rescale}"
        )
    return f"{c.arguments.python} dev/bench/published_training.py --sums {sums} --rescale {rescale}"


def exactness_report(c):
    return [
        f"{recipe(c, 'wikitext2')}, constant rates. For each: validation loss at the end, mean "
        "± standard "
        "deviation over seeds, and the largest norm that the gradient had, before it was "
        "clipped to 1.",
        "",
        *grid(c, [("loss, {}", column("last_val_loss")), ("largest norm", largest("grad_norm"))]),
        "",
        "![gradient norm](grad_norm_by_step.png)",
    ]


def exactness_plots(c):
    rate = c.values[-1]
    curves = arm_curves(c, lambda arm: largest_by_step(c, arm, rate, "grad_norm"), marker="")
    yield (
        "grad_norm_by_step",
        [
            {
                "xlabel": f"step, learning rate {rate}",
                "ylabel": "largest gradient norm of the seeds",
                "ylog": True,
                "curves": curves,
            }
        ],
        None,
    )


EXACTNESS = {
    "title": "Training with the published sums in float32",
    "script": "exactness.sh",
    "about": (
        "Does the Fastformer train with the published windowed sums, cumsum(i) - cumsum(i-k), in "
        "float32? The published class in PyTorch with its own sums, the same with sums that "
        "nothing cancels in (the same weights, batches and dropout), and train_fastformer: each "
        "with a rescale of 10 and of 15, at two constant learning rates."
    ),
    "quick": "50 updates instead of 400, about a quarter of an hour",
    "flags": [
        (
            "--python",
            "the Python that has PyTorch (python3)",
            {"metavar": "FILE", "default": "python3"},
        )
    ],
    "prepare": exactness_prepare,
    "diverges": True,
    "data": ["wikitext2"],
    "programs": ["train_fastformer"],
    "arms": {
        f"{kind}-{s}": f"{name}, s = {s}"
        for s in (10, 15)
        for kind, name in (
            ("published", "published sums"),
            ("doubling", "sums by doubling"),
            ("train_fastformer", "train_fastformer"),
        )
    },
    "command": exactness_command,
    "values": ("rate", ["5e-4", "2e-3"]),
    "value_options": lambda rate: f"-l {rate}",
    "cost": lambda arm, rate: arm.rpartition("-")[0],
    "settings": lambda c, data, meta: (
        f"-i data/{data} -t 2048 -b 2 -m 20",
        50 if c.quick else 400,
        1,
    ),
    "done": '"val_loss"',
    "measures": ["val_loss", "last_val_loss", "grad_norm"],
    "report": exactness_report,
    "plots": exactness_plots,
}


# ---- bf16 and float32


def precision_choose(c):
    model = c.arguments.model
    c.arms = {
        f"{model}-{precision}": name for precision, name in (("fp32", "float32"), ("bf16", "bf16"))
    }


def precision_report(c):
    keys = [("train", "last_loss"), ("val", "last_val_loss"), ("test", "test_loss")]
    arms = [(arm, arm.rpartition("-")[2]) for arm in c.arms]
    found = {(row["arm"], row["seed"]): row for row in c.rows}
    seeds = sorted({row["seed"] for row in c.rows})

    def numbers(arm, key):
        return [found[arm, s].get(key) for s in seeds if (arm, s) in found]

    def four(x):
        return "-" if x is None else f"{x:.4f}"

    lines = [
        [seed, *(four(found.get((arm, seed), {}).get(key)) for _, key in keys for arm, _ in arms)]
        for seed in seeds
    ]
    lines.append(
        [
            "standard deviation over seeds",
            *(
                four(logs.spread([x for x in numbers(arm, key) if x is not None]))
                for _, key in keys
                for arm, _ in arms
            ),
        ]
    )
    fp32, bf16 = c.arms
    tested = [difference(c, bf16, fp32, key) for _, key in keys]
    lines.append(["bf16 - fp32, mean", *(x for each, _ in tested for x in ("", signed(each)))])
    lines.append(["p of a paired t test", *(x for _, p in tested for x in ("", show_p(p)))])
    return [
        f"Loss (nats per token) after {c.steps_of('wikitext2')} updates of WikiText-2; train: "
        "the mean of "
        f"the last {logs.LAST_STEPS} steps, with dropout. {machines(c.rows)}.",
        "",
        *table(["seed", *(f"{name}, {kind}" for name, _ in keys for _, kind in arms)], lines),
    ]


PRECISION = {
    "title": "bf16 compared with float32",
    "script": "precision.sh",
    "about": (
        "Whether bf16 products train as well as float32 ones: 500 updates of WikiText-2 (published "
        "configuration, dropout on) with each, from the same seeds, and the losses at the end. 17 "
        "minutes for three seeds on two cores, 22 for GPT-2."
    ),
    "quick": "50 updates, one seed",
    "flags": [
        (
            "--model",
            "fastformer (default) or gpt2",
            {"choices": ["fastformer", "gpt2"], "default": "fastformer"},
        )
    ],
    "choose": precision_choose,
    "data": ["wikitext2"],
    "programs": ["train_fastformer", "train_gpt2"],
    "first_seed": 42,
    "arms": {},
    "command": lambda arm, value, c: "./train_{} -p {}".format(*arm.split("-")),
    "settings": lambda c, data, meta: (f"-i data/{data}", 50 if c.quick else 500, 1),
    "measures": ["last_loss", "last_val_loss", "test_loss"],
    "report": precision_report,
    "plots": lambda c: [],
}

EXPERIMENTS = {
    "ablation": ABLATION,
    "cosine": COSINE,
    "lengths": LENGTHS,
    "rescale": RESCALE,
    "speedrun": SPEEDRUN,
    "translation": TRANSLATION,
    "wikitext2": WIKITEXT2,
    "words": WORDS,
    "exactness": EXACTNESS,
    "precision": PRECISION,
}
