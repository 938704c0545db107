"""The reduction over ranks by PyTorch, if it is in use; imported only then."""

from __future__ import annotations

import sys


def any_rank(wanted: bool) -> bool:  # noqa: FBT001 - the signature of a reduction
    """Whether any rank of the default process group wants it; alone, what this one wants.

    Costs one all-reduce of a single number. All ranks must call it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return wanted
    distributed = torch.distributed
    if not distributed.is_initialized():
        return wanted
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    flag = torch.tensor(int(wanted), device=device)
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    return bool(flag.item())
