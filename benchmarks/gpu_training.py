"""Trainings that `gpu_power.py` measures: a transformer and a convolutional network, in bf16.

As a program this is a job of wattherd: it trains the transformer by the training library
(`wattherd_train`), one micro-batch after the other for some seconds each, and writes beside the
service's word its own: steps by CUDA events, watts by the energy counter of NVML.

    python benchmarks/gpu_training.py --global-batch 64 --micro 64,16 --seconds 14 --log own.json

`--model sleep` needs neither PyTorch nor a GPU, and only passes time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS = 50304, 512, 768, 12, 12
LARGEST = 64
"""Sequences at once."""
PIXELS, CLASSES, LARGEST_IMAGES = 224, 1000, 512


class Sleep:
    """No training: it takes time as one would."""

    name, unit = "sleep", "samples"

    def step(self, micro: int, accumulation: int) -> None:
        """One step of the optimiser."""
        self.split([micro] * accumulation)

    def split(self, sizes: list[int]) -> None:
        """One step by these micro-batches."""
        time.sleep(sum(0.002 + 0.0005 * size for size in sizes))

    def state(self) -> Any:
        return {"weights": [0.0] * 100_000}

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.state()))
        time.sleep(0.3)


class Training:
    """A network, its optimiser, and samples that lie on the GPU."""

    def __init__(self, name: str) -> None:
        import torch

        self.torch, self.name = torch, name
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        make = {"gpt2-small": _gpt, "resnet18": _resnet}[name]
        self.unit = {"gpt2-small": "sequences", "resnet18": "images"}[name]
        self.model, self.x, self.y = make(torch)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self, micro: int, accumulation: int) -> None:
        """One step of the optimiser; it is over when this returns."""
        self.split([micro] * accumulation)

    def split(self, sizes: list[int]) -> None:
        """One step by these micro-batches."""
        torch, total = self.torch, sum(sizes)
        for size in sizes:
            with torch.autocast("cuda", torch.bfloat16):
                loss = self.model(self.x[:size], self.y[:size])
            (loss * (size / total)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    def save(self, path: Path) -> None:
        """A whole checkpoint, on disk."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.torch.save(state, path)


def training_of(name: str) -> Training | Sleep:
    """By its name: gpt2-small, resnet18 or sleep."""
    return Sleep() if name == "sleep" else Training(name)


def _gpt(torch: Any) -> tuple[Any, Any, Any]:
    """GPT-2 small's shape (124 M parameters), sequences of 512 tokens."""
    from torch import nn

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            nn.init.normal_(self.token.weight, std=0.02)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True,
                    norm_first=True,
                )
                for _ in range(LAYERS)
            )  # fmt: skip
            self.norm = nn.LayerNorm(WIDTH)
            mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, tokens: Any, wanted: Any) -> Any:
            x = self.token(tokens) + self.place.weight
            for block in self.blocks:
                x = block(x, src_mask=self.mask, is_causal=True)
            scores = self.norm(x) @ self.token.weight.T
            return nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())

    tokens = torch.randint(VOCABULARY, (LARGEST, CONTEXT + 1), device="cuda")
    return Gpt().cuda(), tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _resnet(torch: Any) -> tuple[Any, Any, Any]:
    """ResNet-18's shape (11.7 M parameters), images of 224 x 224, channels last."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
                nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, 1, 1, bias=False),
                nn.BatchNorm2d(width),
            )  # fmt: skip
            self.aside = nn.Identity() if (before, stride) == (width, 1) else nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return (self.body(x) + self.aside(x)).relu()

    class Resnet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64),
                      nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]  # fmt: skip
            before = 64
            for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
                layers += [Block(before, width, stride), Block(width, width, 1)]
                before = width
            self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                      nn.Linear(before, CLASSES))  # fmt: skip

        def forward(self, x: Any, y: Any) -> Any:
            return nn.functional.cross_entropy(self.body(x), y)

    images = torch.randn(LARGEST_IMAGES, 3, PIXELS, PIXELS, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(CLASSES, (LARGEST_IMAGES,), device="cuda")
    last = torch.channels_last
    return Resnet().cuda().to(memory_format=last), images.to(memory_format=last), labels


@contextlib.contextmanager
def counted(*, on_gpu: bool) -> Iterator[Callable[[], float]]:
    """Seconds since the beginning by CUDA events, by the clock where there is no GPU."""
    if not on_gpu:
        began_s = time.perf_counter()
        yield lambda: time.perf_counter() - began_s
        return
    import torch

    begin = torch.cuda.Event(enable_timing=True)
    begin.record()

    def passed_s() -> float:
        now = torch.cuda.Event(enable_timing=True)
        now.record()
        now.synchronize()
        return float(begin.elapsed_time(now)) * 1e-3

    yield passed_s


class EnergyCounter:
    """Joules since the driver was loaded by NVML; None where it does not tell."""

    def __init__(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self._ask: Callable[[], float] | None = lambda: (
                pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-3
            )
            self._ask()
        except Exception:  # noqa: BLE001 - without one the rest is measured all the same
            self._ask = None

    def joules(self) -> float | None:
        return None if self._ask is None else self._ask()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt2-small")
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--micro", default="64,16,4,1")
    parser.add_argument("--seconds", type=float, default=14.0, help="for each micro-batch")
    parser.add_argument("--tail", type=float, default=0.0, help="then go on with the first one")
    parser.add_argument("--log", type=Path, required=True)
    asked = parser.parse_args()

    import wattherd_train

    work, counter, rows = training_of(asked.model), EnergyCounter(), []
    sizes = [int(one) for one in asked.micro.split(",")]
    spans = [*((size, asked.seconds, "phase") for size in sizes)]
    spans += [(sizes[0], 1.0, "tail")] * round(asked.tail)
    step, before = 0, None
    with wattherd_train.current() as job:
        for most, seconds, kind in spans:
            if before != most:
                plan = job.batches(asked.global_batch, most)
                before = most
            with counted(on_gpu=asked.model != "sleep") as passed_s:
                from_s, from_j, first = time.time(), counter.joules(), step
                sizes_seen = set()
                while passed_s() < seconds and not job.should_stop:
                    parts = [part.size for part in plan.split(range(asked.global_batch))]
                    sizes_seen.add(parts[0])
                    work.split(parts)
                    step += 1
                    job.step(step, samples=asked.global_batch)
                gpu_s, until_s, until_j = passed_s(), time.time(), counter.joules()
            rows.append({
                "kind": kind, "most": most, "micro": sorted(sizes_seen), "from_s": from_s,
                "until_s": until_s, "gpu_s": gpu_s, "steps": step - first,
                "energy_j": None if until_j is None or from_j is None else until_j - from_j,
            })  # fmt: skip
            asked.log.write_text(json.dumps(rows, indent=1))
            if job.should_stop:
                break


if __name__ == "__main__":
    main()
