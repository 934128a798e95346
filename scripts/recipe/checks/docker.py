"""Does a Docker engine answer this user?"""

from dataclasses import dataclass

from recipe.checks import Finding

NEEDED = "a Docker engine that answers this user"


@dataclass(frozen=True)
class Daemon:
    """`version` is empty where nothing answers; then `problem` says why, and `is_down` that nobody listens. `storage` holds its images.

    `user` is set where the socket refused it; `group` where membership opens the socket, `is_member` whether the user has it already.
    """

    endpoint: str
    problem: str = ""
    version: str = ""
    storage: str = "/var/lib/docker"
    is_down: bool = False
    user: str = ""
    group: str = ""
    is_member: bool = False


def check(facts: Daemon, need: None = None) -> Finding:
    if facts.version:
        return Finding("I_DEPENDENCY", f"Docker {facts.version} at {facts.endpoint}")
    found = f"{facts.endpoint}: {facts.problem}"
    if facts.is_down:
        return Finding("E_DOCKER", found, NEEDED, "start it (sudo systemctl start docker), or install it: docs.docker.com/engine/install")
    if facts.is_member:
        remedy = f"log in again, or: newgrp {facts.group}"
        return Finding("E_DOCKER_GROUP", f"{found}; {facts.user} is in group {facts.group}, this session began before", NEEDED, remedy)
    if facts.group:
        remedy = f"sudo usermod -aG {facts.group} {facts.user}, then log in again (the group is as good as root), or rootless Docker"
        return Finding("E_DOCKER_GROUP", f"{found}; {facts.user} is not in group {facts.group}", NEEDED, remedy)
    if facts.user:
        return Finding("E_DOCKER", f"{found} ({facts.user})", NEEDED, "give the socket to a group, mode 0660, or name another: DOCKER_HOST")
    return Finding("E_DOCKER", found, NEEDED)
