"""What in the kernel's texts names this one machine, container or user; cut out before an inventory keeps it.

Of the command line all stays that a reader of figures needs: huge pages, isolated CPUs, mitigations, the console.
A value goes where its name speaks of secrets, people, hosts or addresses, and where it has the form of one.
"""

from __future__ import annotations

import ipaddress
import re

REMOVED = "(removed)"

# The kernel divides its command line at white space outside double quotes; systemd knows single ones as well.
_ARGUMENT = re.compile(r"""(?:"[^"]*"?|(?<==)'[^']*'|[^\s"])+""")
# The options within a value, as mount options, URLs and cloud-init have them.
_OPTION = re.compile(r"""(?:"[^"]*"?|[^,;&"])+|[,;&]""")
_BETWEEN_WORDS = re.compile(r"[\W_]+")
_PRIVATE_WORD = re.compile(
    r"\w*(?:passw|passph|passcode|secret|token|credential|fqdn|uuid|email|addr)\w*|\w*(?:name|serial|label)"
    r"|(?:root|user|admin|ssh|vnc|bmc|ipmi)?(?:pass|pwd?|pin|psk|keys?|id)|(?:api|auth|priv|private|wg)keys?"
    r"|(?:machine|system|host|node|boot|client|instance|device|asset|account|tenant|customer|cluster|vm|site|org)id"
    r"|keyfile|creds?|auth|login|users?|owner|contact|mail|account|customer|tenant|asset|assettag|serialn\w+|sn"
    r"|hosts?|domains?|servers?|nameservers?|dns|ntp|gw|gateway|peers?|proxy|ip[46]?|ipv[46]|macs?|bootif|urls?|uri"
    r"|nfsroot|nbdroot|netroot|netconsole|iscsi|iqn|nqn|hostnqn|nvmf|wwid|ww[np]n|ds|lv|vg|setenv|run|inst|live"
    r"|autoinstall",
    re.IGNORECASE,
)
# On, off or left to the kernel: no name and no secret.
_SWITCH = re.compile(r"[01yn]|on|off|yes|no|true|false|auto|none|(?:en|dis)abled?", re.IGNORECASE)
# Names of amounts: twelve digits are bytes there, and no address without its separators.
_AMOUNT_WORD = re.compile(
    r"mem|memmap|max|min|size|limit|bytes|len|ns|cma|swiotlb|\w+core|crashkernel|hugepages", re.IGNORECASE
)

_FORMS = (
    (re.compile(r"(?<=://)[^\s,;\"']+"), REMOVED),
    # A server and its share: nfs:HOST:/PATH, cifs:USER:WORD@HOST, //HOST/SHARE; of the root any kind.
    (
        re.compile(
            r"""(?ix) ( (?:^|(?<=[=,;"'])) (?:nfs4?|cifs|smb\d?|ceph|nbd|iscsi|fcoe|gluster(?:fs)?|lustre|afs|9p
            |virtiofs|tftp|live|nvmf) | ^(?:root|ks)=[a-z][\w+-]* ) :(?!//)[^\s"]+"""
        ),
        rf"\1:{REMOVED}",
    ),
    (re.compile(r"(?<==)//[^\s,;\"']+"), f"//{REMOVED}"),
    # Volumes and labels are called after their hosts; sda1 and nvme0n1p2 are not.
    (re.compile(r"((?:/dev/(?:mapper|md)|by-(?:id|(?:part)?(?:uuid|label)))/)[^\s,;\"']+"), rf"\1{REMOVED}"),
    (re.compile(r"/dev/(?!(?:mapper|md|disk|cciss|ida|block)/)[\w.+-]+/[^\s,;\"']+"), f"/dev/{REMOVED}"),
    (re.compile(r"(?i)\b(?:nqn\.|iqn\.|eui\.|naa\.|wwn-)[^\s,;\"']+"), REMOVED),
    (re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), REMOVED),
    (
        re.compile(r"(?i)\b[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5,19}\b|\b[0-9a-f]{4}(?:\.[0-9a-f]{4}){2}\b"),
        REMOVED,
    ),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), REMOVED),
)
_AT = re.compile(r"(?<![^\s,;=\"'])([^\s,;=\"'@]{0,300})@([^\s,;\"']+)")
# 64M@16M is a piece of memory, 12@pci:8086:1c22 and 20@0000:01:00.0 are alignments of devices.
_NUMBER = re.compile(r"(?:0x[0-9a-f]+|\d+)[kmgtpe]?", re.IGNORECASE)
_PLACE = re.compile(r"(?:0x[0-9a-f]+|\d+)[kmgtpe]?|pci:[0-9a-f:]+|[0-9a-f:]+\.[0-7]", re.IGNORECASE)
# May be an address of version 6; 45 is the longest.
_COLONS = re.compile(r"(?<![0-9A-Za-z])[0-9A-Fa-f:.]{2,45}(?![0-9A-Za-z])")
_LONG_HEX = re.compile(r"(?<![0-9a-z])(?:enx)?([0-9a-f]{12,})(?![0-9a-z])", re.IGNORECASE)

