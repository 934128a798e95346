"""The only modules that talk to processes, Docker, HTTP, the hub and the kernel's tables. Each hides one library or interface."""
