#!/usr/bin/env python3
"""Checks, then times, dumped kernel instances on a GPU: needs torch and the driver, no NVRTC.

Input is a folder that `check-kernels.py --out` wrote; it must hold a naive instance for each set of
dtypes. Every instance is first compared, word by word, with the naive kernel on ragged shapes and
special values, then timed against torch.mm (TF32 off), interleaved, as the median of paired ratios.
An instance that fails is reported and left out; the time is bounded by --seconds.
"""

import argparse
import ctypes
import json
import math
import pathlib
import statistics
import time
import traceback

F32, BF16, F16 = "0", "1", "2"
LIMIT_SHARED = 48 * 1024
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

# (name, left-hand order, right-hand order): which products of a linear layer have them.
PAIRS = {
    ("1", "0"): "fwd [in,out]",
    ("1", "1"): "fwd [out,in], dX [in,out]",
    ("0", "0"): "dW",
    ("0", "1"): "both transposed",
}
LARGE = [(4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 14336), (65536, 1024, 1024),
         (4096, 1536, 3072), (2048, 768, 3072), (2048, 768, 512), (512, 4096, 4096),
         (64, 4096, 4096), (1000, 1000, 1000), (513, 384, 769)]
FEW = [(m, k, n) for m in (1, 16) for k, n in ((4096, 4096), (4096, 14336), (14336, 4096))]


class Dim(ctypes.Structure):
    _fields_ = [(name, ctypes.c_longlong) for name in ("len", "lhs", "rhs", "out")]


class Product(ctypes.Structure):
    """kernels/product.cuh's Product."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in ("lhs", "rhs", "bias", "out", "totals")]
        + [(name, ctypes.c_longlong)
           for name in ("rows", "cols", "reduction", "lhs_row", "lhs_red", "rhs_red", "rhs_col",
                        "out_row", "out_col", "batch")]
        + [("dims", Dim * 3)]
        + [(name, ctypes.c_int) for name in ("bias_along", "accumulate", "flags", "chunks")]
    )


assert ctypes.sizeof(Product) == 232


class Driver:
    """The few calls of the CUDA driver that a launch needs, in torch's context and stream."""

    def __init__(self, torch):
        torch.zeros(1, device="cuda")  # Makes the context current.
        self.library = ctypes.CDLL("libcuda.so.1")
        self.stream = lambda: ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown').decode()} ({status})")


class Instance:
    """A loaded cubin."""

    def __init__(self, driver, folder, entry):
        self.driver, self.entry = driver, entry
        self.defines, self.kernel = entry["defines"], entry["kernel"]
        image = (folder / entry["cubin"]).read_bytes()
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuModuleLoadData", ctypes.byref(module), image)
        driver.call("cuModuleGetFunction", ctypes.byref(self.function), module,
                    self.kernel.encode())
        if entry["shared"] > LIMIT_SHARED:
            driver.call("cuFuncSetAttribute", self.function, MAX_DYNAMIC_SHARED, entry["shared"])

    def name(self):
        d = self.defines
        if self.kernel == "tile":
            return (f"tile {d['BM']}x{d['BN']} {d['TM']}x{d['TN']} k{d['BK']} s{d['STAGES']} "
                    f"f{d['FENCE']} r{d['RESIDENT']} w{d['LHS_WIDTH']}"
                    + (" split" if d["SPLIT"] == "1" else ""))
        if self.kernel == "few_rows":
            return (f"few {d['ROWS']}x{d['COLS']} k{d['BK']} s{d['STAGES']} w{d['RHS_WIDTH']}"
                    + (" ones" if d["ONES"] == "1" else "")
                    + (" split" if d["SPLIT"] == "1" else ""))
        return self.kernel

    def orders(self):
        return self.defines.get("LHS_ORDER", "1"), self.defines["RHS_ORDER"]

    def split(self):
        return self.defines.get("SPLIT") == "1"

    def blocks(self, product):
        if self.kernel == "naive":
            return math.ceil(product.rows * product.cols * product.batch / 256)
        if self.kernel == "fold":
            return min(math.ceil(product.rows * product.cols * product.batch / 256), 4096)
        d = self.defines
        rows, cols = (int(d[n]) for n in
                      (("BM", "BN") if self.kernel == "tile" else ("ROWS", "COLS")))
        tiles = math.ceil(product.rows / rows) * math.ceil(product.cols / cols)
        return tiles * product.batch * (product.chunks if self.split() else 1)

    def launch(self, product):
        blocks = self.blocks(product)
        if blocks == 0:
            return
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(product))
        self.driver.call("cuLaunchKernel", self.function, blocks, 1, 1, self.entry["threads"], 1, 1,
                         self.entry["shared"], self.driver.stream(), parameters, None)


