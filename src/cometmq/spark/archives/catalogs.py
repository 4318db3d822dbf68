"""Catalogs of Iceberg tables: REST, SQL, Hive and Glue, through pyiceberg.

A catalog's properties come from pyiceberg's configuration (``~/.pyiceberg.yaml``, and variables such as
``PYICEBERG_CATALOG__PROD__CREDENTIAL``) and from ``catalog_options``, which override it. No property appears in an
error, a report or a file.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, TypeVar

from cometmq.errors import CometMQError, pip_install
from cometmq.spark.errors import ArchiveError
from cometmq.storage import Location, StorageOptions

T = TypeVar("T")

PAUSES_S: tuple[float, ...] = (0.5, 1, 2, 4, 8, 15, 30, 30, 30, 60)
"""Pauses before a request is sent again while the catalog does not answer: three minutes in total."""
_SECRET: Final = re.compile(r"secret|credential|token|password|signature|account-key|sas|uri", re.IGNORECASE)
_SECRET_NAME: Final = re.compile(
    r"(.*[.-])?(credential|token|password|secret|secret-access-key|session-token|account-key|sas-token|client-secret)"
)
_UNAVAILABLE: Final = frozenset(
    {
        "ConnectionError",
        "EndpointConnectionError",
        "InterfaceError",
        "OperationalError",
        "ServerError",
        "ServiceUnavailableError",
        "Timeout",
        "TooManyRequestsError",
        "TTransportException",
    }
)
"""Errors of requests, SQLAlchemy, thrift, boto3 and pyiceberg when a catalog does not answer."""
_DENIED: Final = frozenset({"AuthorizationExpiredError", "ForbiddenError", "OAuthError", "UnauthorizedError"})
_LONGEST_DETAIL: Final = 300
_MISSING: Final = {
    "psycopg2": f"PostgreSQL: {pip_install('postgres')}",
    "boto3": f"Glue and SigV4: {pip_install('iceberg,aws')}",
    "thrift": f"Hive: {pip_install('hive')}",
}
"""Packages that some catalogs need."""


def is_secret(name: str, value: str) -> bool:
    """Return True if a catalog's property contains a secret."""
    return _SECRET_NAME.fullmatch(name) is not None or re.search(r"//[^/@]*:[^/@]+@", value) is not None


class CatalogUnavailableError(ArchiveError):
    """The catalog does not answer."""


