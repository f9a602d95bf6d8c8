"""The steps, in their order: what is wrong comes before how fast it is."""

from __future__ import annotations

from p3kernels.device_check.step import Step
from p3kernels.device_check.steps import environment, kernels, sanitizer, timings, tuning
from p3kernels.device_check.steps.runtime import runtime_of
from p3kernels.device_check.steps.values import values_of

STEPS = (
    Step("environment", "Notes the GPU, its driver and clocks, torch, triton and the backends.", 20, environment.cases),
    Step(
        "values-triton", "Compares every op of the Triton kernels with the float64 reference.", 180, values_of("triton")
    ),
    Step("values-cuda", "Compares every op of the CUDA kernels with the float64 reference.", 60, values_of("cuda")),
    Step(
        "runtime-triton",
        "Runs the Triton ops on streams, in CUDA graphs and under torch.compile.",
        100,
        runtime_of("triton"),
    ),
    Step(
        "runtime-cuda", "Runs the CUDA ops on streams, in CUDA graphs and under torch.compile.", 60, runtime_of("cuda")
    ),
    Step("kernels", "Reads registers and spills of the kernels that were compiled here.", 60, kernels.cases),
    Step("timings", "Times training and rollout passes against eager, compiled and cuBLAS rivals.", 120, timings.cases),
    Step("sanitizer", "Runs NVIDIA's compute-sanitizer over every op.", 120, sanitizer.cases),
    Step("tuning", "Looks for the fastest tiles and saves each one it finds.", 90, tuning.cases),
)
