"""What wattherd and a job agree on: names in the environment, files, one exit code.

The same is written down for other languages in `protocol.schema.json` beside this module. Nothing
else is shared with the scheduler.
"""

from __future__ import annotations

JOB_ID = "WATTHERD_JOB_ID"
ATTEMPT = "WATTHERD_ATTEMPT"
DEVICES = "WATTHERD_DEVICES"
RUN_DIR = "WATTHERD_RUN_DIR"
CHECKPOINT_DIR = "WATTHERD_CHECKPOINT_DIR"
CHECKPOINT_PHASE = "WATTHERD_CHECKPOINT_PHASE"
"""Where in each period this job is to save, 0 to 1: jobs that save together make a site swing."""
CONTROL = "WATTHERD_CONTROL"
PROGRESS = "WATTHERD_PROGRESS"
NOTICE = "WATTHERD_NOTICE"
"""On Kubernetes: the file in which the pod finds its annotation `wattherd.dev/stop-at`."""
POD_NAME = "WATTHERD_POD_NAME"
"""On Kubernetes: the pod that is to be told how far it is, its own."""

CHECKPOINTED = "checkpointed"
"""File of the run directory: the run has ended early because it was asked to, its state saved."""
STOP_AT = "stop-at"
"""File of the run directory in which ranks agree on the step at which all of them stop."""
EXIT_CHECKPOINTED = 143
"""Exit code of a run that is to be queued again: 128 + SIGTERM."""
