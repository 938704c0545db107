"""Pools of nodes: which to switch on and off (`decider`), and carrying that out (`live`).

`booking` tries where waiting pods would go; `growth` is for pools that others scale: what they may
grow to within the watts, in the words of Karpenter and of the Cluster Autoscaler.
"""
