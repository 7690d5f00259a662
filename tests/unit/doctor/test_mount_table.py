"""Which kinds of mounts can be shared, by tables as kernels write them; and what a machine exports."""

import pytest

from kveik.doctor.mount_table import exported, is_layer, is_memory, is_network, is_told_by_its_type, on_system_disk
from kveik.store.filesystem_medium import NOWHERE, Medium, Mount, mount_above, mounts_in

TABLE = """\
22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro
30 22 8:17 / /data rw,noatime shared:9 - xfs /dev/sdb1 rw
31 22 0:41 / /dev/shm rw,nosuid - tmpfs tmpfs rw
32 22 0:50 / /mnt/kv\\040cache rw shared:3 - nfs4 10.0.0.9:/export/kv rw,vers=4.2,hard
33 22 0:60 / /mnt/juice rw - fuse.juicefs JuiceFS:kv rw
34 22 8:2 /srv/kv /srv/bound rw - ext4 /dev/sda2 rw
broken line
"""
CONTAINER = """\
700 600 0:99 / / rw,relatime - overlay overlay rw,lowerdir=/l
701 700 8:2 /var/lib/docker/hosts /etc/hosts rw - ext4 /dev/sda2 rw
702 700 8:2 /home/kv /models rw - ext4 /dev/sda2 rw
703 700 8:17 /kv /kv rw - xfs /dev/sdb1 rw
"""


def of(path: str, table: str = TABLE) -> Mount:
    return mount_above(path, mounts_in(table.splitlines()))


def test_kinds_are_told_apart() -> None:
    assert is_memory(of("/dev/shm/x"))
    assert is_layer(of("/", CONTAINER))
    assert not is_network(of("/", CONTAINER))
    assert is_network(of("/mnt/kv cache"))
    assert is_told_by_its_type(of("/mnt/kv cache"))
    assert is_network(of("/mnt/juice"))
    assert not is_told_by_its_type(of("/mnt/juice"))
    assert not is_network(of("/data"))


def test_a_container_layer_of_fuse_is_no_network() -> None:
    layer = Mount("/", Medium("fuse.fuse-overlayfs", "x"), "0:1")
    assert is_layer(layer)
    assert not is_network(layer)


@pytest.mark.parametrize(
    ("path", "table", "expected"),
    [
        ("/home", TABLE, True),
        ("/srv/bound/kv", TABLE, True),
        ("/data/kv", TABLE, False),
        ("/mnt/kv cache", TABLE, False),
        ("/models/kv", CONTAINER, True),  # bound from the disk that Docker itself works on
        ("/kv", CONTAINER, False),
        ("/dev/shm", TABLE, False),
    ],
)
def test_the_system_disk_is_known_by_its_device(path: str, table: str, expected: bool) -> None:
    mounts = mounts_in(table.splitlines())
    assert on_system_disk(mount_above(path, mounts), mounts) is expected


def test_without_a_table_nothing_is_known() -> None:
    assert mount_above("/x", []) == NOWHERE
    assert not on_system_disk(NOWHERE, [])
    assert "unknown" in str(NOWHERE)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("/data/kv", "/data 10.0.0.0/8(rw,sync)\n", "/data"),
        ("/data/kv", "# /data\n/database *(rw)\n", ""),
        ("/my data/kv", "/my\\040data *(rw)\n", "/my data"),
        ("/data", "", ""),
    ],
)
def test_a_folder_that_this_machine_exports_is_known(path: str, text: str, expected: str) -> None:
    assert exported(path, [text]) == expected
