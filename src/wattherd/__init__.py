"""wattherd: schedule deep-learning training on heterogeneous GPUs under a power budget."""

__version__ = "0.1.0"
