"""The tables of docs/concepts/power-prediction.md: `python benchmarks/power_prediction.py`.

`--seed 1 9 11` makes those of the ninth and eleventh command only, with one seed.

Reads the measurements under WATTHERD_DATA (power/zeus_nsdi23, power/hkbu_gpu_dvfs,
power/dlbench_dvfs_caffe, power/emerald_phoenix_2025); some twenty minutes on two cores. The 15th
command also wants Zeus' summary_power_rtx6000.csv, and is left out where that is not there.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from wattherd.cli.main import main

DATA = Path(os.environ.get("WATTHERD_DATA", "../shared/data")) / "power"
FIT = (
    "fit {zeus}/summary_power_v100.csv {zeus}/summary_power_a40.csv {zeus}/summary_power_p100.csv"
    " --format zeus --train {zeus}/summary_train.csv"
)
COMMANDS = (
    "learn {zeus}/summary_power_v100.csv --format zeus --seed 1..6 --shares 0.6,0.7,0.8,0.9",
    "learn {zeus}/summary_power_v100.csv --format zeus --seed 1..6 --shares 0.3,0.4,0.5 --pause",
    "learn {zeus}/summary_power_a40.csv --format zeus --seed 1..6 --shares 0.6,0.7,0.8,0.9",
    "learn {zeus}/summary_power_a40.csv --format zeus --seed 1..6 --shares 0.3,0.4,0.5 --pause",
    "learn {zeus}/summary_power_p100.csv --format zeus --seed 1..6 --shares 0.5,0.6,0.7 --pause",
    "learn {zeus}/summary_power_p100.csv --format zeus --seed 1..6 --shares 0.8,0.9",
    "learn {emerald}/dvfs_sweep.csv --format emerald --seed 1..6 --shares 0.3,0.4,0.5 --pause",
    "learn {emerald}/dvfs_sweep.csv --format emerald --seed 1..6 --shares 0.5,0.6,0.75,0.9",
    "learn {zeus}/summary_power_a40.csv --format zeus --seed 1..6 --shares 0.6 --meter-noise 0",
    FIT,
    "surface {zeus}/summary_power_v100.csv --train {zeus}/summary_train.csv",
    "surface {zeus}/summary_power_a40.csv --train {zeus}/summary_train.csv",
    "fit {hkbu}/v100-dvfs-real-trimmed.csv {hkbu}/rtx8000-dvfs-real-trimmed.csv --format hkbu",
    (
        "fit TITANX={dlbench}/titanX-caffe-googlenet.csv TITANX={dlbench}/titanX-caffe-resnet.csv"
        " TITANX={dlbench}/titanX-vgg-logs-v2.csv GTX1080TI={dlbench}/gtx1080Ti-googlenet.csv"
        " GTX980={dlbench}/gtx980-resnet.csv --format dlbench"
    ),
    FIT.replace(" --format", " {zeus}/summary_power_rtx6000.csv --format"),
    (
        "fit {hkbu}/v100-dvfs-real-trimmed.csv {hkbu}/rtx8000-dvfs-real-trimmed.csv"
        " {hkbu}/gtx1080ti-dvfs-real-Performance-Power.csv"
        " {hkbu}/gtx2070s-dvfs-real-Performance-Power.csv --format hkbu"
    ),
    (
        "fit {zeus}/summary_power_v100.csv {zeus}/summary_power_a40.csv"
        " {zeus}/summary_power_p100.csv {hkbu}/v100-dvfs-real-trimmed.csv"
        " {hkbu}/rtx8000-dvfs-real-trimmed.csv {hkbu}/gtx1080ti-dvfs-real-Performance-Power.csv"
        " {hkbu}/gtx2070s-dvfs-real-Performance-Power.csv"
        " TITANX={dlbench}/titanX-caffe-googlenet.csv TITANX={dlbench}/titanX-caffe-resnet.csv"
        " TITANX={dlbench}/titanX-vgg-logs-v2.csv GTX1080TI={dlbench}/gtx1080Ti-googlenet.csv"
        " GTX980={dlbench}/gtx980-resnet.csv {emerald}/dvfs_sweep.csv"
        " --format auto --held-out gpu"
    ),
)


def run() -> None:
    """Print every command and what it says; a failing one ends the benchmark."""
    if not DATA.is_dir():
        sys.exit(f"no measurements in {DATA}; set WATTHERD_DATA")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("number", nargs="*", type=int, help="of a command; all if none")
    parser.add_argument("--seed", default="1..6")
    asked = parser.parse_args()
    numbers = asked.number or range(1, len(COMMANDS) + 1)
    for text in (COMMANDS[number - 1] for number in numbers):
        command = text.replace("--seed 1..6", f"--seed {asked.seed}")
        folders = {
            "zeus": DATA / "zeus_nsdi23",
            "hkbu": DATA / "hkbu_gpu_dvfs",
            "dlbench": DATA / "dlbench_dvfs_caffe",
            "emerald": DATA / "emerald_phoenix_2025",
        }
        print(f"\n$ wattherd power {command}", flush=True)
        if "rtx6000" in command and not (folders["zeus"] / "summary_power_rtx6000.csv").is_file():
            print(f"left out: no summary_power_rtx6000.csv in {folders['zeus']}")
            continue
        try:
            main(["power", *shlex.split(command.format(**folders))])
        except SystemExit as done:
            if done.code:
                raise


if __name__ == "__main__":
    run()
