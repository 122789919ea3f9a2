"""A PostgreSQL for the tests of rows. What the nodes leave is verified as they stop, with their metadata."""

from postgresql_server import postgresql_server, postgresql_url  # noqa: F401  (fixtures)
