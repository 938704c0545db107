"""The judge of loss curves that is there before any job of a site has ended.

It was taught by 400 generated trainings, half of them predictable, looked at while they ran
(`workload.ps_profile.judge_of_the_past` on `PsMix()`, seed 1000): the judge that simulations of
AITurbo use. A prior, then: nothing here was learned from the jobs of a site.
`tests/unit/test_general_judge.py` teaches it anew.
"""

from __future__ import annotations

from wattherd.estimate.curve_judge import CurveJudge

GENERAL_JUDGE = CurveJudge(
    weights=(-3.1290781776, -2.4071443800, 0.3656114531, 1.6864195819, -4.6761140751),
    means=(-2.9476902577, 1.2800193549, 3.9216116806, 0.7562761506),
    scales=(1.1969159827, 1.3360378196, 0.4011969774, 0.4293280035),
)
"""Weights of log error, log forecast drift, log count of points, any end at all; the bias last."""
