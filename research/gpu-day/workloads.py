"""Workloads, one after the other: `python workloads.py NAME... --seconds 60 --result FILE`. Needs
PyTorch; --rehearse needs none.

Writes {"begin", "end", "units", "rate"}: when the work itself began and ended (seconds since 1970)
and how much was done; start of Python, of CUDA and warming up lie before it. Of several names it
writes a list, with `name`. --steps FILE gets a line for each step when it has ended: seconds since
1970, units so far. Names are those of `proof_labels.py` and of KERNELS.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from proof_labels import BY_NAME

Step = Callable[[], int]  # does some work, returns how many units
STEP_S = 0.02  # about so long a step is made: the clock is looked at in between
WARM_S = 2.0
# Variable with a folder of packages that PyTorch shall not see: it has its own versions.
SITE = "GPU_DAY_SITE"


def load_torch() -> Any:
    """Return PyTorch, with the packages of its own Python. Errors: ImportError."""
    sys.path[:] = [folder for folder in sys.path if folder != os.environ.get(SITE)]
    return importlib.import_module("torch")


def _repeated(torch: Any, once: Callable[[], object]) -> Step:
    """Repeat something until a step takes long enough; wait for the GPU at its end."""
    once()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(3):
        once()
    torch.cuda.synchronize()
    count = max(1, round(STEP_S / max(1e-6, (time.perf_counter() - began) / 3)))

    def step() -> int:
        for _ in range(count):
            once()
        torch.cuda.synchronize()
        return count

    return step


def _product(torch: Any, kind: Any, size: int = 8192) -> Step:
    torch.backends.cuda.matmul.allow_tf32 = False
    left, right = (torch.randn(size, size, device="cuda").to(kind) for _ in range(2))
    out = torch.empty(size, size, device="cuda", dtype=kind)
    return _repeated(torch, lambda: torch.matmul(left, right, out=out))


def _fp64_vector(torch: Any) -> Callable[[], object]:
    loop = "for (int i = 0; i < 4096; ++i) x = x * T(1.0000001) + T(1e-9);"
    chain = f"template <typename T> T chain(T x) {{ {loop} return x; }}"
    spin = torch.cuda.jiterator._create_jit_fn(chain)
    x = torch.rand(1 << 22, device="cuda", dtype=torch.float64)
    return lambda: spin(x)


def _room(torch: Any, buffers: int) -> int:
    """Bytes of each of some buffers: at most 4 GiB, together at most half of the free memory."""
    free, _ = torch.cuda.mem_get_info()
    return int(min(4 << 30, free // (2 * buffers))) // 4096 * 4096


def _device_copy(torch: Any) -> Step:
    size = _room(torch, 2)
    source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    return _repeated(torch, lambda: target.copy_(source))


def _host_copy(torch: Any) -> Step:
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    back = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def both() -> None:
        device.copy_(host, non_blocking=True)
        back.copy_(device, non_blocking=True)

    return _repeated(torch, both)


def _tiny(torch: Any) -> Callable[[], object]:
    x = torch.zeros(1, device="cuda")
    return lambda: x.add_(1)


def _memory_bound(torch: Any) -> Step:
    size = _room(torch, 3) // 4
    a, b, c = (torch.ones(size, device="cuda") for _ in range(3))
    return _repeated(torch, lambda: torch.add(a, b, out=c))


def _training(torch: Any) -> Step:
    width = 4096
    layers = [torch.nn.Linear(width, width) for _ in range(8)]
    model = torch.nn.Sequential(
        *(part for layer in layers for part in (layer, torch.nn.GELU()))
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4096, width, device="cuda")

    def train() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def step() -> int:
        time.sleep(0.4)  # the loader is late
        until = time.perf_counter() + 0.4
        count = 0
        while time.perf_counter() < until:
            train()
            torch.cuda.synchronize()
            count += 1
        return count

    return step


def _matmul(torch: Any, kind: Any, size: int = 8192) -> Callable[[], object]:
    left, right = (torch.randn(size, size, device="cuda").to(kind) for _ in range(2))

    def product() -> object:
        torch.backends.cuda.matmul.allow_tf32 = False
        return torch.matmul(left, right)

    return product


def _copy(torch: Any) -> Callable[[], object]:
    """By a kernel: copies of bytes would be done by the copy engine."""
    source = torch.rand(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return lambda: torch.mul(source, 1.5, out=target)


def _spmv(torch: Any) -> Callable[[], object]:
    """32 non-zeros at random in each of 4 million rows."""
    rows, each = 1 << 22, 32
    begins = torch.arange(0, rows * each + 1, each, device="cuda", dtype=torch.int32)
    columns = torch.randint(0, rows, (rows * each,), device="cuda", dtype=torch.int32)
    matrix = torch.sparse_csr_tensor(
        begins, columns, torch.rand(rows * each, device="cuda"), (rows, rows)
    )
    vector = torch.rand(rows, device="cuda")
    return lambda: matrix @ vector


def _attention(torch: Any) -> Callable[[], object]:
    """softmax(Q K^T) V of 16 sequences of 4096, 16 heads of 128, causal."""
    shape = (16, 16, 4096, 128)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=True)


def kernels(torch: Any) -> dict[str, Callable[[], Callable[[], object]]]:
    """Return {name: what prepares it, and returns what does it once}, without a wait for the
    GPU.
    """
    return {
        "fp64-vector": lambda: _fp64_vector(torch),
        "gemm-fp64": lambda: _matmul(torch, torch.float64, 4096),
        "gemm-fp32": lambda: _matmul(torch, torch.float32),
        "gemm-bf16": lambda: _matmul(torch, torch.bfloat16),
        "gemm-bf16-1024": lambda: _matmul(torch, torch.bfloat16, 1024),
        "copy": lambda: _copy(torch),
        "spmv": lambda: _spmv(torch),
        "attention-forward": lambda: _attention(torch),
        "tiny-kernels": lambda: _tiny(torch),
    }


# {workload with kernels to compare: the label whose typical reading a rehearsal shows}
KERNELS: Mapping[str, str] = MappingProxyType(
    {
        "fp64-vector": "fp64-vector",
        "gemm-fp64": "fp64",
        "gemm-fp32": "fp32",
        "gemm-bf16": "bf16",
        "gemm-bf16-1024": "bf16",
        "copy": "memory-bound",
        "spmv": "memory-bound",
        "attention-forward": "bf16",
        "tiny-kernels": "tiny-kernels",
    }
)


def _rest() -> int:
    time.sleep(0.05)
    return 0


def _prepared(name: str) -> tuple[Step, Callable[[], object]]:
    """The step of a workload, and what waits for the GPU."""
    if name == "idle":
        return _rest, lambda: None
    torch = load_torch()
    made: dict[str, Callable[[], Step]] = {
        "fp64": lambda: _product(torch, torch.float64),
        "fp32": lambda: _product(torch, torch.float32),
        "fp16": lambda: _product(torch, torch.float16),
        "bf16": lambda: _product(torch, torch.bfloat16),
        "device-copy": lambda: _device_copy(torch),
        "host-copy": lambda: _host_copy(torch),
        "memory-bound": lambda: _memory_bound(torch),
        "training-stalls": lambda: _training(torch),
        "hang": lambda: _product(torch, torch.float16),
    }
    if name in made:
        return made[name](), torch.cuda.synchronize
    return _repeated(torch, kernels(torch)[name]()), torch.cuda.synchronize


def main() -> int:
    """Do each for a while, and write down how much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=sorted({*BY_NAME, *KERNELS}), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--result", required=True)
    parser.add_argument("--steps", help="a file that gets the time of each step")
    parser.add_argument(
        "--rehearse", action="store_true", help="pretend, through the library of the tests"
    )
    arguments = parser.parse_args()
    file = Path(arguments.result)
    reported: list[dict[str, object]] = []
    for name in arguments.names:
        step, wait = (_pretended if arguments.rehearse else _prepared)(name)
        if arguments.steps:
            step = noted(step, Path(arguments.steps))
        done = work(name, step, wait, seconds=arguments.seconds, warm_s=WARM_S)
        reported.append({"name": name, **done})
        new = file.with_suffix(".new")
        content = done if len(arguments.names) == 1 else reported
        new.write_text(json.dumps(content), encoding="utf-8")
        new.replace(file)
        del step, wait  # the arrays of the next one need the room
    return 0


