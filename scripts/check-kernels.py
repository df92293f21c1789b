#!/usr/bin/env python3
"""Compiles every kernel instance for every architecture with NVRTC, without a GPU.

Fails on an error, a compiler warning, a register spill or a stack frame. NVRTC comes from PyPI,
into a virtual environment made on first use. What passed is remembered by content, so a second run
is fast. With --out, writes the cubins of one table into a folder: with a manifest, for a GPU machine
that has no NVRTC (scripts/tune_kernels.py; one architecture), and with the sources and a list, for a
build that embeds them (SGEMM_BI_EMBED names the folder; any number of architectures).
"""

import argparse
import concurrent.futures
import ctypes
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = ROOT / "sgemm-bi-core" / "kernels"
PACKAGES = ["nvidia-cuda-nvrtc==13.0.*", "nvidia-cuda-nvrtc-cu12==12.9.*"]
ARCHS = ["sm_61", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"]
FLAGS = ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
         "-default-device", "--ptxas-options=-v"]


def constants():
    """The defines that come from the contract, read from the one place that has them."""
    text = (ROOT / "sgemm-bi-core" / "src" / "contract.rs").read_text()

    def value(name):
        found = re.search(rf"\b{name}: \w+ = (\w+);", text)
        return found[1].replace("_", "")

    return {"CHUNK": value("CHUNK"), "NAN_F32": value("CANONICAL_NAN_F32") + "u",
            "NAN_16": value("CANONICAL_NAN_16") + "u"}


def read_table(path):
    """[(kernel, {define: value}, first capability, last capability)], one for each line."""
    table = []
    for line in pathlib.Path(path).read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            defines = dict(word.split("=") for word in words[1:])
            first, last = defines.pop("archs", "-").split("-")
            table.append((words[0], defines, int(first or 0), int(last or 999)))
    return table


def launch(kernel, defines):
    """Threads of a block and bytes of dynamic shared memory: kernels/README.md's formulas."""
    d = {name: int(value) for name, value in defines.items()}
    if kernel == "tile":
        threads = d["BM"] // d["TM"] * (d["BN"] // d["TN"])
        pitches = d["BM"] + 4 * d["LHS_ORDER"] + d["BN"] + 4 * d["RHS_ORDER"]
        slots = 4 * d["STAGES"] * d["BK"] * pitches
        return threads, max(slots, 16 * (d["BM"] // d["TM"]) * (d["BN"] + 4))
    if kernel == "few_rows":
        lines = d["COLS"] + (0 if d["ONES"] else d["ROWS"])
        return d["COLS"] * 4, d["STAGES"] * lines * d["BK"] * (4 if d["ELEMENT"] == 0 else 2)
    return 256, 0


class Nvrtc:
    """The NVRTC of one major version in a virtual environment."""

    def __init__(self, site, major):
        folder = site / "nvidia" / ("cu13" if major == 13 else "cuda_nvrtc") / "lib"
        builtins = [p for p in sorted(folder.glob("libnvrtc-builtins.so.*"))]
        if not builtins:
            sys.exit(f"no NVRTC {major} in {folder}: install {' '.join(PACKAGES)} there")
        ctypes.CDLL(str(builtins[0]), ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(folder / f"libnvrtc.so.{major}"))
        numbers = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(*(ctypes.byref(n) for n in numbers))
        self.version = f"{numbers[0].value}.{numbers[1].value} {builtins[0].name}"

    def text(self, program, what, size):
        count = ctypes.c_size_t()
        getattr(self.library, size)(program, ctypes.byref(count))
        buffer = ctypes.create_string_buffer(count.value)
        getattr(self.library, what)(program, buffer)
        return buffer.raw[: count.value]

    def compile(self, source, headers, options):
        """(log, cubin), the cubin None if it does not compile."""
        names = [name.encode() for name in headers]
        bodies = [headers[name].encode() for name in headers]
        array = ctypes.c_char_p * len(names)
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu",
                                        len(names), array(*bodies), array(*names))
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = self.library.nvrtcCompileProgram(program, len(options), words)
        log = self.text(program, "nvrtcGetProgramLog", "nvrtcGetProgramLogSize")
        cubin = None
        if status == 0:
            cubin = self.text(program, "nvrtcGetCUBIN", "nvrtcGetCUBINSize")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return log.rstrip(b"\0").decode(), cubin


def complaints(log):
    """What a log holds beyond the resources that ptxas was asked to print."""
    found = []
    for line in log.splitlines():
        spill = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
                          r"(\d+) bytes spill loads", line)
        if spill:
            if any(int(number) for number in spill.groups()):
                found.append(spill[0])
        elif "Architectures prior to" in line:
            pass  # NVRTC 12 says that its successor does not know them; that is why it is used.
        elif re.search(r"warning|error", line, re.IGNORECASE):
            found.append(line.strip())
    return found


LIBRARIES = {}


