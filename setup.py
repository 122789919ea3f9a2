"""Builds the hot modules, compiled: all, or none. Without a C compiler their sources run interpreted."""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED = Path(__file__).with_name("compiled-modules.txt").read_text().split()
"""Dotted names below `semel` of the modules written in Cython's pure-Python mode."""
LINUX_ONLY = ["broker.listeners.kafka.send_thread", "broker.listeners.kafka.socket_reads"]
"""Those that are Cython alone: what they add has no plain twin, and is left out on other systems."""


class OptionalBuild(build_ext):
    """A machine without a compiler still gets a working, slower, install. A mixture would not work."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            self.warn(f"Semel will run interpreted, several times slower: it could not be compiled: {error}")
            for built in self.get_outputs():
                Path(built).unlink(missing_ok=True)
            self.extensions = []

    def get_outputs(self) -> list[str]:
        return [output for output in super().get_outputs() if os.path.exists(output)]


def extensions() -> list[Extension]:
    if os.environ.get("SEMEL_INTERPRETED"):
        return []
    from Cython.Build import cythonize

    sources = {name: f"{name.replace('.', '/')}.py" for name in COMPILED}
    if sys.platform == "linux":
        sources |= {name: f"{name.replace('.', '/')}.pyx" for name in LINUX_ONLY}
    modules = [
        Extension(f"semel.{name}", [f"src/semel/{source}"], extra_compile_args=["-O3", "-g0"])
        for name, source in sources.items()
    ]
    return cythonize(
        modules,
        build_dir="build/cython",
        language_level=3,
        compiler_directives={"boundscheck": False, "wraparound": False, "cdivision": True, "initializedcheck": False},
    )


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})
