"""What a folder is mounted from, by tables as kernels write them."""

import pytest

from kveik.doctor.mount_table import UNKNOWN, Mount, exported, mount_of, mounts_in, on_system_disk

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
    return mount_of(path, mounts_in(table.splitlines()))


@pytest.mark.parametrize(
    ("path", "type_", "source", "network"),
    [
        ("/home/x", "ext4", "/dev/sda2", False),
        ("/data", "xfs", "/dev/sdb1", False),
        ("/database", "ext4", "/dev/sda2", False),
        ("/mnt/kv cache/a/b", "nfs4", "10.0.0.9:/export/kv", True),
        ("/mnt/juice/x", "fuse.juicefs", "JuiceFS:kv", True),
        ("/dev/shm/x", "tmpfs", "tmpfs", False),
    ],
)
def test_the_longest_mount_point_above_a_path_counts(path: str, type_: str, source: str, network: bool) -> None:
    found = of(path)
    assert (found.type, found.source, found.network) == (type_, source, network)


def test_kinds_are_told_apart() -> None:
    assert of("/dev/shm/x").memory
    assert of("/", CONTAINER).layer
    assert not of("/", CONTAINER).network
    assert of("/mnt/kv cache").known_network
    assert not of("/mnt/juice").known_network
    assert Mount("/", "0:1", "fuse.fuse-overlayfs", "x").layer
    assert not Mount("/", "0:1", "fuse.fuse-overlayfs", "x").network
    assert "hard" in of("/mnt/kv cache").options
    assert "nfs4 from 10.0.0.9:/export/kv" in str(of("/mnt/kv cache"))


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
    assert on_system_disk(mount_of(path, mounts), mounts) is expected


def test_without_a_table_nothing_is_known() -> None:
    assert mount_of("/x", []) == UNKNOWN
    assert not on_system_disk(UNKNOWN, [])
    assert "unknown" in str(UNKNOWN)


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
