#!/usr/bin/env python3
"""Tests pages of runs in a real browser.

  dev/test/page.py --text PAGE PROGRAM PROMPT    types, compares with what PROGRAM writes of the page's weights, clicks
  dev/test/page.py --translation PAGE TEXT EXPECTED    translates
  dev/test/page.py --masked PAGE TEXT EXPECTED         fills masks, the first one with this before all
  dev/test/page.py --hostile PAGE                nothing that is in the page's texts has become markup or script
  dev/test/page.py --training PAGE               of a run that has not ended
  dev/test/page.py --curves PAGE                 of the runs bpe and byte
  dev/test/page.py --speed PAGE                  tokens per second, no test
  dev/test/page.py --shots PAGE PROMPT DIR       pictures, light and dark, wide and narrow

The last line is "N passed, N failed".
"""

import base64
import glob
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

import browser as browsers

Browser = browsers.Firefox if os.environ.get("BROWSER") == "firefox" else browsers.Chromium
counts = {True: 0, False: 0}
BUSY = "document.getElementById('stop').disabled"
TOKENS = "Array.from(document.querySelectorAll('#tokens > span'))"


def check(name, fine, what=""):
    counts[bool(fine)] += 1
    if not fine:
        print(f"FAIL {name} {what}")


def text_of(browser, element):
    return browser.run(f"document.getElementById('{element}').textContent")


def ready(path, **how):
    browser = Browser(**how)
    browser.open(path)
    browser.until(BUSY)
    return browser


def write(browser, text, **settings):
    values = {"text": text, **settings}
    browser.run(",".join(f"document.getElementById({json.dumps(key.replace('_', '-'))}).value={json.dumps(str(value))}"
                         for key, value in values.items()) + ",document.getElementById('go').click()")
    browser.until(BUSY, 120)


def bfloat16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000))[0]


def weights_of(page, path):
    """Writes the weights of a page (page_model.h) to a float32 file for the program, in the order
    and shapes of the run's own file. Returns the page's format."""
    with open(page, encoding="utf-8") as file:
        html = file.read()
    files = dict(line.split(" ") for line in re.search(r'id="files">(.*?)</script>', html, re.S)[1].strip().split("\n"))
    files = {name: base64.b64decode(text) for name, text in files.items()}
    form = next(name for name in files if name.startswith("weights.")).split(".")[1]
    data = files.pop("weights." + form)
    told = json.loads(files.pop("model.safetensors")[8:])
    with open(os.path.join(os.path.dirname(page), "best.safetensors"), "rb") as file:
        shapes = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    out, parts, at = {"__metadata__": told["__metadata__"]}, [], 0
    for name, tensor in sorted(shapes.items(), key=lambda item: item[1].get("data_offsets", [0])):
        if name == "__metadata__":
            continue
        size = (tensor["data_offsets"][1] - tensor["data_offsets"][0]) // 4
        exact = form == "float32" or len(tensor["shape"]) == 1
        rows = 1 if exact else tensor["shape"][0]
        for _ in range(rows):
            n = size // rows
            taken = 4 * n if exact else 4 + n
            row, data = data[:taken], data[taken:]
            if not exact:
                scale, *numbers = struct.unpack(f"<f{n}b", row)
                row = struct.pack(f"<{n}f", *(bfloat16(number * scale) for number in numbers))
            parts.append(row)
        out[name] = {"dtype": "F32", "shape": tensor["shape"], "data_offsets": [at, at + 4 * size]}
        at += 4 * size
    check("nothing but weights", not data)
    text = json.dumps(out).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    for name, content in files.items():
        if name != "decoder.wasm.gz":
            with open(os.path.join(os.path.dirname(path), name), "wb") as file:
                file.write(content)
    return form


def program_says(program, weights, prompt, *options):
    out = subprocess.run([program, "-p", "fp32", "-e", weights, "--prompt", prompt, "--json", *options],
                         capture_output=True, check=True)
    return json.loads(out.stdout)["text"]


