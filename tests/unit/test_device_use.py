"""How busy devices are, where nobody can tell, or one of several can."""

from __future__ import annotations

from wattherd.errors import ClusterError
from wattherd.local.devices import Device
from wattherd.server.hardware.device_use import NOT_KNOWN, DeviceUse, GpuUse
from wattherd.server.web.cluster import summed, use_text

GIB = 1 << 30


class _Reader:
    def __init__(self, *answers: GpuUse | ClusterError) -> None:
        self.answers, self.asked = list(answers), 0

    def read(self) -> GpuUse:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    def close(self) -> None:
        self.asked = -1


def test_slots_of_a_processor_tell_nothing() -> None:
    use = DeviceUse([Device(model="CPU")] * 2)
    assert use() == (NOT_KNOWN, NOT_KNOWN)
    use.close()


def test_a_library_is_asked_once_a_second_and_its_silence_is_not_the_last_word() -> None:
    now_s = 10.0
    reader = _Reader(GpuUse(busy=0.5), ClusterError("gone"), GpuUse(busy=0.7))
    use = DeviceUse([Device(model="CPU")] * 2, lambda: now_s)
    use._readers[0] = reader
    assert use() == use() == (GpuUse(busy=0.5), NOT_KNOWN)
    now_s = 11.0
    assert use() == (NOT_KNOWN, NOT_KNOWN)  # what it said before is no news
    now_s = 12.0
    assert use()[0] == GpuUse(busy=0.7)
    assert reader.asked == 3


def test_sums_are_of_those_that_tell() -> None:
    told = [
        GpuUse(busy=0.5, memory_used_bytes=GIB, memory_bytes=4 * GIB),
        GpuUse(memory_used_bytes=GIB, memory_bytes=4 * GIB),
        NOT_KNOWN,
    ]
    assert summed(told) == GpuUse(busy=0.5, memory_used_bytes=2 * GIB, memory_bytes=8 * GIB)
    assert summed([]) == NOT_KNOWN
    assert use_text(told[0]) == "50% busy, 1.1 GB of 4.3 GB memory"
    assert use_text(GpuUse(busy=0.5)) == "50% busy"
    assert use_text(told[1]).startswith("– busy")
