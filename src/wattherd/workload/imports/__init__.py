"""Logs of other systems (Slurm, SWF, Kubernetes, public traces) read as scenarios.

`site` says what an import makes of a log; the other files read one kind of log each.
"""
