"""Placement: on which node and which GPUs. One small file per policy; `registry` finds them."""
