#!/usr/bin/env python3
"""A wheel of PROGRAM, which is all programs (fastformer.c), and of the model for PyTorch.

usage: VERSION=V SOURCE_DATE_EPOCH=SECONDS wheel.py PROGRAM DIRECTORY

Python's own library is enough. Where auditwheel is found, it adds the libraries that not every Linux has (oneDNN,
OpenMP), and names the C library that is needed; else the wheel is for this system. The same input gives the same bytes.
"""

import base64
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VERSION = os.environ["VERSION"]
INFO = f"fastformer-{VERSION}.dist-info"
LIMIT = 15_000_000  # bytes

METADATA = f"""\
Metadata-Version: 2.4
Name: fastformer
Version: {VERSION}
Summary: Trains small language models with linear-time attention, in C
License-Expression: MIT
License-File: LICENSE
Requires-Python: >=3.9
Provides-Extra: torch
Requires-Dist: torch; extra == "torch"
Requires-Dist: transformers>=4.57; extra == "torch"
Description-Content-Type: text/markdown

"""
MAIN = 'import sys\n\nfrom . import main\n\nsys.exit(main())\n'
COPYRIGHTS = ("libdnnl2", "libgomp1", "ocl-icd-libopencl1")  # Debian packages that auditwheel adds


def programs(program):
    """Returns the names by which the program may be called, from its own help."""
    text = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    return ["fastformer"] + [line.split()[-1] for line in text.splitlines() if " the program " in line]


def files(program):
    """Returns {path in the wheel: bytes}."""
    scripts = "".join(f"{name} = fastformer:main\n" for name in programs(program))
    found = {
        "fastformer/__init__.py": (HERE / "fastformer.py").read_bytes(),
        "fastformer/__main__.py": MAIN.encode(),
        "fastformer/modeling_fastformer.py": (ROOT / "dev/fastformer/modeling_fastformer.py").read_bytes(),
        "fastformer/bin/fastformer": pathlib.Path(program).read_bytes(),
        f"{INFO}/METADATA": METADATA.encode() + (ROOT / "docs/usage.md").read_bytes(),
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: fastformer.c\nRoot-Is-Purelib: false\n"
        + f"Tag: py3-none-linux_{platform.machine()}\n".encode(),
        f"{INFO}/entry_points.txt": f"[console_scripts]\n{scripts}".encode(),
        f"{INFO}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    for name in COPYRIGHTS:
        copyright = pathlib.Path(f"/usr/share/doc/{name}/copyright")
        if copyright.exists():
            found[f"{INFO}/licenses/{name}"] = copyright.read_bytes()
    return found


def write(path, found):
    def digest(data):
        return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    record = f"{INFO}/RECORD"
    lines = [f"{name},sha256={digest(data)},{len(data)}\n" for name, data in found.items()]
    found = {**found, record: ("".join(lines) + f"{record},,\n").encode()}
    date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, data in found.items():
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr = (0o100755 if "/bin/" in name else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data, compresslevel=9)


def main(program, to):
    with tempfile.TemporaryDirectory() as scratch:
        made = pathlib.Path(scratch) / f"fastformer-{VERSION}-py3-none-linux_{platform.machine()}.whl"
        write(made, files(program))
        repaired = pathlib.Path(scratch) / "repaired"
        auditwheel = shutil.which("auditwheel")
        if auditwheel:
            done = subprocess.run([auditwheel, "repair", "-w", repaired, made], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"error: auditwheel repair:\n{done.stdout}{done.stderr}")
            made, = repaired.iterdir()
        else:
            print("auditwheel was not found: the wheel needs this system's oneDNN and OpenMP", file=sys.stderr)
        size = made.stat().st_size
        if size > LIMIT:
            sys.exit(f"error: {made.name}: {size:,} bytes; at most {LIMIT:,} were allowed")
        print(shutil.copy(made, to))


if __name__ == "__main__":
    main(*sys.argv[1:])
