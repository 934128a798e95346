"""Can the server listen where it should?"""

from dataclasses import dataclass

from recipe.checks import Finding


@dataclass(frozen=True)
class Port:
    """`owners`: each process seen to listen there, in words; `problem`: why the address cannot be bound by anybody."""

    can_bind: bool
    owners: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Listen:
    """`is_ours`: the running server of this recipe holds the port and gives it up when it is replaced."""

    host: str
    port: int
    is_ours: bool = False


def check(facts: Port, need: Listen) -> Finding:
    place = f"{need.host} port {need.port}"
    if facts.problem:
        return Finding("E_PORT", f"{need.host}: {facts.problem}", "an address of this machine", "correct HOST")
    if facts.can_bind:
        return Finding("I_PORT", f"{place} is free")
    if need.is_ours:
        return Finding("I_PORT", f"{place} is held by the server that is replaced")
    if facts.owners:
        return Finding("E_PORT", f"{place} is held by {', '.join(facts.owners)}", "a free port")
    if need.port < 1024:
        return Finding("E_PORT", f"{place} cannot be bound", "a port from 1024 on, unless root", "choose another PORT")
    return Finding("E_PORT", f"{place} is held by a process of another user", "a free port")
