"""How to reach instruments: addresses, secrets, time limits, libraries; neither meter nor knob."""
