"""How many memory channels a processor model has: public product data, for models that are sold in servers.

Used to tell a board that has slots for fewer channels than its processors, and boards whose slot names tell no
channel. A model that is not in the table is not guessed.
"""

from __future__ import annotations

import re

# (pattern of the model's name, channels of one socket, where the makers say so)
_MODELS: tuple[tuple[str, int, str], ...] = (
    (r"EPYC 7[0-9A-Z]{2}[123](?!\d)", 8, "AMD EPYC 7001, 7002, 7003 data sheets"),
    (r"EPYC 9[0-9A-Z]{2}[45](?![0-9H])", 12, "AMD EPYC 9004, 9005 data sheets"),
    (r"EPYC 8[0-9]{2}4(?!\d)", 6, "AMD EPYC 8004 data sheet"),
    (r"Threadripper PRO [3579]\d{3}WX", 8, "AMD Ryzen Threadripper PRO product pages"),
    (r"Threadripper [123]\d{3}(?:X|WX)\b", 4, "AMD Ryzen Threadripper product pages"),
    (r"Xeon\(R\) (?:6\s?)?69\d{2}[PE]", 12, "Intel Xeon 6900 product pages"),
    (r"Xeon\(R\) (?:6\s?)?6[57]\d{2}[PE](?!-B)", 8, "Intel Xeon 6500 and 6700 product pages"),
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
    (r"Xeon\(R\) CPU E5-[24]4\d{2}", 3, "Intel Xeon E5-2400 product pages"),
    (r"Ampere\(R\) Altra\(R\)(?: Max)?", 8, "Ampere Altra product brief"),
)
_TABLE = tuple(
    (re.compile(pattern, re.IGNORECASE), channels, source) for pattern, channels, source in _MODELS
)


def channels_per_socket(model: str | None) -> int | None:
    """The channels of one socket with a processor of this name; None where the model is not known."""
    for pattern, channels, _ in _TABLE:
        if pattern.search(model or ""):
            return channels
    return None
