"""How many memory channels a processor model has: public product data, for models that are sold in servers.

Used to tell a board that has slots for fewer channels than its processors, and boards whose slot names tell no
channel. A model that is not in the table is not guessed.
"""

from __future__ import annotations

import re

from k3gate.records import Cpu, Memory

# (pattern of the model's name, channels of one socket, where the makers say so)
_MODELS: tuple[tuple[str, int, str], ...] = (
    # The 7D12 was made for one customer, and how many of its channels work is not published.
    (r"EPYC 7(?!D12)[0-9A-Z]{2}[123](?!\d)", 8, "AMD EPYC 7001, 7002, 7003 data sheets"),
    (r"EPYC 9[0-9A-Z]{2}[45](?![0-9H])", 12, "AMD EPYC 9004, 9005 data sheets"),
    (r"EPYC 8[0-9]{2}4(?!\d)", 6, "AMD EPYC 8004 data sheet"),
    (r"Threadripper PRO [3579]\d{3}WX", 8, "AMD Ryzen Threadripper PRO product pages"),
    (r"Threadripper (?:[123]\d{3}(?:X|WX)|[79]9\d0X)\b", 4, "AMD Ryzen Threadripper product pages"),
    (r"Xeon\(R\) (?:6\s?)?69\d{2}[PE]", 12, "Intel Xeon 6900 product pages"),
    (r"Xeon\(R\) (?:6\s?)?6[57]\d{2}[PE](?!-B)", 8, "Intel Xeon 6500 and 6700 product pages"),
    (r"Xeon\(R\) (?:6\s?)?67(?:56|66|68|76)P-B", 8, "Intel Xeon 6 with Ethernet product pages"),
    (r"Xeon\(R\) (?:6\s?)?(?:65\d{2}|67(?:06|16|18|26))P-B", 4, "Intel Xeon 6 with Ethernet product pages"),
    (r"Xeon\(R\) 63\d{2}P(?!\w)", 2, "Intel Xeon 6300 product pages"),
    (
        r"Xeon\(R\) (?:65[468]X?|67[468]X|69[68]X)(?![\dPE])",
        8,
        "Intel Xeon 600 for workstations product pages",
    ),
    (r"Xeon\(R\) 63[468](?!\d)", 4, "Intel Xeon 600 for workstations product pages"),
    (r"Xeon\(R\) w[3579]-3[45]\d{2}X?", 8, "Intel Xeon W-3400 and W-3500 product pages"),
    (r"Xeon\(R\) w[3579]-2[45]\d{2}X?", 4, "Intel Xeon W-2400 and W-2500 product pages"),
    (r"Xeon\(R\) W-33\d{2}", 8, "Intel Xeon W-3300 product pages"),
    (r"Xeon\(R\) W-3175X", 6, "Intel Xeon W-3175X product page"),
    (r"Xeon\(R\) Platinum 92\d{2}", 12, "Intel Xeon Platinum 9200 product pages"),
    (r"Xeon\(R\) CPU Max 9[45]\d{2}", 8, "Intel Xeon CPU Max product pages"),
    (
        r"Xeon\(R\) (?:Platinum|Gold|Silver|Bronze) [3-9]3\d{2}H[A-Z]*\b",
        6,
        "Intel Xeon Scalable 3rd, Cooper Lake",
    ),
    (r"Xeon\(R\) (?:Platinum|Gold|Silver|Bronze) [3-9][12]\d{2}", 6, "Intel Xeon Scalable 1st and 2nd"),
    (r"Xeon\(R\) (?:Platinum|Gold|Silver|Bronze) [3-9][345]\d{2}", 8, "Intel Xeon Scalable 3rd, 4th and 5th"),
    (r"Xeon\(R\) CPU E5-[1246][68]\d{2}", 4, "Intel Xeon E5-1600, 2600, 4600 product pages"),
    (r"Xeon\(R\) CPU E5-[124]4\d{2}", 3, "Intel Xeon E5-1400 and E5-2400 product pages"),
    (r"Ampere\(R\) Altra\(R\)(?: Max)?", 8, "Ampere Altra product brief"),
)
_TABLE = tuple(
    (re.compile(pattern, re.IGNORECASE), channels, source) for pattern, channels, source in _MODELS
)


def channels_of_model(model: str | None) -> int | None:
    """The channels of one socket with a processor of this name; None where the model is not known."""
    for pattern, channels, _ in _TABLE:
        if pattern.search(model or ""):
            return channels
    return None


def channels_per_socket(cpu: Cpu) -> int | None:
    """The channels of one socket, by the name that the kernel gives, else by that of the firmware.

    Linux names a processor of Arm by its cores alone.
    """
    names = (cpu.model, *(one.model for one in cpu.socket_list or () if one.populated))
    return next((channels for name in names if (channels := channels_of_model(name))), None)


def channels_of_processors(cpu: Cpu) -> int | None:
    """The channels of all processors that are there; None where model or number is not known."""
    each = channels_per_socket(cpu)
    return None if each is None or not cpu.sockets else each * cpu.sockets


def usable_channels(cpu: Cpu, memory: Memory) -> int | None:
    """The channels that modules could use: those that the table names for processors that are there, or all
    that the processors are known to have where that is more. None where neither is known."""
    named = None
    if memory.channel_list is not None:
        named = sum(channel.processor for channel in memory.channel_list)
    known = [number for number in (named, channels_of_processors(cpu)) if number is not None]
    return max(known, default=None)
