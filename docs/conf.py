"""How Sphinx builds the documentation: `make docs`, or `sphinx-build -W docs out/docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "weft"
author = "the authors of weft"
language = "en"
extensions = ["myst_parser", "made"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nitpicky = True
smartquotes = False

html_theme = "furo"
html_title = "weft"
html_static_path = ["_static"]
html_css_files = ["weft.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#14664a", "color-brand-content": "#14664a"},
    "dark_css_variables": {"color-brand-primary": "#6cc7a1", "color-brand-content": "#6cc7a1"},
}
