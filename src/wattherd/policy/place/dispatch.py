"""One compiled entry to every built-in scorer, chosen by number inside the kernel.

Numba caches machine code per function; a plain chain of branches keeps the whole decision in one
cached function, where a table of function pointers would not be cached.
"""

from __future__ import annotations

from wattherd.jit import kernel
from wattherd.policy.place.best_fit import best_fit_score
from wattherd.policy.place.dot_product import dot_product
from wattherd.policy.place.fgd import fgd
from wattherd.policy.place.first_fit import first_fit
from wattherd.policy.place.gpu_clustering import gpu_clustering
from wattherd.policy.place.gpu_packing import gpu_packing
from wattherd.policy.place.pwr import pwr
from wattherd.policy.place.pwr_expected import pwr_expected
from wattherd.policy.place.wattherd import wattherd


@kernel
def score_node(kernel_id, world, shape, n, options):  # type: ignore[no-untyped-def]
    """Key and GPU of node `n` for `shape` by the scorer `kernel_id` (its module's KERNEL_ID)."""
    if kernel_id == 1:
        return fgd(world, shape, n, options)
    if kernel_id == 2:
        return pwr(world, shape, n, options)
    if kernel_id == 3:
        return best_fit_score(world, shape, n, options)
    if kernel_id == 4:
        return dot_product(world, shape, n, options)
    if kernel_id == 5:
        return gpu_packing(world, shape, n, options)
    if kernel_id == 6:
        return gpu_clustering(world, shape, n, options)
    if kernel_id == 7:
        return pwr_expected(world, shape, n, options)
    if kernel_id == 8:
        return wattherd(world, shape, n, options)
    return first_fit(world, shape, n, options)
