"""Which rows run next. Numbers only: no tensor, no clock of its own, no word of HTTP."""

from lockstep.sched.kept import KeptLimits
from lockstep.sched.scheduler import Scheduler, SchedulerLimits

__all__ = ["KeptLimits", "Scheduler", "SchedulerLimits"]
