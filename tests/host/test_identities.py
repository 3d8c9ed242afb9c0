"""The command line of the kernel as inventories and captures keep it: what decides figures, and nobody's secrets."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3gate import host
from k3gate.host import capture, identities

PRIVATE_NAMES = """
pass passphrase rootpw psk pin cred auth email owner fqdn nodename asset instance_id machine-id user api_key apikey
hostname http_proxy mac ip ds systemd.setenv systemd.set_credential k3os.server_url
"""
PIECES = """
token root x mem = = : , ; & " ' -- 1 2001:db8:: 00:11:22:33:44:55 nfs // /dev/ mapper/ @ host 10.0.0.1 (removed) UUID
- _ . 525400123456 enx nqn. ks
"""


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("ks=https://deploy.example.org/box.cfg quiet", "ks=https://(removed) quiet"),
        ("iscsi://me:word@array.example.org:3260/x,rw", "iscsi://(removed),rw"),
        ("root=nfs:filer.example.org:/export/box", "root=nfs:(removed)"),
        ("console=tty0 hugepages=16", "console=tty0 hugepages=16"),
    ],
)
def test_addresses_of_servers_are_cut_from_the_command_line(told: str, kept: str, make_root) -> None:
    assert host.read(make_root({"proc/cmdline": f"{told}\n"})).kernel.command_line == kept


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ('token="alpha SECRET" quiet', "token=(removed) quiet"),
        ('"token=alpha SECRET" quiet', "token=(removed) quiet"),
        ("token='alpha SECRET' quiet", "token=(removed) quiet"),
        ('quiet token="alpha SECRET', "quiet token=(removed)"),
        ("luks.passphrase=SECRET", "luks.passphrase=(removed)"),
        ("rd.luks.options=token=SECRET,discard", "rd.luks.options=token=(removed),discard"),
        ('rootflags=noatime,password="a SECRET",ro', "rootflags=noatime,password=(removed),ro"),
        ('note="see token=SECRET"', '"note=see token=(removed)"'),
        ("gw=2001:db8::77", "gw=(removed)"),
        ("x=2001:db8::77 y=[2001:DB8::77]:80", "x=(removed) y=[(removed)]:80"),
        ("x=2001:db8::77:eth0 y=dst:::ffff:10.0.0.1", "x=(removed):eth0 y=dst:(removed)"),
        ("ks=nfs:SECRET:/x root=ceph:SECRET", "ks=nfs:(removed) root=ceph:(removed)"),
        ("root=cifs:u:p@SECRET x=me@SECRET", "root=cifs:(removed) x=(removed)"),
        ("root=//SECRET/share root=odd:SECRET", "root=//(removed) root=odd:(removed)"),
        ("nvmf.nqn=SECRET x=nqn.2014-08.org.SECRET", "nvmf.nqn=(removed) x=(removed)"),
        ("x=525400abcdef bond0=enx525400123456 y=0050.56ab.cdef", "x=(removed) bond0=(removed) y=(removed)"),
        ("root=/dev/mapper/SECRET--vg-root ro", "root=/dev/mapper/(removed) ro"),
        ("root=/dev/SECRET/root ro", "root=/dev/(removed) ro"),
        ("root=LABEL=SECRET root=PARTUUID=SECRET", "root=LABEL=(removed) root=PARTUUID=(removed)"),
        ("passwd/user-fullname=SECRET", "passwd/user-fullname=(removed)"),
        ("quiet -- --password SECRET", "quiet -- (removed)"),
        *((f"{name}=SECRET", f"{name}=(removed)") for name in PRIVATE_NAMES.split()),
    ],
)
def test_secrets_names_and_addresses_are_cut_from_the_command_line(
    told: str, kept: str, make_root, tmp_path: Path
) -> None:
    folder = make_root({"proc/cmdline": f"{told}\n"})
    assert host.read(folder).kernel.command_line == kept
    assert capture.write(tmp_path / "a", folder).differs == ()
    assert host.read(tmp_path / "a").kernel.command_line == kept
    assert b"SECRET" not in gzip.decompress((tmp_path / "a").read_bytes())


@pytest.mark.parametrize(
    "told",
    [
        "BOOT_IMAGE=(hd0,gpt2)/vmlinuz-6.1.0-13-amd64 root=/dev/nvme0n1p2 ro quiet console=ttyS0,115200n8",
        "default_hugepagesz=1G hugepagesz=1G hugepages=0:512,1:512 hugetlb_cma=0:1G,1:1G",
        "isolcpus=nohz,domain,managed_irq,2-63 nohz_full=2-63 rcu_nocbs=2-63 irqaffinity=0-1 nr_cpus=64 maxcpus=16",
        "mitigations=auto,nosmt numa_balancing=disable numa=fake=4U transparent_hugepage=always",
        "mem=549755813888 zfs.zfs_arc_max=137438953472 memmap=64M@16M crashkernel=1G-2G:192M,2G-:256M",
        "pci=resource_alignment=20@0000:01:00.0;12@pci:8086:1c22 vfio-pci.ids=10de:1eb0 x=0000:01:00.0",
        'dyndbg="file drivers/host.c +p" acpi_osi="Windows 2015"',
        "nvproxy.enable=1 nvproxy.kind=fast machine=q35 monkey=banana user_namespace.enable=1 ipv6.disable=1",
        "net.ifnames=0 biosdevname=0 iommu=pt processor.max_cstate=1 clocksource=tsc amd_pstate=active",
    ],
)
def test_what_decides_figures_stays_in_the_command_line(told: str, make_root) -> None:
    assert host.read(make_root({"proc/cmdline": f"{told}\n"})).kernel.command_line == told


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([*PIECES.split(), " ", "\n", "\0"]),
        max_size=14,
    ).map("".join)
)
def test_a_command_line_that_was_cut_is_cut_no_further(told: str) -> None:
    kept = identities.of_command_line(told)
    assert identities.of_command_line(kept) == kept
