"""Pictures and clips: files of bytes into pixels of the sizes the vision tower takes, decoded in processes that can do nothing else."""
