"""The storages of all kinds, as in the tests of the storage."""

from tests.storage.conftest import s3 as s3
from tests.storage.conftest import servers as servers
from tests.storage.conftest import storage as storage
