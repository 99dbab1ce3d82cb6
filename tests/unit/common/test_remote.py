"""What a person is told of a store that cannot be used now."""

from __future__ import annotations

import errno
import os

import pytest

from gpt1_ds.common.errors import DataError, WorldError
from gpt1_ds.common.remote import reached


@pytest.mark.parametrize(
    ("number", "way_out"),
    [
        (errno.ENOSPC, "free some space there"),
        (errno.EROFS, "make it writable again"),
        (errno.EIO, "run again when the network is well"),
    ],
)
def test_a_store_that_is_a_disk_has_ways_out_of_its_own(number: int, way_out: str) -> None:
    with pytest.raises(WorldError) as caught, reached("file:///mnt/store", access="write"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).endswith(f"cannot be written ([Errno {number}] {os.strerror(number)}); {way_out}")


def test_what_a_library_repeats_of_an_address_shows_no_secret() -> None:
    with pytest.raises(DataError) as caught, reached("s3://user:pass@bucket/x?token=t"):
        raise ValueError('invalid bucket name "user:pass@bucket" of s3://user:pass@bucket/x?token=t')
    assert str(caught.value) == 's3://bucket/x: invalid bucket name "bucket" of s3://bucket/x'
