from wattherd.errors import UserError as UserError
from wattherd.library.client import Client as Client
from wattherd.library.placement import Packing as Packing
from wattherd.library.placement import pack as pack
from wattherd.library.power import ChosenCaps as ChosenCaps
from wattherd.library.power import PredictedDraw as PredictedDraw
from wattherd.library.power import allocate as allocate
from wattherd.library.power import predict as predict
from wattherd.library.simulation import Comparison as Comparison
from wattherd.library.simulation import Simulation as Simulation
from wattherd.library.simulation import compare as compare
from wattherd.library.simulation import run_schedulers as simulate
from wattherd.library.sweep import SweptRuns as SweptRuns
from wattherd.library.sweep import sweep as sweep
from wattherd.library.table import Table as Table

__version__: str
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
