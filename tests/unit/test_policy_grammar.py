"""How placement policies are spelt, and what is said of other spellings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattherd.errors import UserError
from wattherd.policy.place.registry import BUILT_IN, parse_policy

# --- the grammar -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("fgd", [("fgd", 1000, [100.0, 0.0])]),
        ("fgd@scale=1000", [("fgd", 1000, [1000.0, 0.0])]),
        ("fgd@scale=1e3@quantum=0.5", [("fgd", 1000, [1000.0, 0.5])]),
        ("fgd@exact", [("fgd", 1000, [100.0, 1e-6])]),
        ("fgd@exact@quantum=0", [("fgd", 1000, [100.0, 0.0])]),
        ("dot-product@divide@norm-pod", [("dot-product", 1000, [2.0, 2.0])]),
        ("dot-product@norm-node", [("dot-product", 1000, [0.0, 1.0])]),
        ("pwr+fgd", [("pwr", 500, []), ("fgd", 500, [100.0, 0.0])]),
        ("pwr+fgd:0.1", [("pwr", 100, []), ("fgd", 900, [100.0, 0.0])]),
        ("pwr+fgd:0.025", [("pwr", 25, []), ("fgd", 975, [100.0, 0.0])]),
        ("pwr+fgd@exact:.999", [("pwr", 999, []), ("fgd", 1, [100.0, 1e-6])]),
        ("pwr+best-fit+fgd", [("pwr", 333, []), ("best-fit", 333, []), ("fgd", 333, [100.0, 0.0])]),
        (
            "pwr+best-fit+fgd:0.2:0.3",
            [("pwr", 200, []), ("best-fit", 300, []), ("fgd", 500, [100.0, 0.0])],
        ),
    ],
)
def test_good_spellings(text: str, parts: list[tuple[str, int, list[float]]]) -> None:
    policy = parse_policy(text)
    assert policy.name == text
    assert [(p.scorer.name, p.weight, p.options.tolist()) for p in policy.parts] == parts


NUMBERS = "one number between 0 and 1 for each part but the last, as in pwr+fgd:0.1"
KNOWN = ", ".join(sorted(BUILT_IN))
SIZE = "0, or a number between 1e-12 and 1e+12 in size"
BAD = {
    "fdg": "unknown placement policy 'fdg' (hint: did you mean 'fgd'?)",
    "": f"unknown placement policy '' (hint: one of {KNOWN})",
    "FGD": f"unknown placement policy 'FGD' (hint: one of {KNOWN})",
    "pwr+": f"unknown placement policy '' (hint: one of {KNOWN})",
    "pwr+fgdd:0.1": "unknown placement policy 'fgdd' (hint: did you mean 'fgd'?)",
    " fgd": "unknown placement policy ' fgd' (hint: did you mean 'fgd'?)",
    "best-fit@exact": "unknown option 'exact' (hint: best-fit has no options)",
    "fgd@": "unknown option '' (hint: one of exact, raw, scale=NUMBER, quantum=NUMBER)",
    "fgd@fast": "unknown option 'fast' (hint: one of exact, raw, scale=NUMBER, quantum=NUMBER)",
    "fgd@size=3": "unknown option 'size=3' (hint: one of exact, raw, scale=NUMBER, quantum=NUMBER)",
    "fgd@scale": "scale: '' is not a number",
    "fgd@scale=": "scale: '' is not a number",
    "fgd@scale=big": "scale: 'big' is not a number",
    "fgd@scale=1=2": "scale: '1=2' is not a number",
    "fgd@scale=nan": f"scale: 'nan' cannot be used (hint: {SIZE})",
    "fgd@scale=inf": f"scale: 'inf' cannot be used (hint: {SIZE})",
    "fgd@quantum=1e-300": f"quantum: '1e-300' cannot be used (hint: {SIZE})",
    "fgd:": f"weights '' do not fit 1 part(s) (hint: {NUMBERS})",
    "fgd:0.5": f"weights '0.5' do not fit 1 part(s) (hint: {NUMBERS})",
    "pwr+fgd:": f"weights '' do not fit 2 part(s) (hint: {NUMBERS})",
    "pwr+fgd:x": f"weights 'x' do not fit 2 part(s) (hint: {NUMBERS})",
    "pwr+fgd:0": f"weights '0' do not fit 2 part(s) (hint: {NUMBERS})",
    "pwr+fgd:1": f"weights '1' do not fit 2 part(s) (hint: {NUMBERS})",
    "pwr+fgd:-0.1": f"weights '-0.1' do not fit 2 part(s) (hint: {NUMBERS})",
    "pwr+fgd:inf": f"weights 'inf' do not fit 2 part(s) (hint: {NUMBERS})",
    "pwr+fgd:nan": f"weights 'nan' do not fit 2 part(s) (hint: {NUMBERS})",
    "pwr+fgd:0.1:0.2": f"weights '0.1:0.2' do not fit 2 part(s) (hint: {NUMBERS})",
    "pwr+best-fit+fgd:0.5": f"weights '0.5' do not fit 3 part(s) (hint: {NUMBERS})",
    "pwr+best-fit+fgd:0.5:0.5": f"weights '0.5:0.5' do not fit 3 part(s) (hint: {NUMBERS})",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_spellings(text: str) -> None:
    with pytest.raises(UserError) as error:
        parse_policy(text)
    assert error.value.line() == f"policy {text!r}: {BAD[text]}"


def test_what_cannot_be_blended_says_so() -> None:
    loner = replace(BUILT_IN["fgd"], name="loner", blendable=False)
    known = {**BUILT_IN, "loner": loner}
    assert parse_policy("loner@exact", known).parts[0].scorer is loner
    with pytest.raises(UserError) as error:
        parse_policy("pwr+loner:0.5", known)
    assert error.value.line() == "policy 'pwr+loner:0.5': 'loner' cannot be part of a blend"


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_scorer_is_registered_under_its_own_name(name: str) -> None:
    scorer = BUILT_IN[name]
    assert scorer.name == name
    assert scorer.doc
    assert not scorer.doc.endswith(".")
    for word, settings in scorer.tokens.items():
        assert set(settings) <= set(scorer.options), word
