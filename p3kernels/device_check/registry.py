"""The steps, in their order, with what they do."""

from __future__ import annotations

from p3kernels.device_check import outline
from p3kernels.device_check.step import Step
from p3kernels.device_check.steps import environment, kernels, sanitizer, timings, tuning
from p3kernels.device_check.steps.runtime import runtime_of
from p3kernels.device_check.steps.values import values_of

_CASES = {
    "environment": environment.cases,
    "values-triton": values_of("triton"),
    "values-cuda": values_of("cuda"),
    "runtime-triton": runtime_of("triton"),
    "runtime-cuda": runtime_of("cuda"),
    "kernels": kernels.cases,
    "timings": timings.cases,
    "sanitizer": sanitizer.cases,
    "tuning": tuning.cases,
}
STEPS = tuple(Step(name, says, seconds, _CASES[name]) for name, (says, seconds) in outline.STEPS.items())
