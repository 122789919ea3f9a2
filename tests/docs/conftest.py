"""The data directory of every test here is verified when the test has ended."""

from sound_data import sound_data, sound_module_data, sound_session_data  # noqa: F401  (fixtures)