def test_text(page, program, prompt):
    browser = ready(page)
    with tempfile.TemporaryDirectory() as directory:
        weights = os.path.join(directory, "page.safetensors")
        form = weights_of(page, weights)
        check("says its weights", form in text_of(browser, "format"))
        # The models with rounded weights are not trained. Rounding decides which of their nearly
        # equal tokens are the most probable, so all tokens are drawn from.
        top_p = 0.95 if form == "float32" else 1
        for temperature in (0, 0.8):
            write(browser, prompt, temperature=temperature, top_p=top_p, seed=7, count=60)
            written = browser.run(TOKENS + ".filter(e => e.className !== 'given').map(e => e.textContent).join('')")
            expected = program_says(program, weights, prompt, "--temperature", str(temperature), "--top-p", str(top_p), "-S", "7",
                                    "-g", "60")
            plain = re.compile("[\u00b7\u21b5\u25a0\ufffd]")
            check(f"{form}: as --prompt --temperature {temperature}", plain.sub("", written) == plain.sub("", expected),
                  f"\n{written!r}\n{expected!r}")
    browser.run("document.getElementById('more').click()")
    browser.until(BUSY)
    check("more", browser.run(TOKENS + ".filter(e => e.className !== 'given').length") == 120)

    # A token, its loss and the weights of each head; by mouse and keyboard.
    browser.run(TOKENS + "[3].click()")
    browser.until("document.querySelectorAll('.heads button').length > 0")
    shown = text_of(browser, "drawn")
    parts = [float(part) for part in re.findall(r"([0-9.]+)%", shown)]
    check("weights of a head", re.search(r"layer 1, head 1.* tokens in its window", shown) and 0 < sum(parts) <= 100.3, shown)
    check("a loss", "probability" in text_of(browser, "token"))
    browser.key("ArrowRight")
    browser.until("document.querySelectorAll('.heads button').length > 0")
    check("the arrow keys", browser.run(TOKENS + "[4] === document.activeElement && document.activeElement.ariaCurrent === 'true'"))
    browser.run("document.querySelectorAll('.heads button')[1].click()")
    check("another head", "head 2" in text_of(browser, "drawn"))
    check("tokens are colored", browser.run(TOKENS + "[5].style.backgroundColor").startswith("rgba(230, 110, 0"))
    test_whole(browser, page)


def test_whole(browser, page):
    """Checks what all pages have in common, and the curves if the page has any."""
    if browser.run("!document.getElementById('curves').hidden"):
        check("the best result", re.search("best: step [0-9]", text_of(browser, "results")), text_of(browser, "results"))
        browser.run("document.querySelector('figure').focus()")
        browser.key("ArrowLeft")
        check("values of a curve", re.search(r"step [0-9,]+: .*training [0-9.]+", browser.run("document.querySelector('figure output').textContent")))
        browser.run("document.getElementById('x').value='seconds',document.getElementById('x').onchange(),document.getElementById('log-y').click()")
        check("curves by time", browser.run("document.querySelectorAll('svg polyline').length") > 3)
        names = "Array.from(document.querySelectorAll('figure, input, select, textarea')).filter(e => !e.ariaLabel && !e.labels?.length).length"
        check("a name for everything", browser.run(names) == 0)
    check("no error in the console", not browser.errors, browser.errors)
    check("nothing is loaded", len([url for url in browser.requests if not url.startswith(("blob:", "data:"))]) == 1,
          browser.requests)
    check("no wider than the window", browser.run("document.documentElement.scrollWidth <= innerWidth"))
    browser.close()


def choose_token(browser, number):
    """Selects a token and returns the descriptions of its heads' weights."""
    browser.run(TOKENS + f"[{number}].click()")
    browser.until("document.querySelectorAll('.heads button').length > 0")
    return browser.run("Array.from(document.querySelectorAll('.heads button')).map(e => (e.click(), "
                       "document.getElementById('drawn').textContent))")


def test_masked(page, text, expected):
    browser = ready(page)
    write(browser, text)
    check("guesses as the program's", text_of(browser, "guesses").startswith("[MASK] 1: " + expected), text_of(browser, "guesses"))
    tokens = browser.run(TOKENS + ".length")
    drawn = choose_token(browser, 1)
    check("a token drew on all of the text", f"layer 2, head 2: of {tokens} tokens" in drawn[-1], drawn)
    test_whole(browser, page)


