"""What an estimator does to a policy, in numbers."""

from p3kernels.diagnostics.data_efficiency import DataEfficiency, data_efficiency

__all__ = ["DataEfficiency", "data_efficiency"]
