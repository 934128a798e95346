"""stop: let the server finish, end it, pack its logs."""

from collections.abc import Sequence

from recipe import lock, server
from recipe.job import Job
from recipe.record import WATCH_FILE


def stop(job: Job, words: Sequence[str]) -> int:
    """Ends the server of STATE_DIR, whatever profile it runs."""
    record, grace_s = server.find(job.places), job.config.number("STOP_TIMEOUT")
    if job.config.is_on("DRY_RUN"):
        job.ui.inform("I_DRY_RUN", "the plan of stop")
        told = f"the server of {record.launch.url} (run {record.run})" if record else "a server, if one runs by then: none does now"
        job.ui.command(f"# let {told} finish for at most {grace_s} s, end it, pack its logs in {job.places.log_dir}")
        return 0
    # Whoever stops it wants no watchdog to go on trying.
    (job.places.state_dir / WATCH_FILE).unlink(missing_ok=True)
    if record is None and not job.has_leftover():
        # Nothing to change: no lock and no folder is needed to say so.
        job.ui.inform("I_STOPPED", "no server runs")
        return 0
    with lock.hold(job.places.state_dir, job.verb):
        job.put_away_leftover()
        record = server.find(job.places)
        if record is None:
            job.ui.inform("I_STOPPED", "no server runs")
            return 0
        was_alive = server.is_alive(record)
        job.ui.begin()
        job.ui.progress(f"waiting at most {grace_s} s for what runs")
        packed = server.end(record, job.places, grace_s)
        job.ui.inform(
            "I_STOPPED" if was_alive else "I_RECOVER",
            f"{record.launch.url}, run {record.run}" + ("" if was_alive else ": it had ended by itself"),
        )
        if packed is not None:
            job.ui.inform("I_ARCHIVE", str(packed))
    return 0
