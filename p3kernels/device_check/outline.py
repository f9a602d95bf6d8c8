"""The steps in words: what `p3 gpu-check --help` lists.

Only the standard library is imported, nothing of this package either: the help reads this file by itself, and so needs
no torch (`trainer.config.plain`).
"""

DEFAULT_MINUTES = 15.0

STEPS = {
    "environment": ("Notes the GPU, its driver and clocks, torch, triton and the backends.", 20),
    "values-triton": ("Compares every op of the Triton kernels with the float64 reference.", 180),
    "values-cuda": ("Compares every op of the CUDA kernels with the float64 reference.", 60),
    "runtime-triton": ("Runs the Triton ops on streams, in CUDA graphs and under torch.compile.", 100),
    "runtime-cuda": ("Runs the CUDA ops on streams, in CUDA graphs and under torch.compile.", 60),
    "kernels": ("Reads registers and spills of the kernels that were compiled here.", 60),
    "timings": ("Times training and rollout passes against eager, compiled and cuBLAS rivals.", 120),
    "sanitizer": ("Runs NVIDIA's compute-sanitizer over every op.", 120),
    "tuning": ("Looks for the fastest tiles and saves each one it finds.", 90),
}
"""Step to what it does, as a sentence, and its share of the default minutes, in seconds; in their order: what is wrong
comes before how fast it is."""
