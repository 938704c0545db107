"""`wattherd power hold`: the safety loop on meters and knobs, as a process of its own."""
