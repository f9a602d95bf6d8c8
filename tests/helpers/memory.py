"""Peak memory of a call, from the allocator's own record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_bytes(function: Callable[[], Any]) -> int:
    """The largest sum of what torch's CPU allocator had given out since the call began."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events, "the profiler recorded no allocation"
    current = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak
