"""Interfaces as sysfs tells of them: line rate, driver, node, what they are made of, and RDMA beside them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from k3gate.host import interfaces
from k3gate.host.files import Root


def device(root: Path, interface: str, address: str, *, node: str = "1", speed: str = "100000") -> None:
    """An adapter on PCI with one interface, as Linux lays it out."""
    own = root / f"sys/devices/pci0000:80/{address}"
    (own / f"net/{interface}").mkdir(parents=True)
    driver = root / "sys/bus/pci/drivers/mlx5_core"
    driver.mkdir(parents=True, exist_ok=True)
    (own / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    for name, text in (
        ("numa_node", node),
        ("current_link_speed", "16.0 GT/s PCIe"),
        ("current_link_width", "8"),
    ):
        (own / name).write_text(f"{text}\n")
    folder = own / f"net/{interface}"
    for name, text in (("speed", speed), ("operstate", "up"), ("mtu", "9000"), ("type", "1")):
        (folder / name).write_text(f"{text}\n")
    (folder / "device").symlink_to("../..")
    of_class = root / "sys/class/net"
    of_class.mkdir(parents=True, exist_ok=True)
    (of_class / interface).symlink_to(f"../../devices/pci0000:80/{address}/net/{interface}")


def test_an_adapter_tells_rate_driver_node_and_link(tmp_path: Path) -> None:
    device(tmp_path, "ens1", "0000:81:00.0")
    verbs = tmp_path / "sys/class/infiniband/mlx5_0"
    verbs.mkdir(parents=True)
    (verbs / "device").symlink_to("../../../devices/pci0000:80/0000:81:00.0")
    found = interfaces.read(Root(tmp_path), "ens1")
    assert found is not None
    assert (found.kind, found.state, found.mtu, found.bytes_per_s) == ("device", "up", 9000, 12.5e9)
    assert (found.driver, found.node, found.verbs) == ("mlx5_core", 1, "mlx5_0")
    assert found.link is not None and (found.link.gt_per_s, found.link.width) == (16.0, 8)


@pytest.mark.parametrize("speed", ["-1", "4294967295", "", "fast", "0"])
def test_a_rate_that_is_not_told_is_unknown_and_no_number(speed: str, tmp_path: Path) -> None:
    device(tmp_path, "ens1", "0000:81:00.0", speed=speed)
    found = interfaces.read(Root(tmp_path), "ens1")
    assert found is not None and found.bytes_per_s is None


@pytest.mark.case("PCI-04")
def test_a_node_of_minus_one_is_unknown(tmp_path: Path) -> None:
    """PCI-04 of an adapter."""
    device(tmp_path, "ens1", "0000:81:00.0", node="-1")
    found = interfaces.read(Root(tmp_path), "ens1")
    assert found is not None and found.node is None


@pytest.mark.parametrize(("second", "node"), [("0", None), ("1", 1)])
def test_a_bond_has_the_node_on_which_all_below_it_agree(
    second: str, node: int | None, tmp_path: Path
) -> None:
    device(tmp_path, "ens1", "0000:81:00.0")
    device(tmp_path, "ens2", "0000:82:00.0", node=second)
    bond = tmp_path / "sys/class/net/bond0"
    (bond / "bonding").mkdir(parents=True)
    (bond / "speed").write_text("200000\n")
    for name in ("ens1", "ens2"):
        (bond / f"lower_{name}").symlink_to(f"../{name}")
    found = interfaces.read(Root(tmp_path), "bond0")
    assert found is not None
    assert (found.kind, found.on, found.bytes_per_s) == ("bond", ("ens1", "ens2"), 25e9)
    assert (found.node, found.driver) == (node, "mlx5_core")


def test_a_virtual_interface_and_loopback_are_named_so(tmp_path: Path) -> None:
    for name, kind in (("veth0", "1"), ("lo", "772")):
        folder = tmp_path / f"sys/class/net/{name}"
        folder.mkdir(parents=True)
        (folder / "type").write_text(f"{kind}\n")
    root = Root(tmp_path)
    kinds = {name: found.kind for name in ("veth0", "lo") if (found := interfaces.read(root, name))}
    assert kinds == {"veth0": "virtual", "lo": "loopback"}
    assert interfaces.read(root, "eth7") is None
    assert interfaces.read(root, "../net/lo") is None


def test_the_interface_of_an_address_is_found_however_it_is_written() -> None:
    own = {
        "lo": [SimpleNamespace(address="127.0.0.1"), SimpleNamespace(address="::1")],
        "ens1": [SimpleNamespace(address="10.0.0.7"), SimpleNamespace(address="fe80::A%ens1")],
    }
    assert interfaces.of_address("10.0.0.7", own) == "ens1"
    assert interfaces.of_address("::ffff:10.0.0.7", own) == "ens1"
    assert interfaces.of_address("fe80::a%3", own) == "ens1"
    assert interfaces.of_address("10.0.0.8", own) is None
