"""The settings of the site: `make docs` builds it from the pages of the whole tree, and fails at each warning.

The source directory is the root of the tree, because DESIGN.md, PROTOCOL.md and others stand beside their code.
"""

project = "timerd"
author = copyright = "the timerd authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
# A pattern ** stands for one folder or more, so docs/**/*.md would leave out docs/index.md.
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/*/*.md",
    "timerd/*.md",
    "client/*.md",
    "client/*/*.md",
    "shm_layout/*/*/*.md",
    "bench/*.md",
    "bench/tables/*.md",
    "examples/*.md",
]
exclude_patterns = ["build/**", ".venv/**", ".venv-spark/**"]
nitpicky = True
# The glossary's terms are of level 3, as GitHub shows them well. A console's comment may have an apostrophe.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "timerd"
html_copy_source = False
html_show_copyright = False
