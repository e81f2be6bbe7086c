#!/usr/bin/env python3
"""Sentences per second that a trained model translates: ./train_translate and Hugging Face's generate().

    python3 dev/bench/translate_peer.py RUN SOURCE [--beam 5] [--rounds 3] [--threads N]

RUN is a run of train_translate, which is a model of theirs, too; SOURCE a file with one sentence per line. Ours is the whole
program, from its start to its end, with the time it takes to load the model and to read text; theirs is generate() alone, on
same tokens, warm, in batches of sentences of like length: with early_stopping="never", which is the same search as ours
(a sentence is done when no longer hypothesis can be better), and as it comes, where it stops when a better one of the present
length is out of reach. Interleaved rounds, medians.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import step as bench

SEARCHES = {"the same search": "never", "as it comes": False}  # early_stopping


def ours(settings, lines):
    command = [os.path.join(settings.build, "train_translate"), "-e", settings.run, "--translate"]
    command += ["--beam", str(settings.beam), "--alpha", "1"]
    environment = bench.environment(settings.threads)
    start = time.perf_counter()
    result = subprocess.run(
        command, input="\n".join(lines) + "\n", stdout=subprocess.PIPE, check=True, text=True, env=environment
    )
    return time.perf_counter() - start, result.stdout.splitlines()


class HuggingFace:
    def __init__(self, settings, lines, dtype):
        import torch
        from tokenizers import Tokenizer
        from transformers import MarianMTModel

        torch.set_num_threads(settings.threads)
        self.torch, self.settings = torch, settings
        self.model = MarianMTModel.from_pretrained(settings.run, dtype=getattr(torch, dtype)).eval()
        self.end, self.padding = self.model.config.eos_token_id, self.model.config.pad_token_id
        self.tokenizer = Tokenizer.from_file(os.path.join(settings.run, "tokenizer.json"))
        sentences = [self.tokenizer.encode(line, add_special_tokens=False).ids + [self.end] for line in lines]
        self.order = sorted(range(len(lines)), key=lambda i: len(sentences[i]))
        self.batches = []
        for first in range(0, len(lines), settings.batch):
            rows = [sentences[i] for i in self.order[first : first + settings.batch]]
            longest = max(map(len, rows))
            tokens = torch.tensor([row + [self.padding] * (longest - len(row)) for row in rows])
            self.batches.append((tokens, (tokens != self.padding).long()))
        self.generate(self.batches[0], False)

    def generate(self, batch, early_stopping):
        tokens, mask = batch
        with self.torch.inference_mode():
            return self.model.generate(
                tokens,
                attention_mask=mask,
                num_beams=self.settings.beam,
                do_sample=False,
                length_penalty=1.0,
                early_stopping=early_stopping,
                max_new_tokens=min(2 * tokens.shape[1] + 20, self.model.config.max_position_embeddings - 1),
            )

    def translate(self, early_stopping):
        start = time.perf_counter()
        outputs = [self.generate(batch, early_stopping) for batch in self.batches]
        seconds = time.perf_counter() - start
        texts = [""] * len(self.order)
        rows = (row for output in outputs for row in output.tolist())
        for i, row in zip(self.order, rows):
            tokens = row[1:]
            tokens = tokens[: tokens.index(self.end)] if self.end in tokens else tokens
            texts[i] = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return seconds, texts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run")
    parser.add_argument("source")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="sentences of a batch of theirs")
    parser.add_argument("--rounds", type=int, default=3)
    bench.add_common_arguments(parser)
    settings = parser.parse_args()
    with open(settings.source) as file:
        lines = file.read().splitlines()
    models = {dtype: HuggingFace(settings, lines, dtype) for dtype in ("float32", "bfloat16")}
    peers = {f"{dtype}, {how}": (model, stopping) for dtype, model in models.items() for how, stopping in SEARCHES.items()}
    seconds = {"ours": []} | {name: [] for name in peers}
    for number in range(settings.rounds):
        taken, texts = ours(settings, lines)
        seconds["ours"].append(taken)
        for name, (model, stopping) in peers.items():
            taken, theirs = model.translate(stopping)
            seconds[name].append(taken)
            same = sum(a == b for a, b in zip(texts, theirs))
            print(f"round {number + 1}: {same} of {len(lines)} are the same, {name}", file=sys.stderr)
    print("; ".join(f"{key} {value}" for key, value in bench.machine().items()) + f"; threads {settings.threads}.")
    print(f"\n| beam {settings.beam}, {len(lines)} sentences | seconds | sentences/s | times ours |\n|---|---|---|---|")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        ratio = statistics.median(a / b for a, b in zip(taken, seconds["ours"]))
        print(f"| {name} | {median:.2f} | {len(lines) / median:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
