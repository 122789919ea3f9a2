"""An S3 in the tests' process. The data directory of every test here is verified when the test has ended."""

from postgresql_server import postgresql_server, postgresql_url  # noqa: F401  (fixtures)
from s3_server import s3_endpoint, s3_url  # noqa: F401  (fixtures)
from sound_data import sound_data, sound_module_data, sound_session_data  # noqa: F401  (fixtures)