class Operands:
    """The tensors of a product, and the product."""

    def __init__(self, torch, instance, shape, aligned, special, variant, chunk):
        m, k, n = shape
        d = instance.defines
        kind = {F32: torch.float32, BF16: torch.bfloat16, F16: torch.float16}
        element, out = kind[d["ELEMENT"]], kind[d["OUT"]]
        left, right = instance.orders()
        pad = (lambda x: (x + 7) // 8 * 8) if aligned else (lambda x: x)

        def matrix(order, lines, reduction):
            # Order 0: [reduction, lines]; order 1: [lines, reduction]; a padded last dimension.
            height, width = (reduction, lines) if order == "0" else (lines, reduction)
            whole = torch.randn(max(height, 1), max(pad(width), 1), device="cuda")
            if special:
                words = torch.tensor([0x7F800000, -0x800000, 0x7FC00000, -0x80000000, 0, 1, 3,
                                      0x7F7FFFFF, 0x00800000, 0x33800000],
                                     dtype=torch.int64).to(torch.int32).view(torch.float32).cuda()
                where = torch.rand(whole.shape, device="cuda") < special
                pick = words[torch.randint(0, words.numel(), whole.shape, device="cuda")]
                whole = torch.where(where, pick, whole)
            whole = whole.to(element)
            stride = whole.shape[1]
            return whole, (1, stride) if order == "0" else (stride, 1)

        self.lhs, (lhs_row, lhs_red) = matrix(left, m, k)
        self.rhs, (rhs_col, rhs_red) = matrix(right, n, k)
        bias_kind = kind[d["BIAS"]]
        self.bias = torch.randn(max(m, n), device="cuda").to(bias_kind)
        self.start = torch.randn(m, n + variant % 3, device="cuda").to(out)
        self.out = torch.empty_like(self.start)
        chunks = max(1, math.ceil(k / chunk))
        copies = chunks if instance.split() else 1
        self.totals = torch.empty(copies * m * n, device="cuda") if (
            instance.split() or out != torch.float32) else None
        self.product = Product(
            lhs=self.lhs.data_ptr(), rhs=self.rhs.data_ptr(), bias=self.bias.data_ptr(),
            out=self.out.data_ptr(),
            totals=None if self.totals is None else self.totals.data_ptr(),
            rows=m, cols=n, reduction=k, lhs_row=lhs_row, lhs_red=lhs_red, rhs_red=rhs_red,
            rhs_col=rhs_col, out_row=self.start.shape[1], out_col=1, batch=1,
            bias_along=variant % 3, accumulate=int(d["OUT"] == F32 and variant % 2),
            chunks=chunks)
        for dim in self.product.dims:
            dim.len = 1

    def poison(self):
        """What an output must overwrite, or accumulate into."""
        if self.product.accumulate:
            self.out.copy_(self.start)
        else:
            self.out.view(dtype=self.words()).fill_(-0x3A3B if self.out.element_size() == 2
                                                    else -0x3A3A3A3B)
        if self.totals is not None:
            self.totals.fill_(float("nan"))

    def words(self):
        import torch

        return torch.int16 if self.out.element_size() == 2 else torch.int32


def folds(instances):
    return {(i.defines["OUT"], i.defines["BIAS"]): i for i in instances if i.kernel == "fold"}


def run(instance, fold, product):
    instance.launch(product)
    if instance.split():
        fold.launch(product)


def check(torch, instance, fold, naive, chunk, deadline):
    """None, or a message with the first mismatch."""
    sizes = [1, 7, 65, 129, 300]
    d = instance.defines
    few = instance.kernel == "few_rows"
    wide = int(d["RHS_WIDTH"]) > 1
    cases = []
    for at, r in enumerate([1, 7, 65, 129, 300, 0, 4096, 4097, 9000]):
        for step in range(2):
            m = sizes[(at + 2 * step) % 5]
            if few:
                m = 1 if d["ONES"] == "1" else [1, int(d["ROWS"]), max(1, int(d["ROWS"]) - 1)][
                    (at + step) % 3]
            cases.append((m, r, sizes[(at * 3 + step + 1) % 5]))
    for at, shape in enumerate(cases):
        if time.time() > deadline:
            return "out of time"
        operands = Operands(torch, instance, shape, wide, (0, 0.01, 0.0005)[at % 3], at, chunk)
        operands.poison()
        naive.launch(operands.product)
        torch.cuda.synchronize()
        want = operands.out.clone()
        operands.poison()
        run(instance, fold, operands.product)
        torch.cuda.synchronize()
        got, want = (t.view(operands.words()) for t in (operands.out, want))
        if not torch.equal(got, want):
            row, col = (int(x) for x in (got != want).nonzero()[0])
            bad = int((got != want).sum())
            mask = 0xFFFF if got.element_size() == 2 else 0xFFFFFFFF
            return (f"{shape} case {at}: {bad} wrong, first at [{row}, {col}]: "
                    f"{int(got[row, col]) & mask:#x}, expected {int(want[row, col]) & mask:#x}")
    return None


def recorded(torch, call, repeat):
    """A graph of `repeat` calls: small kernels are faster than Python launches them."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            call()
    graph.replay()
    return graph.replay


def paired(torch, ours, theirs, pairs, deadline):
    """Median of time(theirs) / time(ours), and our median time in seconds."""
    for _ in range(2):
        ours(), theirs()
    torch.cuda.synchronize()
    begin = time.time()
    ours()
    torch.cuda.synchronize()
    repeat = max(1, min(50, int(0.002 / max(time.time() - begin, 1e-6))))
    ours, theirs = recorded(torch, ours, repeat), recorded(torch, theirs, repeat)
    ratios, times = [], []
    for pair in range(pairs):
        if pair >= 3 and time.time() > deadline:
            break
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        for first, call in ((0, ours), (2, theirs)) if pair % 2 else ((2, theirs), (0, ours)):
            marks[first].record()
            call()
            marks[first + 1].record()
        torch.cuda.synchronize()
        mine = marks[0].elapsed_time(marks[1])
        ratios.append(marks[2].elapsed_time(marks[3]) / mine)
        times.append(mine / repeat / 1e3)
    return statistics.median(ratios), statistics.median(times)


def time_instance(torch, instance, fold, shape, chunk, pairs, deadline):
    m, k, n = shape
    if instance.orders()[0] == "0":
        m, k, n = k, m, n  # a weight gradient: [in, out], reduced over the rows
    operands = Operands(torch, instance, (m, k, n), True, 0, 0, chunk)
    operands.product.accumulate = 0
    lhs, rhs = operands.lhs, operands.rhs
    a = lhs[:k, :m].T if instance.orders()[0] == "0" else lhs[:m, :k]
    b = rhs[:k, :n] if instance.orders()[1] == "0" else rhs[:n, :k].T
    a32, b32 = a, b
    if a.dtype != torch.float32:
        # The goal is a ratio to f32: the widened operands, in the same layout.
        a32 = a.T.float().T if instance.orders()[0] == "0" else a.float()
        b32 = b.float() if instance.orders()[1] == "0" else b.T.float().T
    out = torch.empty(m, n, device="cuda")
    ratio, seconds = paired(torch, lambda: run(instance, fold, operands.product),
                            lambda: torch.mm(a32, b32, out=out), pairs, deadline)
    return {"ratio": ratio, "us": seconds * 1e6, "tflops": 2 * m * n * k / seconds / 1e12,
            "gbps": (m * k + n * k) * lhs.element_size() / seconds / 1e9}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="what check-kernels.py --out wrote")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--json", default="tuning.json")
    parser.add_argument("--no-check", action="store_true")
    options = parser.parse_args()
    end = time.time() + options.seconds

    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)
    driver = Driver(torch)

    manifest = json.loads((options.folder / "manifest.json").read_text())
    chunk = manifest["chunk"]
    instances, failures = [], []
    for entry in manifest["instances"]:
        try:
            instances.append(Instance(driver, options.folder, entry))
        except Exception as error:  # One bad cubin must not stop the rest.
            failures.append(f"{entry['cubin']} {entry['defines']}: {error}")
    by_dtypes = folds(instances)
    naive = {(i.defines["ELEMENT"], i.defines["OUT"], i.defines["BIAS"], i.defines["ONES"]): i
             for i in instances if i.kernel == "naive"}

    sound = []
    check_end = time.time() + options.seconds * 0.4
    for instance in instances:
        if instance.kernel not in ("tile", "few_rows"):
            continue
        d = instance.defines
        fold = by_dtypes.get((d["OUT"], d["BIAS"]))
        key = d["ELEMENT"], d["OUT"], d["BIAS"], d.get("ONES", "0")
        message = None
        if instance.split() and fold is None:
            message = "no fold in the folder"
        elif not options.no_check and key not in naive:
            message = f"no naive instance for {key} in the folder"
        elif not options.no_check:
            try:
                message = check(torch, instance, fold, naive[key], chunk, check_end)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
                traceback.print_exc()
        if message:
            failures.append(f"{instance.name()} {d}: {message}")
            print("FAILED", failures[-1], flush=True)
            if "illegal" in message.lower() or "launch failure" in message.lower():
                break  # The context is lost.
        else:
            sound.append((instance, fold))
    print(f"{len(sound)} instances have the naive kernel's bits, {len(failures)} failed",
          flush=True)

    results = []
    timed = [(i, f) for i, f in sound if i.defines.get("ONES", "0") == "0"]
    jobs = [(shape, i, f) for shape in LARGE + FEW for i, f in timed
            if (i.kernel == "few_rows") == (shape in FEW)
            and (i.kernel == "tile" or int(i.defines["ROWS"]) == shape[0])
            and (not i.split() or (shape[0] if i.orders()[0] == "0" else shape[1]) > chunk)]
    for at, (shape, instance, fold) in enumerate(jobs):
        remaining = end - time.time()
        if remaining <= 0:
            print(f"out of time: {len(jobs) - at} of {len(jobs)} timings left out")
            break
        deadline = time.time() + 2 * remaining / (len(jobs) - at)
        try:
            measured = time_instance(torch, instance, fold, shape, chunk, options.pairs, deadline)
            results.append({"shape": shape, "orders": instance.orders(), "name": instance.name(),
                            "element": instance.defines["ELEMENT"], "defines": instance.defines,
                            **measured})
        except Exception as error:
            failures.append(f"{shape} {instance.name()}: {error}")
    pathlib.Path(options.json).write_text(
        json.dumps({"results": results, "failures": failures}, indent=1) + "\n")

    print(f"\n{'(M, K, N)':24} {'layouts':26} {'dtype':5} {'ratio':>6} {'TFLOP/s':>8} {'GB/s':>6}"
          "  best instance, then the next two")
    cells = {}
    for result in results:
        cells.setdefault((tuple(result["shape"]), result["orders"], result["element"]),
                         []).append(result)
    for (shape, orders, element), found in cells.items():
        found.sort(key=lambda result: -result["ratio"])
        best = found[0]
        others = "; ".join(f"{r['ratio']:.3f} {r['name']}" for r in found[1:3])
        print(f"{str(shape):24} {PAIRS[orders]:26} {['f32', 'bf16', 'f16'][int(element)]:5} "
              f"{best['ratio']:6.3f} {best['tflops']:8.2f} {best['gbps']:6.0f}  {best['name']}"
              f" | {others}")
    for failure in failures:
        print("FAILED", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
