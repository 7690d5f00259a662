"""Whether a folder lies on a server, from the kernel's table of mounts."""

from pathlib import Path

import pytest

from kveik.store.filesystem_medium import NOWHERE, UNKNOWN, Medium, medium_in, medium_of, mount_above, mounts_in

TABLE = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /mnt/cache rw,relatime shared:7 - nfs4 server:/export/kv rw,vers=4.2,hard
31 22 0:41 / /mnt/cache/local rw - tmpfs tmpfs rw
32 22 0:42 / /mnt/two\\040words rw - ceph 10.0.0.1:/ rw
33 22 0:43 / /mnt/over rw - ext4 /dev/vdb rw
34 33 0:44 / /mnt/over rw master:1 shared:2 - nfs other:/x rw
35 22 0:45 / /mnt/juice rw - fuse.juicefs JuiceFS:kv rw
not a mount at all
""".splitlines()


@pytest.mark.parametrize(
    ("path", "medium"),
    [
        ("/var/kv", Medium("ext4", "/dev/vda")),
        ("/", Medium("ext4", "/dev/vda")),
        ("/mnt/cache", Medium("nfs4", "server:/export/kv")),
        ("/mnt/cache/kveik-1", Medium("nfs4", "server:/export/kv")),
        ("/mnt/cached", Medium("ext4", "/dev/vda")),
        ("/mnt/cache/local/x", Medium("tmpfs", "tmpfs")),
        ("/mnt/two words/x", Medium("ceph", "10.0.0.1:/")),
        ("/mnt/over/x", Medium("nfs", "other:/x")),
    ],
)
def test_the_mount_nearest_above_a_path_counts_and_of_two_at_one_place_the_later(path: str, medium: Medium) -> None:
    assert medium_in(path, TABLE) == medium


@pytest.mark.parametrize("type_", ["nfs", "nfs4", "lustre", "cifs", "9p", "virtiofs", "fuse", "fuse.sshfs"])
def test_types_that_other_machines_may_change_are_network(type_: str) -> None:
    assert Medium(type_).network
    assert str(Medium(type_)) == f"{type_} (network)"


@pytest.mark.parametrize("type_", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", ""])
def test_disks_and_memory_are_local_and_so_is_what_the_kernel_does_not_tell(type_: str) -> None:
    assert not Medium(type_).network


def test_a_table_without_mounts_tells_nothing() -> None:
    assert medium_in("/x", ["garbage", "1 2 3 - "]) == UNKNOWN


def test_a_link_is_followed_to_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")

    assert medium_of(tmp_path / "link").type == "proc"
    assert medium_of(tmp_path).type != "proc"


def test_a_mount_has_its_place_and_the_number_of_its_device() -> None:
    mounts = mounts_in(TABLE)
    assert len(mounts) == len(TABLE) - 1, "what is not understood is left out"
    found = mount_above("/mnt/two words/x", mounts)
    assert (found.point, found.device) == ("/mnt/two words", "0:42")
    assert str(found) == "ceph from 10.0.0.1:/ at /mnt/two words"
    assert mount_above("/x", []) == NOWHERE
    assert str(NOWHERE) == "unknown from unknown at unknown"
