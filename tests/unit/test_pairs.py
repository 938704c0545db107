"""Measured pairs: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.workload.pairs import SoloUse, read_alone, read_packed

SINGLE = "model,dataset,batchsize,amp,speed,gpu_util,gmem,label\n"
PAIRS = "model1,dataset1,batchsize1,amp1,speed1,model2,dataset2,batchsize2,amp2,speed2,gpu_util\n"


def test_single_jobs_by_profile(tmp_path: Path) -> None:
    path = tmp_path / "single.csv"
    path.write_text(f"{SINGLE}BERT,SQuAD,32,1,119.9,99.5,16334.2,2\n")
    assert read_alone(path) == {
        "BERT SQuAD 32 mixed": SoloUse(utilisation=0.995, memory_mib=16_335)
    }


def test_pairs_by_both_profiles(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(f"{PAIRS}A,x,32,0,0.9,B,y,64,1,0.7,80\n")
    packed = read_packed(path)
    pair = ("A x 32", "B y 64 mixed")
    assert packed.speeds.speeds == {pair: (0.9, 0.7)}
    assert packed.utilisation == {pair: 0.8}


@pytest.mark.parametrize(
    ("line", "field"),
    [("A,x,1,0,1,101,5,0", "gpu_util"), ("A,x,1,0,1,9,-1,0", "gmem"), ("A,x,1,0,1,9,nan,0", "gmem"),
     ("A,x,1,0,1,many,1,0", "gpu_util")],
)  # fmt: skip
def test_what_is_no_measurement_is_refused(tmp_path: Path, line: str, field: str) -> None:
    path = tmp_path / "single.csv"
    path.write_text(f"{SINGLE}{line}\n")
    with pytest.raises(UserError) as refused:
        read_alone(path)
    assert refused.value.where == f"{path}:2"
    assert refused.value.field == field


@pytest.mark.data
def test_public_measurements_are_what_their_authors_say(traces: Path) -> None:
    alone = read_alone(traces / "lucid" / "single_data.csv")
    packed = read_packed(traces / "lucid" / "colocate_info.csv")
    assert (len(alone), len(packed.speeds.speeds)) == (66, 1388)
    assert {name for pair in packed.utilisation for name in pair} <= set(alone)
