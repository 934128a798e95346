"""What a user can ask for, one file each: `run(job, words) -> exit status`."""
