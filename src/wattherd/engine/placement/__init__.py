"""Which node and which GPUs: score tables over the state of a cluster."""