def _pretended(name: str) -> tuple[Step, Callable[[], object]]:
    from proof_rehearsal import pretended

    return pretended(KERNELS.get(name, name)), lambda: None


def noted(step: Step, file: Path) -> Step:
    """Return the step, which adds a line to the file at its end: when, and units so far."""
    lines, units = file.open("w", encoding="utf-8", buffering=1), 0

    def once() -> int:
        nonlocal units
        done = step()
        units += done
        lines.write(f"{time.time():.6f} {units}\n")
        return done

    return once


def work(
    name: str, step: Step, wait: Callable[[], object], *, seconds: float, warm_s: float
) -> dict[str, object]:
    """Step for so many seconds after warming up. `hang` does so for a third of them, and sleeps."""
    until = time.monotonic() + warm_s
    while time.monotonic() < until:
        step()
    wait()
    begin, start, units = time.time(), time.monotonic(), 0
    busy = seconds / 3 if name == "hang" else seconds
    while time.monotonic() - start < busy:
        units += step()
    wait()
    took = time.monotonic() - start
    if name == "hang":
        if "FAKE_NVML_STATE" in os.environ:
            from proof_rehearsal import rest

            rest()
        time.sleep(max(0.0, seconds - took))
    return {
        "begin": begin,
        "end": time.time(),
        "units": units,
        "rate": units / took if units else None,
    }


if __name__ == "__main__":
    raise SystemExit(main())
