"""What of the cluster is taken: devices planned and held, nodes asleep, devices drained."""
