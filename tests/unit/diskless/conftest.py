"""A PostgreSQL for the tests of rows."""

from postgresql_server import postgresql_server, postgresql_url  # noqa: F401  (fixtures)