class IcebergCatalog:
    """One catalog. It connects at the first request, and describes each failure in one sentence.

    :param name: name in pyiceberg's configuration.
    :param properties: properties that override the configuration.
    """

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name: Final = name
        self._properties = dict(properties)

    @cached_property
    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        try:
            # SQL catalogs create their tables if they are missing, and fail if another job is quicker
            return _retry_once(lambda: load_catalog(self.name, **self._properties))
        except ValueError as error:
            raise ArchiveError(
                f"pyiceberg's configuration has no catalog {self.name}: {self._hide_secrets(str(error))}",
                next_step="describe it in ~/.pyiceberg.yaml, on driver and executors",
            ) from None

    def load_table(self, name: str) -> Any:
        """Load a table, or return None if it does not exist.

        :raises FileNotFoundError: its metadata does not exist.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self.ask(lambda: self._catalog.load_table(name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def create_table(self, name: str, schema: Any, location: str | None, spec: Any, properties: dict[str, str]) -> Any:
        """Create a table and its namespace, unless the table exists. Return the table.

        :param location: the table's location, or None for the one that the catalog chooses.
        """
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

        namespace = name.rpartition(".")[0]

        def create() -> Any:
            if namespace and not self._catalog.namespace_exists(namespace):
                with contextlib.suppress(NamespaceAlreadyExistsError):
                    self._catalog.create_namespace(namespace)
            try:
                return self._catalog.create_table(name, schema, location, spec, properties=properties)
            except TableAlreadyExistsError:
                return self._catalog.load_table(name)

        return self.ask(lambda: _retry_once(create))

    def ask(self, request: Callable[[], T]) -> T:
        """Send a request that can be repeated; repeat it after pauses if the catalog does not answer.

        :raises ArchiveError: the catalog refuses the request, or answers none of the attempts.
        """
        for pause in PAUSES_S:
            try:
                return self._ask_once(request)
            except CatalogUnavailableError:
                time.sleep(pause)
        return self._ask_once(request)

    def _ask_once(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except CometMQError:
            raise
        except Exception as error:
            failure = self.failure(error)
            if failure is None:
                raise
            raise failure from None

    def failure(self, error: Exception) -> ArchiveError | None:
        """Return the error for a failed request, or None if its kind is unknown."""
        names = {kind.__name__ for kind in type(error).__mro__}
        text = self._hide_secrets(str(error))
        if names & {"ImportError", "NotInstalledError"}:
            hint = next((hint for package, hint in _MISSING.items() if package in text), pip_install("iceberg"))
            return ArchiveError(
                f"the catalog {self.name} needs a package that is not installed: {text}", next_step=hint
            )
        if names & _DENIED:
            return ArchiveError(
                f"the catalog {self.name} denies access: {text}",
                next_step=f"check its credentials (PYICEBERG_CATALOG__{self.name.upper()}__CREDENTIAL, __TOKEN …) and "
                "grant reading and changing the table",
            )
        if names & _UNAVAILABLE:
            return CatalogUnavailableError(
                f"the catalog {self.name} does not answer: {text}",
                next_step="check its address and whether it runs, then run the same command again",
            )
        return None

    def describe(self, error: Exception) -> str:
        """Return the kind and the text of an error, without secrets."""
        return f"{type(error).__name__}: {self._hide_secrets(str(error))}"

    def _hide_secrets(self, text: str) -> str:
        for name, value in self._all_properties().items():
            if value and _SECRET.search(name):
                text = text.replace(value, "***")
        text = " ".join(re.sub(r"//[^/@\s]*@", "//***@", text).split())
        return text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]}…"

    def _all_properties(self) -> dict[str, str]:
        return configured_properties(self.name) | self._properties


def configured_properties(name: str) -> dict[str, str]:
    """Return a catalog's properties from pyiceberg's configuration on this machine."""
    try:
        from pyiceberg.utils.config import Config
    except ImportError:  # reported when the table is opened
        return {}
    return {key: str(value) for key, value in (Config().get_catalog_config(name) or {}).items()}


def _retry_once(make: Callable[[], T]) -> T:
    """Open or create something in a catalog, and retry once if that fails.

    SQL catalogs first check that the object does not exist. They fail if another job creates it after the check.
    """
    try:
        return make()
    except ValueError:
        raise
    except Exception:
        return make()


# Storage ----------------------------------------------------------------------------------------------

_S3: Final = {
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
    "s3.profile-name": "profile",
    "client.region": "region",
}
_AZURE: Final = {
    "adls.account-key": "account_access_key",
    "adls.sas-token": "sas_token",
    "adls.tenant-id": "tenant_id",
    "adls.client-id": "client_id",
    "adls.client-secret": "client_secret",
}


def io_properties(options: StorageOptions) -> dict[str, str]:
    """Return pyiceberg's properties for a storage with these options."""
    found = {name: getattr(options, field) for name, field in (_S3 | _AZURE).items() if name != "client.region"}
    found = {name: value for name, value in found.items() if value}
    if options.virtual_host:
        found["s3.force-virtual-addressing"] = "true"
    if options.anonymous:
        found["s3.anonymous"] = "true"
    return found


def storage_options_from(io: Mapping[str, str], location: str, given: StorageOptions) -> StorageOptions:
    """Return the options of the storage that contains a table's files.

    :param io: the properties of the table's ``FileIO``: those of its catalog, with the credentials that the catalog
        has issued for the table.
    :param given: options that override them.
    """
    names = {"s3": _S3, "azure": _AZURE}.get(Location.parse(location).kind, {})
    found: dict[str, Any] = {}
    for name, field in names.items():
        if io.get(name):
            found.setdefault(field, io[name])
    return given.over(StorageOptions(**found))
