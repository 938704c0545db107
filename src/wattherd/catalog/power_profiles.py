"""Measured power profiles: what training jobs draw per GPU, and how fast they are at that.

Points are (average watts, rate relative to the highest cap measured), one per power cap, ascending.
Zeus (NSDI'23, trace published with it): V100, caps 100 to 250 W in steps of 25, time per epoch of
single runs. Emerald's demonstration of 2025 (dvfs_sweep): A100, caps 100 and 200 to 400 W in steps
of 50, whole jobs on several GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

Points = tuple[tuple[float, float], ...]

_RESNET50: Points = (
    (98.4, 0.518), (122.0, 0.694), (144.6, 0.847), (166.4, 0.912), (184.9, 0.950),
    (205.4, 0.981), (220.3, 1.0),
)  # fmt: skip
_BERT_SQUAD: Points = (
    (99.5, 0.484), (121.8, 0.634), (146.4, 0.780), (170.6, 0.894), (191.2, 0.940),
    (212.6, 0.976), (228.2, 1.0),
)  # fmt: skip
_BERT_SENTIMENT: Points = (
    (100.1, 0.533), (123.3, 0.695), (146.7, 0.833), (169.2, 0.889), (189.5, 0.928),
    (206.3, 0.978), (223.4, 1.0),
)  # fmt: skip
_DEEPSPEECH2: Points = (
    (95.2, 0.691), (110.0, 0.821), (125.9, 0.882), (139.8, 0.925), (156.1, 0.952),
    (177.5, 0.989), (191.1, 1.0),
)  # fmt: skip
_SHUFFLENET: Points = (
    (86.9, 0.675), (109.3, 0.826), (131.0, 0.896), (137.9, 0.927), (159.2, 0.971),
    (178.4, 0.993), (187.7, 1.0),
)  # fmt: skip
_LLAMA_8B: Points = (
    (99.9, 0.241), (196.1, 0.807), (244.1, 0.904), (288.3, 0.951), (320.6, 0.980), (345.6, 1.0),
)  # fmt: skip
_MPT_7B: Points = (
    (100.0, 0.175), (198.4, 0.626), (247.5, 0.787), (295.7, 0.874), (343.3, 0.935), (387.8, 1.0),
)  # fmt: skip
_MPT_13B: Points = (
    (101.7, 0.191), (196.2, 0.624), (244.7, 0.781), (291.1, 0.860), (337.1, 0.921), (381.7, 1.0),
)  # fmt: skip

MEASURED: Mapping[str, Mapping[str, Points]] = {
    "resnet50": {"V100M16": _RESNET50, "V100M32": _RESNET50},
    "bert-squad": {"V100M16": _BERT_SQUAD, "V100M32": _BERT_SQUAD},
    "bert-sentiment": {"V100M16": _BERT_SENTIMENT, "V100M32": _BERT_SENTIMENT},
    "deepspeech2": {"V100M16": _DEEPSPEECH2, "V100M32": _DEEPSPEECH2},
    "shufflenet": {"V100M16": _SHUFFLENET, "V100M32": _SHUFFLENET},
    "llama-8b": {"A100": _LLAMA_8B, "A100-80GB": _LLAMA_8B},
    "mpt-7b": {"A100": _MPT_7B, "A100-80GB": _MPT_7B},
    "mpt-13b": {"A100": _MPT_13B, "A100-80GB": _MPT_13B},
}
"""Profile and GPU model to its points; batch sizes 256, 32, 128, 64 and 1024 on V100."""
