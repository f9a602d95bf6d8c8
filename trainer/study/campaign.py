"""A planned study, as what brings runs to their end sees it: trunks before their branches, judging, records."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.runs.checkpoint import checkpoint_path, latest_checkpoint
from trainer.study import judge
from trainer.study.plan import TRUNK, Run
from trainer.study.planned import Planned
from trainer.study.records import read_record, write_record
from trainer.study.state import state_of


class Campaign:
    """Runs to be brought to their end, and what that is."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned

    def runs(self) -> Sequence[Run]:
        """Seed by seed; a trunk before its branches."""
        return self._planned.runs()

    def is_recorded(self, run: Run) -> bool:
        """Whether the record is there; of a trunk, whether those of all its branches are: they need its checkpoint."""
        planned = self._planned
        if run.arm == TRUNK:
            return all(self.is_recorded(other) for other in planned.runs() if other.trunk is run)
        return read_record(run, planned.size, planned.records) is not None

    def waits_for(self, run: Run) -> str | None:
        """The trunk's checkpoint, before the branch has one of its own; a trunk that diverged leaves none."""
        trunk = run.trunk
        if trunk is None or latest_checkpoint(run.path) is not None or state_of(run) == "diverged":
            return None
        needed = checkpoint_path(trunk.path, trunk.target)
        return None if needed.exists() else f"{needed}, which {trunk.name} did not leave"

    def evaluation(self, run: Run) -> list[str] | None:
        """Evaluation of the last checkpoints; a trunk is not judged."""
        size = self._planned.size
        if run.arm == TRUNK or judge.read_judged(run, size) is not None:
            return None
        return ["trainer.study.judge", *judge.arguments(run, size)]

    def keep(self, run: Run) -> None:
        """Keeps the record of a run."""
        write_record(run, self._planned.size, self._planned.records)