# A container's id, whole or cut, and the UUID of a pod: systemd writes it with underscores, static pods without.
_CONTAINER = re.compile(
    r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|(?:(?<![0-9a-z])|(?<=pod))[0-9a-f]{12,}(?![0-9a-z])",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"[0-9a-fA-F]")
_PASSES = 8


def of_command_line(command_line: str) -> str:
    """The kernel's command line without host names, addresses, URLs, UUIDs and secrets."""
    # Of what is left something may look private that did not before; a capture is to be read as the machine was.
    for _ in range(_PASSES):
        before, command_line = command_line, _passed(command_line)
        if command_line == before:
            break
    return command_line


def _passed(command_line: str) -> str:
    kept: list[str] = []
    for argument in _ARGUMENT.findall(command_line):
        if argument == "--":
            # What follows is for init, in a form of its own.
            return " ".join([*kept, argument, REMOVED])
        kept.append(_argument(argument))
    return " ".join(kept)


def of_group(path: str) -> str:
    """The path of a control group with the ids of containers and pods as zeros: same length, same parts."""
    return _CONTAINER.sub(lambda match: _DIGITS.sub("0", match[0]), path)


def _argument(told: str) -> str:
    """One argument as it was told, or what is left of it, quoted where it must be."""
    name, equals, value = told.strip("\"'").partition("=")
    value = value.strip("\"'")
    plain = f"{name}{equals}{value}"
    if equals and _has(name, _PRIVATE_WORD) and not _SWITCH.fullmatch(value):
        kept = f"{name}={REMOVED}"
    else:
        kept = _without_forms("".join(_option(part) for part in _OPTION.findall(plain)), name)
    if kept == plain:
        return told
    kept = " ".join(re.sub("[\"']", "", kept).split())
    return f'"{kept}"' if " " in kept else kept


def _has(name: str, word: re.Pattern[str]) -> bool:
    return any(word.fullmatch(part) for part in _BETWEEN_WORDS.split(name))


def _option(text: str) -> str:
    """One option of a value, cut behind the first name in it that speaks of what is private."""
    begin = 0
    for sign in re.finditer("[=:]", text):
        name, begin = text[begin : sign.start()].split()[-1:], sign.end()
        # An URL keeps its kind, which may be "iscsi"; what follows is cut by its form.
        if name and _has(name[0], _PRIVATE_WORD) and not text.startswith("//", begin):
            value = text[begin:].strip("\"'")
            if value and not _SWITCH.fullmatch(value):
                return text[:begin] + REMOVED
    return text


def _without_forms(text: str, name: str) -> str:
    """`text`, the argument called `name`, without what has the form of an address, a path of a server or an id."""
    # First those of version 6, which may end in one of version 4.
    text = _COLONS.sub(lambda match: _without_address(match[0]), text)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    text = _AT.sub(
        lambda at: at[0] if _NUMBER.fullmatch(at[1]) and _PLACE.fullmatch(at[2]) else REMOVED, text
    )
    amount = _has(name, _AMOUNT_WORD)
    return _LONG_HEX.sub(lambda match: match[0] if amount and match[1].isdigit() else REMOVED, text)


def _without_address(text: str) -> str:
    """`text` unless it is an address of version 6, perhaps with the colon of a neighbour."""
    for part in (text, text.rstrip(":."), text.lstrip(":."), text.strip(":.")):
        try:
            address = ipaddress.IPv6Address(part)
        except ValueError:
            continue
        return text if address.is_unspecified else text.replace(part, REMOVED)
    return text
