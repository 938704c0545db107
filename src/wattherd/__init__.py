"""wattherd: schedule deep-learning training on heterogeneous GPUs under a power budget.

The names below are the Python API (docs/reference/python.md); everything else may change. They are
loaded when they are first asked for, so that `import wattherd` and the command line stay quick.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "Client": ("client", "Client"),
    "Comparison": ("simulation", "Comparison"),
    "ChosenCaps": ("power", "ChosenCaps"),
    "Packing": ("placement", "Packing"),
    "PredictedDraw": ("power", "PredictedDraw"),
    "Simulation": ("simulation", "Simulation"),
    "SweptRuns": ("sweep", "SweptRuns"),
    "Table": ("table", "Table"),
    "allocate": ("power", "allocate"),
    "compare": ("simulation", "compare"),
    "pack": ("placement", "pack"),
    "predict": ("power", "predict"),
    "simulate": ("simulation", "run_schedulers"),
    "sweep": ("sweep", "sweep"),
}
"""Where each public name is made: a module of `wattherd.library`, and its name there."""

__all__ = [
    "ChosenCaps",
    "Client",
    "Comparison",
    "Packing",
    "PredictedDraw",
    "Simulation",
    "SweptRuns",
    "Table",
    "UserError",
    "__version__",
    "allocate",
    "compare",
    "pack",
    "predict",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> object:
    """A public name, made on first use.

    Raises:
        AttributeError: there is none of that name.
    """
    if name == "UserError":
        return import_module("wattherd.errors").UserError
    if name not in _HOMES:
        raise AttributeError(f"module 'wattherd' has no attribute {name!r}")
    module, known_as = _HOMES[name]
    return getattr(import_module(f"wattherd.library.{module}"), known_as)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
