"""Which samples come next: exactly resumable, whatever the number of ranks.

All samples of all epochs are one long line: epoch after epoch, each in an order that follows from
seed and epoch alone. A step takes the next `global_batch` of it, and each rank its part of those.
So the place in the line is all there is to remember, and it means the same at any width.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from wattherd_train.batches import share

FORMAT = "wattherd.sampler/1"


class ResumableSampler:
    """Indices of this rank's part of each step; a `batch_sampler` for PyTorch's DataLoader.

    Iterating gives the steps that begin in the present epoch. A loader reads ahead of training, so
    only `commit`, after each optimiser step, moves the place that `state_dict` tells.

    `last` says what becomes of the end of an epoch that does not fill a step:

    * `wrap`: the step is filled from the next epoch, so that every step has the global batch
      exactly; only the very last step of all `epochs` has what is left;
    * `short`: the last step of each epoch has what is left;
    * `drop`: these samples are left out, others in each epoch.

    Where a step has fewer samples than there are ranks, some get an empty list.
    """

    def __init__(
        self,
        length: int,
        global_batch: int,
        *,
        seed: int = 0,
        rank: int = 0,
        size: int = 1,
        epochs: int | None = None,
        last: str = "wrap",
        shuffle: bool = True,
    ) -> None:
        """`length` is of the data set; after `epochs` of them, if given, nothing more comes.

        Raises:
            ValueError: numbers that leave a rank or a step without samples.
        """
        if not 0 <= rank < size <= global_batch or length < 1:
            raise ValueError(
                f"needs 0 <= rank < size <= global batch and samples, not rank {rank} of {size}, "
                f"global batch {global_batch}, {length} samples"
            )
        if last not in ("wrap", "short", "drop") or (last == "drop" and length < global_batch):
            raise ValueError(f"cannot train on {length} samples with last={last!r}")
        self.length, self.global_batch, self.seed = length, global_batch, seed
        self._rank, self._size = rank, size
        self._epochs, self._last, self._shuffle = epochs, last, shuffle
        self._place = 0
        self._order: tuple[int, list[int]] = (-1, [])

    @property
    def epoch(self) -> int:
        """The epoch that the next step to be committed begins in, from 0."""
        return self._begin(self._place) // self.length

    @property
    def samples(self) -> int:
        """How far along the line training is."""
        return self._place

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's indices of each step from the committed place to the end of its epoch."""
        begin, epoch = self._begin(self._place), self.epoch
        while begin // self.length == epoch and not self._over(begin):
            end = self._end(begin)
            first, after = share(end - begin, self._rank, self._size)
            yield [self._sample(begin + i) for i in range(first, after)]
            begin = self._begin(end)

    def __len__(self) -> int:
        """Steps of the whole present epoch, those before a resumption too."""
        trained = self._begin(self._place) % self.length // self.global_batch
        return trained + self.left

    @property
    def left(self) -> int:
        """Steps that begin in what is left of the present epoch."""
        begin = self._begin(self._place)
        if self._over(begin):
            return 0
        left = self.length - begin % self.length
        return left // self.global_batch if self._last == "drop" else -(-left // self.global_batch)

    def commit(self, steps: int = 1) -> None:
        """So many more steps have been trained on."""
        for _ in range(steps):
            begin = self._begin(self._place)
            if not self._over(begin):
                self._place = self._end(begin)

    def _begin(self, place: int) -> int:
        """Where a step from `place` on begins: there, unless the rest of the epoch is dropped."""
        left = self.length - place % self.length
        return place + left if self._last == "drop" and left < self.global_batch else place

    def _end(self, begin: int) -> int:
        """Where the step that begins at `begin` ends."""
        end = begin + self.global_batch
        if self._last == "short":
            return min(end, (begin // self.length + 1) * self.length)
        return end if self._epochs is None else min(end, self._epochs * self.length)

    def _over(self, begin: int) -> bool:
        """Whether no step begins here because all epochs are over."""
        return self._epochs is not None and begin >= self._epochs * self.length

    def _sample(self, place: int) -> int:
        epoch, offset = divmod(place, self.length)
        if not self._shuffle:
            return offset
        if self._order[0] != epoch:
            order = list(range(self.length))
            random.Random(f"{self.seed}/{epoch}").shuffle(order)  # noqa: S311 - not for secrets
            self._order = (epoch, order)
        return self._order[1][offset]

    def state_dict(self) -> dict[str, Any]:
        """The committed place; good for any number of ranks and any global batch."""
        return {
            "format": FORMAT,
            "length": self.length,
            "seed": self.seed,
            "shuffle": self._shuffle,
            "place": self._place,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another has stopped.

        Raises:
            ValueError: that was on other data, or in another order.
        """
        own = self.state_dict()
        wrong = [name for name in own if name != "place" and state.get(name) != own[name]]
        if wrong or not isinstance(state.get("place"), int) or state["place"] < 0:
            raise ValueError(f"this place is of another line: {', '.join(wrong) or 'place'} differ")
        self._place = state["place"]