def compile_instance(job):
    """One instance for one architecture, in a worker process."""
    site, arch, kernel, defines, remembered = job
    major = 12 if arch in ("sm_61", "sm_70") else 13
    if major not in LIBRARIES:
        LIBRARIES[major] = Nvrtc(site, major)
    nvrtc = LIBRARIES[major]
    source = (KERNELS / f"{kernel}.cu").read_text()
    headers = {path.name: path.read_text() for path in sorted(KERNELS.glob("*.cuh"))}
    options = FLAGS + [f"-arch={arch}"]
    options += [f"-D{name}={value}" for name, value in {**constants(), **defines}.items()]
    key = hashlib.sha256(json.dumps([nvrtc.version, source, headers, options]).encode())
    passed = remembered and remembered / key.hexdigest()
    if passed and passed.exists():
        return [], 0, None
    log, cubin = nvrtc.compile(source, headers, options)
    found = complaints(log)
    if cubin is None and not found:
        found = [log.strip() or "does not compile, without a word"]
    registers = re.search(r"Used (\d+) registers", log)
    if passed and not found:
        passed.touch()
    return found, int(registers[1]) if registers else 0, cubin


def write_embed(folder, manifest):
    """What sgemm-bi-core/build.rs reads: a list, and the sources that the cubins were made from."""
    # How much ptxas says about a kernel does not change it.
    flags = [flag for flag in FLAGS if not flag.startswith("--ptxas-options")]
    flags += [f"-D{name}={value}" for name, value in constants().items()]
    lines = ["sgemm-bi embed 1", "flags " + " ".join(flags)]
    sources = folder / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    names = {f"{entry['kernel']}.cu" for entry in manifest}
    for path in [*sorted(KERNELS.glob("*.cuh")), *(KERNELS / name for name in sorted(names))]:
        shutil.copyfile(path, sources / path.name)
        lines.append(f"source {path.name}")
    for entry in manifest:
        defines = [f"{name}={value}" for name, value in sorted(entry["defines"].items())]
        lines.append(" ".join(["cubin", entry["arch"], entry["cubin"], entry["kernel"], *defines]))
    (folder / "embed.txt").write_text("\n".join(lines) + "\n")


def environment(folder):
    """The site-packages of a virtual environment that has NVRTC."""
    folder = pathlib.Path(folder)
    if not (folder / "pyvenv.cfg").exists():
        venv.create(folder, with_pip=True)
    found = sorted(folder.glob("lib/python*/site-packages"))
    if not found:
        sys.exit(f"{folder} is no virtual environment")
    if not (found[0] / "nvidia" / "cu13").exists() or not (found[0] / "nvidia/cuda_nvrtc").exists():
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES],
                       check=True)
    return found[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv", nargs="?", default=ROOT / "target" / "nvrtc-venv",
                        help="virtual environment with NVRTC; made if missing")
    parser.add_argument("--arch", action="append", choices=[*ARCHS, "sm_70"],
                        help="only this one; may be repeated")
    parser.add_argument("--table", default=KERNELS / "instances.txt")
    parser.add_argument("--match", default="", help="only instances whose line matches")
    parser.add_argument("--out", help="folder for cubins, manifest.json and embed.txt")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    archs = options.arch or ARCHS

    site = environment(options.venv)
    remembered = None
    if not options.out:
        remembered = ROOT / "target" / "checked-kernels"
        remembered.mkdir(parents=True, exist_ok=True)
    jobs = []
    for arch in archs:
        capability = int(re.search(r"\d+", arch)[0])
        for kernel, defines, first, last in read_table(options.table):
            if not first <= capability <= last:
                continue
            line = " ".join([kernel, *(f"{name}={value}" for name, value in defines.items())])
            if re.search(options.match, line):
                jobs.append((arch, line, kernel, defines))

    manifest, failures = [], 0
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        results = pool.map(compile_instance,
                           [(site, arch, kernel, defines, remembered)
                            for arch, _, kernel, defines in jobs])
        for (arch, line, kernel, defines), (found, registers, cubin) in zip(jobs, results):
            if found:
                failures += 1
                print(f"{arch} {line}")
                for complaint in found:
                    print(f"    {complaint}")
            if options.out and cubin:
                folder = pathlib.Path(options.out)
                folder.mkdir(parents=True, exist_ok=True)
                digest = hashlib.sha256(line.encode()).hexdigest()[:12]
                name = f"{kernel}-{digest}.{arch}.cubin"
                (folder / name).write_bytes(cubin)
                threads, shared = launch(kernel, defines)
                manifest.append({"kernel": kernel, "arch": arch, "defines": defines, "cubin": name,
                                 "registers": registers, "threads": threads, "shared": shared,
                                 "spills": bool(found)})
    if options.out:
        out = {"archs": archs, "chunk": int(constants()["CHUNK"]), "instances": manifest}
        (pathlib.Path(options.out) / "manifest.json").write_text(json.dumps(out, indent=1) + "\n")
        write_embed(pathlib.Path(options.out), manifest)
    print(f"{len(jobs) - failures} of {len(jobs)} instances compile without a spill or a warning")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
