"""How Sphinx makes the documentation: `make docs`. What is made of the code while it is built is in extensions/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

from semel import __version__

project = "Semel"
author = "the Semel authors"
project_copyright = "the Semel authors"
version = release = __version__
language = "en"
smartquotes = False  # or --option becomes a dash

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "docstrings", "made_parts", "state_pictures"]
exclude_patterns = ["extensions"]
root_doc = "index"
default_role = "literal"
suppress_warnings = ["ref.python"]  # a type in a signature may be the sync or the asyncio one: it is no link then

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
myst_enable_extensions = ["colon_fence", "fieldlist"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autoclass_content = "both"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

copybutton_exclude = ".linenos, .gp, .go"  # commands alone: no prompts, and nothing of what they print

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["semel.css"]
html_title = f"Semel {release}"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
