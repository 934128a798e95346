"""What the kernel tells of the way between PCI devices: translation of addresses (IOMMU) and detours by access control (ACS)."""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

SYS, COMMAND_LINE = Path("/sys"), Path("/proc/cmdline")
# Extended capabilities begin here; the one for access control, its control word, and the bits that send peers' requests upwards.
FIRST, ACS, CONTROL, REDIRECTS = 0x100, 0x000D, 6, 0x04 | 0x08 | 0x10


def peer_facts(buses: Sequence[str], sys: Path = SYS, command_line: Path = COMMAND_LINE) -> list[str]:
    """In words, for devices by the bus ids that the driver tells."""
    try:
        groups = len(list((sys / "kernel/iommu_groups").iterdir()))
    except OSError:
        groups = 0
    try:
        asked = [word for word in command_line.read_text().split() if "iommu" in word]
    except OSError:
        asked = []
    facts = [f"IOMMU {f'on ({groups} groups)' if groups else 'off'}" + (f", kernel told {' '.join(asked)}" if asked else "")]
    seen = dict(pair for bus in buses for pair in _bridges(sys / "bus/pci/devices" / bus.lower()[-12:]))
    detours = [name for name, control in seen.items() if control is not None and control & REDIRECTS]
    if detours:
        facts.append(f"ACS sends peers' requests the long way at {', '.join(detours)}")
    elif None in seen.values():
        facts.append("ACS can only be read by root")
    elif seen:
        facts.append("ACS does not redirect")
    return facts


def _bridges(device: Path) -> Iterator[tuple[str, int | None]]:
    """Each bridge above a device and its word of access control: 0 where it has none, None where it may not be read."""
    above = device.resolve().parent
    while (above / "config").is_file():
        yield above.name, _control((above / "config").read_bytes())
        above = above.parent


def _control(config: bytes) -> int | None:
    if len(config) < FIRST + 4:
        return None
    place = FIRST
    for _ in range(48):
        if place + CONTROL + 2 > len(config):
            return 0
        header = struct.unpack_from("<I", config, place)[0]
        if header & 0xFFFF == ACS:
            return struct.unpack_from("<H", config, place + CONTROL)[0]
        place = header >> 20
        if place < FIRST:
            return 0
    return 0