def test_translation(page, text, expected):
    browser = ready(page)
    write(browser, text)
    written = browser.run(TOKENS + ".filter(e => e.className !== 'given').map(e => e.textContent).join('')")
    check("the program's translation", written.rstrip("\u21b5\n\u25a0\u00b7") == expected, (written, expected))
    check("losses", browser.run(TOKENS + ".pop().title").startswith("loss "))
    given = browser.run(TOKENS + ".filter(e => e.className === 'given').length")
    first, last = choose_token(browser, 0), choose_token(browser, given + 1)
    check("a token of the source drew on the source", len(first) == 2 and f"of {given - 1} tokens" in first[0], first)
    check("a token drew on both", len(last) == 4 and "head 1: of 2 tokens" in last[0] and
          f"head 2, source: of {given - 1} tokens" in last[3], last)
    test_whole(browser, page)


def test_hostile(page):
    browser = ready(page, width=400)
    browser.run("document.querySelector('details').open = true")
    check("no markup", browser.run("document.querySelectorAll('img, iframe, object, embed, a, [onerror]').length") == 0)
    check("one script and no more", browser.run("document.scripts.length") == 3)  # two are data
    check("it is shown", "onerror" in browser.run("document.body.innerText"))
    check("nothing ran", browser.run("typeof window.evil") == "undefined")
    refused = browser.run("(() => { const e = document.createElement('script'); e.textContent = 'window.evil = 1';"
                          "document.body.append(e); e.remove(); return typeof window.evil; })()")
    check("the policy refuses scripts", refused == "undefined")
    browser.errors.clear()  # the policy's own message
    test_whole(browser, page)


def test_training(page):
    """Tests a page of a run that has not ended."""
    browser = ready(page)
    check("samples", browser.run("document.querySelectorAll('#samples pre').length") > 0)
    write(browser, "The king", count=5)
    check("writes", browser.run(TOKENS + ".filter(e => e.className !== 'given').length") == 5)
    test_whole(browser, page)


def test_curves(page):
    browser = Browser()
    browser.open(page)
    check("two lines in the first chart", browser.run("document.querySelector('figure').querySelectorAll('polyline').length") == 4)
    check("their names", all(name in text_of(browser, "legend") for name in ("bpe", "byte")))
    test_whole(browser, page)


def shots(page, prompt, directory):
    for dark in (False, True):
        for width in (1000, 400):
            browser = ready(page, width=width, dark=dark)
            write(browser, prompt, temperature=0.5, count=80)
            browser.run(TOKENS + "[12].click()")
            browser.until("document.querySelectorAll('.heads button').length > 0")
            browser.screenshot(os.path.join(directory, f"{'dark' if dark else 'light'}-{width}.png"))
            browser.close()


def worker_seconds():
    """Returns the processor time of the pages' workers, on which other programs have little
    effect."""
    ticks = 0
    for path in glob.glob("/proc/[0-9]*/task/*/stat"):
        try:
            with open(path, encoding="utf-8") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(") ", 1)
        except OSError:
            continue
        fields = rest.split()
        if name.startswith("DedicatedWorker") and int(fields[2]) == os.getpgrp():
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def speed(page):
    browser, count = ready(page), 1000
    for settings in ({"temperature": 0}, {"temperature": 0.8, "top_p": 1}, {"temperature": 0.8, "top_p": 0.95}):
        start = worker_seconds()
        write(browser, "The", count=count, **settings)
        print(f"{settings}: {count / (worker_seconds() - start):.0f} tokens per second of processor time; {text_of(browser, 'status')}")
    browser.close()


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    {"--text": test_text, "--translation": test_translation, "--masked": test_masked, "--training": test_training, "--curves": test_curves, "--hostile": test_hostile, "--shots": shots, "--speed": speed}[what](*rest)
    print(f"{counts[True]} passed, {counts[False]} failed")
    sys.exit(counts[False] > 0)
